package engine_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/fsm"
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
			if o.Status != "completed" || status(t, b.Pool, a.orderID) != "completed" {
				t.Errorf("%s: told %s, is %s", a.orderID, o.Status, status(t, b.Pool, a.orderID))
			}
			continue
		}
		if string(o.Status) != at || text(o.Hold) != "attention" || text(o.HoldReason) != reason || o.Owner != nil {
			t.Errorf("the culprit is %s, held for %s: %s", o.Status, text(o.Hold), text(o.HoldReason))
		}
	}
	if got := verbs(t, b.Pool, "culprit"); !slices.Equal(got, []string{"hold"}) {
		t.Errorf("to the culprit was done: %q", got)
	}
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
		if _, err := setStock(t.Context(), b.engine, "none", 0); err != nil {
			t.Fatal(err)
		}
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
	if moved, err := g.try(t, seen); err == nil || len(moved) > 0 {
		t.Errorf("moved %v: %v", moved, err)
	}
	if now := g.stored(t, "culprit", "other"); now[0].Status != "charging" || now[1].Status != "charging" {
		t.Errorf("moved to %s and %s", now[0].Status, now[1].Status)
	}
	proveBooks(t, b.Pool)
}

// lock holds a row that a query locks until the test or its caller ends.
func (b *bundle) lock(t *testing.T, sql string, args ...any) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return func() {
		t.Helper()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
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
			if got := status(t, b.Pool, "culprit"); got != at {
				t.Errorf("the locked order is %s", got)
			}
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
	eventually(t, "it is held for attention", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE hold = 'attention' AND hold_reason LIKE '23505%'`) == 1
	})
}
