package engine_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// lasting is for engines that keep what they do not let go: no lease ends within a test.
func lasting(log *lines) engine.Config {
	return engine.Config{Lease: time.Hour, RecoveryInterval: often, Log: slog.New(slog.NewTextHandler(log, nil))}
}

// TestSchemaChangesUnderOrders changes the schema under an engine whose orders are stored and on their way. None is kept:
// they are released, or, where that can't be done either, their leases are renewed no more. When the schema is as before,
// everything goes on by itself.
func TestSchemaChangesUnderOrders(t *testing.T) {
	t.Parallel()
	const many = 100
	for _, c := range []struct {
		name, spoil, mend string
		keeps             bool // the statement that releases leases can't run either
	}{
		{"the charge can't be written", `ALTER TABLE charges RENAME COLUMN amount TO sum`, `ALTER TABLE charges RENAME COLUMN sum TO amount`, false},
		{"a table is gone", `ALTER TABLE charges RENAME TO kept`, `ALTER TABLE kept RENAME TO charges`, false},
		{"leases can't be released", `ALTER TABLE transitions RENAME COLUMN fence TO mark`, `ALTER TABLE transitions RENAME COLUMN mark TO fence`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, log := setupWith(t, byCallers), &lines{}
			cfg := lasting(log)
			if c.keeps {
				cfg.Lease = 2 * time.Second
			}
			e := b.replica(t, cfg)
			unlock := b.delay(t, "reserving")
			first := ask(t, e, request("first"))
			eventually(t, "a move is under way", func() bool { return b.atWork(t, "OrdersCharge") > 0 })
			answers := ask(t, e, requests("order", many)...)
			eventually(t, "the others wait for theirs", func() bool {
				return value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.status = 'charging'`) == many+1
			})
			spoiled := make(chan error, 1)
			go func() { // it may wait for the move under way; then no move passes it
				_, err := b.Pool.Exec(t.Context(), c.spoil)
				spoiled <- err
			}()
			eventually(t, "the schema changes", func() bool {
				return len(spoiled) == 1 || value[int](t, b.Pool, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = $1`, c.spoil) == 1
			})
			unlock()
			if err := <-spoiled; err != nil {
				t.Fatal(err)
			}
			comeAgain(t, answers, many)
			if a := <-first; !errors.Is(a.err, orders.ErrUnavailable) && (a.err != nil || a.order.Status != fsm.Completed) {
				t.Errorf("the first one: told %v, %s", a.err, brief(a.order)) // its charge may have been before the change
			}
			stuck := `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`
			if c.keeps {
				stuck += ` AND o.due_at > now()`
			}
			eventually(t, "no order is kept", func() bool { return e.InFlight() == 0 && value[int](t, b.Pool, stuck) == 0 })
			if err := e.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), "charges") && !strings.Contains(err.Error(), "can't be prepared: ") {
				t.Errorf("it says of itself: %v", err)
			}
			if _, err := e.Process(t.Context(), request("one more")); !errors.Is(err, engine.ErrNotMigrated) {
				t.Errorf("a new order: %v", err)
			}
			if n := value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.hold IS NOT NULL OR o.take_overs > 0`); n > 0 {
				t.Errorf("%d orders were blamed, or claimed in vain", n)
			}
			b.exec(t, c.mend) // nobody moves orders now
			eventually(t, "the orders are completed", func() bool {
				return value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.status = 'completed'`) == many+1
			})
			b.completes(t, ask(t, e, request("one more")), 1)
			if said := log.count("can't run on this schema"); said != 1 {
				t.Errorf("%d lines in the log:\n%s", said, log)
			}
			proveBooks(t, b.Pool)
		})
	}
}

