package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/orders"
)

// An order that can't be claimed, because a row stands in the way of its history, does
// not keep its neighbours from being taken over.
func TestOneOrderThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint("left ", i))
	}
	g.admit(t, time.Millisecond, ids...)
	b.exec(t, `INSERT INTO transitions (order_no, seq, to_status, fence)
		SELECT order_no, 2, 'charging', 1 FROM orders WHERE order_id = 'left 7'`)
	b.replica(t, engine.Config{})
	eventually(t, "the neighbours are completed", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE status = 'completed'`) == 19
	})
}

// An order whose move fails, and whose history is in the way of the hold too, is held.
func TestHoldOfAnOrderWithARowInTheWay(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Charging, "blocked")
	b.exec(t, `INSERT INTO transitions (order_no, seq, to_status, fence)
		SELECT order_no, seq + 2, 'charging', 1 FROM orders WHERE order_id = 'blocked'`)
	b.exec(t, `UPDATE orders SET hold = NULL, hold_reason = NULL, due_at = now() WHERE order_id = 'blocked'`)
	b.replica(t, engine.Config{})
	eventually(t, "it is held for attention", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE hold = 'attention' AND hold_reason LIKE '23505%'`) == 1
	})
}

// More due orders than one look takes, all of them locked, do not hide those behind them.
func TestLockedPageOfDueOrders(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.exec(t, `WITH due AS (
		INSERT INTO orders (order_id, status, due_at, owner, fence, currency, item, amount)
		SELECT 'due ' || n, 'charging', now() - interval '1 hour' + n * interval '1 ms', gen_random_uuid(), 1, 'USD', 'widget', 1
		FROM generate_series(1, 520) AS n RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM due`)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM orders ORDER BY due_at LIMIT 500 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	b.replica(t, engine.Config{})
	eventually(t, "the orders behind the locked ones are completed", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE status = 'completed'`) == 20
	})
}

// An order deleted while somebody waits for it is gone for its watcher, and new for a
// request that brings it again.
func TestOrderDeletedWhileWatched(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Hour, "watched")
	outcome := make(chan error, 1)
	go func() {
		_, err := b.engine.Do(context.WithoutCancel(t.Context()), engine.Request{Verb: orders.Cancel, OrderID: "watched"})
		outcome <- err
	}()
	eventually(t, "the stop is written", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE stop_requested IS NOT NULL`) == 1
	})
	b.exec(t, `DELETE FROM transitions`)
	b.exec(t, `DELETE FROM orders`)
	if err := <-outcome; !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("the watcher is told %v", err)
	}
	if o := b.process(t, request("watched")); o.Status != fsm.Completed {
		t.Errorf("asked for again it is %s", o.Status)
	}
}

// Callers whose verb waits for a locked row give its connection back soon: others are
// served.
func TestVerbsOnLockedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Hour, "locked")
	b.setStock(t, "shelf", 5)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM orders, inventory FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "locked"}); !errors.Is(err, orders.ErrUnavailable) {
				t.Errorf("cancel of a locked order: %v", err)
			}
		})
		callers.Go(func() {
			if _, err := b.engine.SetStock(t.Context(), "shelf", 6, nil); !errors.Is(err, orders.ErrUnavailable) {
				t.Errorf("stock of a locked item: %v", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // the locks are there until the callers have left
	defer cancel()
	if o, err := b.engine.Process(ctx, request("free")); err != nil || o.Status != fsm.Completed {
		t.Errorf("another order meanwhile: %v %s", err, o.Status)
	}
	callers.Wait()
}

// Other input for an order that is under way elsewhere is refused at once, not when the
// order ends.
func TestConflictIsToldAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Hour, "elsewhere")
	other := request("elsewhere")
	other.Item = "something else"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var conflict *orders.Conflict
	if _, err := b.engine.Process(ctx, other); !errors.As(err, &conflict) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}

// An item whose stock row stays locked takes a part of the memory, not all of it.
func TestLockedItemLeavesRoom(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{MaxInFlight: 40, Lease: time.Minute}) // no line is too slow for that
	b.setStock(t, "locked", 1000)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM inventory WHERE item = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	turnedAway := make(chan struct{}, 1000)
	ask := func(i int) {
		in := request(fmt.Sprint("locked ", i))
		in.Item = "locked"
		if _, err := b.engine.Process(t.Context(), in); errors.Is(err, orders.ErrOverloaded) {
			turnedAway <- struct{}{}
		}
	}
	for i := 0; len(turnedAway) == 0; i++ {
		callers.Go(func() { ask(i) })
		if _, err := b.engine.Process(t.Context(), request(fmt.Sprint("free ", i))); err != nil { // of another item: never turned away
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	callers.Wait()
}
