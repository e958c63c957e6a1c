package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/fsm"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

const neighbours = 50

// culprit is an order somewhere in the middle of a set.
func withCulprit() []engine.Input {
	return slices.Insert(requests("order", neighbours), neighbours/3, request("culprit"))
}

// raiseFor makes every update that brings the culprit to a status fail, at commit or at once.
func (b *bundle) raiseFor(t *testing.T, status, deferred, using string) {
	t.Helper()
	b.exec(t, `CREATE FUNCTION refuse_culprit() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'not this one' USING `+using+`; END $$`)
	b.exec(t, `CREATE CONSTRAINT TRIGGER refuse_culprit AFTER UPDATE ON orders `+deferred+` FOR EACH ROW
		WHEN (NEW.order_id = 'culprit' AND NEW.status = '`+status+`' AND NEW.hold IS NULL) EXECUTE FUNCTION refuse_culprit()`)
}

// held is the one answer about the culprit.
func (b *bundle) held(t *testing.T, answers <-chan answer, at, reason string) {
	t.Helper()
	for range neighbours + 1 {
		a := <-answers
		if a.err != nil {
			t.Errorf("%s: %v", a.orderID, a.err)
			continue
		}
		o := a.order
		if a.orderID != "culprit" {
			assert.Equal(t, [2]string{string(o.Status), status(t, b.Pool, a.orderID)}, [2]string{"completed", "completed"}, a.orderID)
			continue
		}
		assert.True(t, string(o.Status) == at && text(o.Hold) == "attention" && text(o.HoldReason) == reason && o.Owner == nil,
			"the culprit is", o.Status, "held for", text(o.Hold), text(o.HoldReason))
	}
	assert.Equal(t, verbs(t, b.Pool, "culprit"), []string{"hold"}, "to the culprit was done")
	proveBooks(t, b.Pool)
}

func TestDataThatFailsItsBatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, to, statement, at, deferred, using, reason string }{
		{"a constraint that refuses at commit", "completed", "OrdersConfirm", "confirming", "DEFERRABLE INITIALLY DEFERRED",
			"ERRCODE = '23514', CONSTRAINT = 'late_check'", "23514: late_check"},
		{"a trigger of somebody else's", "reserving", "OrdersCharge", "charging", "", "ERRCODE = 'P0001'", "P0001"},
		{"a trigger with a code of its own", "reserving", "OrdersCharge", "charging", "", "ERRCODE = 'ZZ001'", "ZZ001"},
		{"a value out of range", "confirming", "OrdersReserve", "reserving", "", "ERRCODE = '22003'", "22003"},
	} {
		t.Run(c.name+" holds the one order", func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			b.raiseFor(t, c.to, c.deferred, c.using)
			answers, release := b.gather(t, p, c.statement, withCulprit()...)
			release()
			b.held(t, answers, c.at, c.reason)
		})
	}
	t.Run("a charge made by hand holds the one order", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		answers, release := b.gather(t, p, "OrdersCharge", withCulprit()...)
		b.exec(t, `INSERT INTO charges (order_no, generation, currency, amount)
			SELECT o.order_no, 0, 'USD', 1 FROM orders AS o WHERE o.order_id = 'culprit'`)
		release()
		b.held(t, answers, "charging", "23505: charges_pkey")
	})
	t.Run("a refusal that fails when the others have moved holds the one order", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		assert.NoError(t, assert.Err(setStock(t.Context(), b.engine, "none", 0)))
		b.raiseFor(t, "refunding", "", "ERRCODE = '22003'")
		inputs := withCulprit()
		for i := range inputs {
			if inputs[i].OrderID == "culprit" {
				inputs[i].Item = "none"
			}
		}
		answers, release := b.gather(t, p, "OrdersReserve", inputs...)
		release()
		b.held(t, answers, "reserving", "22003")
	})
	t.Run("a hold that can't be written holds the one order for a person", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{RecoveryInterval: often})
		newGhost(b.Pool).admit(t, patience, "culprit", "other")
		b.exec(t, `CREATE FUNCTION refuse_pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
		b.exec(t, `CREATE TRIGGER refuse_pause BEFORE UPDATE ON orders FOR EACH ROW
			WHEN (NEW.order_id = 'culprit' AND NEW.hold = 'paused') EXECUTE FUNCTION refuse_pause()`)
		b.exec(t, `UPDATE orders SET stop_requested = 'pause', due_at = now()`)
		for orderID, want := range map[string]string{"other": "paused, none", "culprit": "attention, P0001"} {
			eventually(t, orderID+" is held", func() bool {
				o, err := b.engine.Orders.Get(t.Context(), orderID)
				return err == nil && text(o.Hold)+", "+text(o.HoldReason) == want
			})
		}
		proveBooks(t, b.Pool)
	})
}

func TestRowsBeforeTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.raiseFor(t, "reserving", "DEFERRABLE INITIALLY DEFERRED", "ERRCODE = '23514'")
	g := newGhost(b.Pool)
	g.admit(t, patience, "culprit", "other")
	seen := g.stored(t, "culprit", "other")
	moved, err := g.try(t, seen)
	assert.True(t, err != nil && len(moved) == 0, "moved", moved, err)
	now := g.stored(t, "culprit", "other")
	assert.True(t, now[0].Status == "charging" && now[1].Status == "charging", "moved to", now[0].Status, "and", now[1].Status)
	proveBooks(t, b.Pool)
}

// lock holds a row that a query locks until the test or its caller ends.
func (b *bundle) lock(t *testing.T, sql string, args ...any) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.URL)
	assert.NoError(t, err)
	t.Cleanup(func() { conn.Close(t.Context()) })
	tx, err := conn.Begin(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(tx.Exec(t.Context(), sql, args...)), sql)
	return func() {
		t.Helper()
		assert.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestLockedOrder(t *testing.T) {
	t.Parallel()
	for statement, at := range map[string]string{"OrdersCharge": "charging", "OrdersReserve": "reserving", "OrdersConfirm": "confirming"} {
		t.Run("does not stall its set at "+statement, func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			answers, release := b.gather(t, p, statement, withCulprit()...)
			unlock := b.lock(t, `SELECT o.seq FROM orders AS o WHERE o.order_id = 'culprit' FOR UPDATE`)
			release()
			b.completes(t, answers, neighbours)
			assert.Equal(t, status(t, b.Pool, "culprit"), at, "the locked order is")
			unlock()
			b.completes(t, answers, 1)
			proveBooks(t, b.Pool)
		})
	}
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
	eventually(t, "it is held for attention", b.answers(t, 1,
		`SELECT count(*) FROM orders WHERE hold = 'attention' AND hold_reason LIKE '23505%'`))
}

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
		assert.Equal(t, moved.Load(), int64(len(orders)), "orders moved out of", state)
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
				assert.Succeeds(t, err)
				admitted.Add(int64(len(rows)))
			})
		}
		wg.Wait()
		assert.Equal(t, admitted.Load(), 100, "orders admitted")
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
				assert.Equal(t, b.engine.Stats.Retried.Load(), 3, "tried again times")
				proveBooks(t, b.Pool)
			})
		}
	}
}

// TestMoveTheMachineDoesNotKnow has the database complete an order that is to be charged, as a statement or a schema that
// went wrong would. Nobody is told that it is completed, and nothing is done for it.
func TestMoveTheMachineDoesNotKnow(t *testing.T) {
	t.Parallel()
	for to, heldFor := range map[string]string{"confirming": "unknown_move: charging to confirming", "completed": "none"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard`)
			b.exec(t, `CREATE FUNCTION jump() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF TG_TABLE_NAME = 'orders' AND NEW.status = 'reserving' THEN
					NEW.status := '`+to+`';
					IF NEW.status = 'completed' THEN
						NEW.ended_as := 'completed'; NEW.finished_at := now(); NEW.due_at := NULL; NEW.owner := NULL;
					END IF;
				END IF;
				RETURN NEW;
			END $$`)
			b.exec(t, `CREATE TRIGGER jump BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION jump()`)
			o, err := deref(b.engine.Process(within(t, patience), request("order")))
			assert.Require(t, err != nil && o.Status == "", "told", o.Status, err)
			stored := newGhost(b.Pool).stored(t, "order")[0]
			assert.True(t, string(stored.Status) == to && text(stored.HoldReason) == heldFor,
				stored.Status, "held for", text(stored.HoldReason))
			b.counts(t, 0, `SELECT count(*) FROM reservations`)
		})
	}
}