// TestRowsThatCannotBeRead has a move that is lost, and a caller who comes again: what the row says can't be found out. The
// caller is not told that there is no such order, and the order is not kept.
func TestRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, lasting(&lines{}))
	b.process(t, request("ended"))
	atMove, release := p.stall(t, named("OrdersCharge"))
	answers := ask(t, b.engine, request("lost"))
	eventually(t, "a move is under way", func() bool { return atMove.Load() == 1 })
	b.exec(t, `UPDATE orders SET seq = seq + 1 WHERE order_id = 'lost'`)
	b.exec(t, `ALTER VIEW full_orders RENAME COLUMN charged_at TO made_at`)
	if _, err := b.engine.Process(t.Context(), request("ended")); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("the caller who comes again: %v", err)
	}
	release()
	comeAgain(t, answers, 1)
	eventually(t, "no order is kept", func() bool {
		return b.engine.InFlight() == 0 && value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`) == 0
	})
	b.exec(t, `ALTER VIEW full_orders RENAME COLUMN made_at TO charged_at`)
	eventually(t, "the order is completed", func() bool { return status(t, b.Pool, "lost") == "completed" })
}

// TestTriggerThatCannotRun has what no preparing shows: the error comes from the body of a trigger. The orders are handed
// back all the same, and tried again after pauses that grow.
func TestTriggerThatCannotRun(t *testing.T) {
	t.Parallel()
	b, log := setupWith(t, byCallers), &lines{}
	e := b.replica(t, lasting(log))
	b.exec(t, `CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM * FROM nowhere; RETURN NULL; END $$`)
	b.exec(t, `CREATE TRIGGER broken AFTER INSERT ON charges EXECUTE FUNCTION broken()`)
	began := time.Now()
	comeAgain(t, ask(t, e, requests("order", 50)...), 50)
	eventually(t, "it says so of itself, in one of the pauses between two tries", func() bool {
		err := e.Ready(t.Context())
		return errors.Is(err, engine.ErrNotMigrated) && strings.Contains(err.Error(), "42P01")
	})
	eventually(t, "they are tried again", func() bool { return log.count("can't run on this schema") == 3 })
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("tried three times within %v", took)
	}
	b.exec(t, `DROP TRIGGER broken ON charges`)
	eventually(t, "the orders are completed", func() bool {
		return value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.status <> 'completed'`) == 0
	})
	proveBooks(t, b.Pool)
}

// TestSchemaChangesAtAProvider changes the schema while an order is at a provider: whichever statement meets it, the order
// is let go, and it is done once in the end.
func TestSchemaChangesAtAProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spoil, mend string }{
		{"the answer can't be recorded", `ALTER TABLE step_calls RENAME COLUMN finished_at TO over_at`, `ALTER TABLE step_calls RENAME COLUMN over_at TO finished_at`},
		{"answers without a call can't be looked for", `ALTER TABLE step_answers RENAME COLUMN source TO origin`, `ALTER TABLE step_answers RENAME COLUMN origin TO source`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			b, log := setupWith(t, byCallers), &lines{}
			e := b.replica(t, lasting(log))
			b.engine = e
			b.activate(t, p.quick(""))
			if err := p.SetFaults(rules("charge", simulator.CutAfter)...); err != nil { // tried again and again: it is done, and nobody knows
				t.Fatal(err)
			}
			answers := ask(t, e, request("order"))
			eventually(t, "it is charged", func() bool { return p.standing("order") == "charge 1 reserve 0 confirm 0" })
			b.exec(t, c.spoil)
			eventually(t, "the order is let go", func() bool {
				return e.InFlight() == 0 && value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`) == 0
			})
			comeAgain(t, answers, 1)
			if err := e.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) {
				t.Errorf("it says of itself: %v", err)
			}
			if err := p.SetFaults(); err != nil {
				t.Fatal(err)
			}
			b.exec(t, c.mend)
			eventually(t, "it takes orders again", func() bool { return e.Ready(t.Context()) == nil })
			if o := b.process(t, request("order")); o.Status != fsm.Completed {
				t.Errorf("it is %s", brief(o))
			}
			if got := p.standing("order"); got != "charge 1 reserve 1 confirm 1" {
				t.Error(got)
			}
			proveBooks(t, b.Pool)
		})
	}
}

// TestReadyBelievesAProof asks often: the statements are prepared once in a while, and at once when one of them has failed.
func TestReadyBelievesAProof(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	if err := b.engine.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `ALTER TABLE transitions RENAME COLUMN actor TO who`)
	if err := b.engine.Ready(t.Context()); err != nil {
		t.Errorf("a moment later nobody has met it yet: %v", err)
	}
	if _, err := b.engine.Process(t.Context(), request("one")); err != nil {
		t.Errorf("an order that does not meet it: %v", err)
	}
	if _, err := b.engine.Orders.Transitions(t.Context(), "one", orders.Span{Before: 9, Limit: 10}); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("a statement that meets it: %v", err)
	}
	if err := b.engine.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), `column "actor"`) {
		t.Errorf("once it was met: %v", err)
	}
	if _, err := b.engine.Process(t.Context(), request("two")); err != nil {
		t.Errorf("orders go on as long as their statements can run: %v", err)
	}
	b.exec(t, `ALTER TABLE transitions RENAME COLUMN who TO actor`)
	if err := b.engine.Ready(t.Context()); err != nil {
		t.Errorf("mended: %v", err)
	}
}
