package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

const racers = 8

// shuffled is the same elements in another order.
func shuffled[T any](of []T) []T {
	of = slices.Clone(of)
	rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of
}

// TestShuffledBatches has connections move the same orders at once, each in an order of its own.
func TestShuffledBatches(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	var orderIDs []string
	for i := range 60 {
		orderIDs = append(orderIDs, fmt.Sprint("order ", i))
	}
	newGhost(b.Pool).admit(t, time.Minute, orderIDs...)
	b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard_input`) // what an order is about does not change
	b.exec(t, `UPDATE orders SET item = 'item ' || order_no % 7`)
	b.exec(t, `ALTER TABLE orders ENABLE TRIGGER orders_guard_input`)
	for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		orders := newGhost(b.Pool).stored(t, orderIDs...)
		var moved atomic.Int64
		var wg sync.WaitGroup
		for range racers {
			wg.Go(func() {
				for moved.Load() < int64(len(orders)) {
					won, err := newGhost(b.Pool).try(t, shuffled(orders)[:40])
					if err != nil {
						t.Errorf("out of %s: %v", state, err)
						return
					}
					moved.Add(int64(len(won)))
				}
			})
		}
		wg.Wait()
		if n := moved.Load(); n != int64(len(orders)) {
			t.Errorf("%d orders moved out of %s", n, state)
		}
	}
	proveBooks(t, b.Pool)
}

// TestShuffledAdmissions has replicas admit the same orders at once, each in an order of its own.
func TestShuffledAdmissions(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	for round := range 10 {
		var orderIDs []string
		for i := range 100 {
			orderIDs = append(orderIDs, fmt.Sprintf("order %d of %d", i, round))
		}
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range racers {
			wg.Go(func() {
				g := newGhost(b.Pool)
				rows, err := g.query.OrdersAdmit(t.Context(), g.admission(time.Minute, shuffled(orderIDs)))
				if err != nil {
					t.Error(err)
				}
				admitted.Add(int64(len(rows)))
			})
		}
		wg.Wait()
		if n := admitted.Load(); n != 100 {
			t.Errorf("%d orders admitted", n)
		}
	}
	proveBooks(t, b.Pool)
}

// TestRolledBack has every statement fail as the loser of a deadlock or of a serialization conflict does, a few times.
func TestRolledBack(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01"} {
		for _, toStatus := range []string{"charging", "reserving", "confirming", "completed"} {
			t.Run(code+" on the way to "+toStatus, func(t *testing.T) {
				t.Parallel()
				b := setupWith(t, byCallers)
				b.exec(t, `CREATE SEQUENCE tries`)
				b.exec(t, `GRANT USAGE ON SEQUENCE tries TO PUBLIC`)
				b.exec(t, `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('pawl.tries') <= 3 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '`+code+`'; END IF; RETURN NULL; END $$`)
				b.exec(t, `CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON transitions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
					WHEN (NEW.to_status = '`+toStatus+`') EXECUTE FUNCTION lose()`)
				b.completes(t, ask(t, b.engine, request("one")), 1)
				if n := b.engine.Stats.Retried.Load(); n != 3 {
					t.Errorf("tried again %d times", n)
				}
				proveBooks(t, b.Pool)
			})
		}
	}
}

// TestEverybodyAtOnce has callers, cancellations and stock taking meet at the same orders, by two replicas.
func TestEverybodyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	two := b.replica(t, engine.Config{})
	b.setStock(t, "widget", 60)
	answers := ask(t, b.engine, requests("order", 150)...)
	var wg sync.WaitGroup
	for _, in := range requests("order", 150) {
		wg.Go(func() {
			for {
				order, err := two.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: in.OrderID, Actor: "tester"})
				var refusal *orders.NotApplicable
				switch {
				case errors.Is(err, orders.ErrNotFound), errors.Is(err, orders.ErrUnavailable):
					continue
				case errors.As(err, &refusal) && (refusal.Order.Status.Final() || refusal.Order.Status.Undoing()):
				case err == nil && order.Status.Final():
				default:
					t.Errorf("cancel %s: %s, %v", in.OrderID, order.Status, err)
				}
				return
			}
		})
	}
	for onHand := range int64(20) {
		if _, err := setStock(t.Context(), two, "widget", 20+onHand); err != nil {
			var low *orders.StockTooLow
			if !errors.As(err, &low) {
				t.Error(err)
			}
		}
	}
	wg.Wait()
	for range 150 {
		a := <-answers
		if a.err != nil || string(a.order.Status) != status(t, b.Pool, a.orderID) || !a.order.Status.Final() {
			t.Errorf("%s: told %s, is %s: %v", a.orderID, a.order.Status, status(t, b.Pool, a.orderID), a.err)
		}
	}
	t.Logf("%q", column[string](t, b.Pool, `SELECT o.status || ' ' || count(*) FROM books.orders AS o GROUP BY o.status`))
	proveBooks(t, b.Pool)
}
