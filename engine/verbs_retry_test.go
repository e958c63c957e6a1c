package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

func TestRetry(t *testing.T) {
	t.Parallel()
	for _, fault := range []simulator.Fault{simulator.Error, simulator.TimeoutAfter, simulator.NotDone} {
		t.Run(fmt.Sprintf("of a step that was answered %s goes on with the same key", fault), func(t *testing.T) {
			t.Parallel()
			b, p := impatient(t, fault)
			for _, step := range []string{"charge", "reserve", "confirm"} {
				t.Run(step, func(t *testing.T) { //nolint:paralleltest // the provider has one fault at a time
					p.fail(t, simulator.Rule{Fault: fault, Step: step})
					b.sticks(t, step)
					p.fail(t)
					b.retriesWithTheSameKey(t, step, p)
				})
			}
		})
	}
	t.Run("of an undo that was refused does it", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve"}, simulator.Rule{Fault: simulator.Decline, Step: "charge", Operation: "undo"})
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Failed)
	})
	t.Run("begins a new window", func(t *testing.T) {
		t.Parallel()
		b, _ := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "charge"})
		before, err := b.engine.Orders.Get(t.Context(), "order")
		if err != nil {
			t.Fatal(err)
		}
		if o := b.do(t, asked(orders.Retry)); text(o.Hold) != "attention" || !o.RetryWindowStartedAt.After(*before.RetryWindowStartedAt) {
			t.Errorf("held %s, window from %s", text(o.Hold), o.RetryWindowStartedAt)
		}
	})
}

func (b *bundle) retriesWithTheSameKey(t *testing.T, orderID string, p *simulated) {
	t.Helper()
	tried := value[int32](t, b.Pool, `SELECT calls FROM books.orders WHERE order_id = $1`, orderID)
	q := asked(orders.Retry)
	q.OrderID = orderID
	b.ends(t, b.do(t, q), p, fsm.Completed)
	if last := value[int32](t, b.Pool, `SELECT max(call) FROM books.step_calls WHERE order_id = $1`, orderID); last <= tried {
		t.Errorf("call %d after %d", last, tried)
	}
}

func TestRedrive(t *testing.T) {
	t.Parallel()
	t.Run("of an order of the ledger is its next generation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		b.setStock(t, "widget", 1)
		o := b.do(t, asked(orders.Retry))
		if o.Status != fsm.Completed || o.Generation != 1 || o.FailureCode != nil {
			t.Errorf("%+v", o)
		}
		b.sameAsStored(t, o)
		b.verified(t)
	})
	t.Run("can be done again and again", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		for generation := range int32(3) {
			q := asked(orders.Retry)
			q.Generation = &generation
			if o := b.do(t, q); o.Status != fsm.Failed || o.Generation != generation+1 || text(o.FailureCode) != "out_of_stock" {
				t.Errorf("%+v", o)
			}
		}
		b.verified(t)
	})
	t.Run("waits for what is still being undone", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, byCallers)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders`)
		b.refused(t, asked(orders.Retry), orders.RefusedStillUndoing)
		b.exec(t, `UPDATE late_undos SET finished_at = now()`)
		if o := b.do(t, asked(orders.Retry)); o.Generation != 1 {
			t.Errorf("%+v", o)
		}
	})
	t.Run("is done once, however often the request comes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.replica(t, engine.Config{})
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		q := asked(orders.Retry)
		q.RequestID = "r"
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				o, err := []*engine.Engine{b.engine, other}[i%2].Do(t.Context(), q)
				if err != nil || o.Status != fsm.Failed || o.Generation != 1 {
					t.Errorf("%v, %s of generation %d", err, o.Status, o.Generation)
				}
			})
		}
		callers.Wait()
		b.writesNothing(t, func() { b.do(t, q) })
		b.verified(t)
	})
}

// A redrive after a refusal kills the earlier keys first.
func TestRedriveKillsEarlierKeys(t *testing.T) { //nolint:tparallel // the provider has one fault at a time
	t.Parallel()
	p := newProvider(t)
	b := remote(t, quick, p.quick(""))
	for _, declined := range []string{"charge", "reserve", "confirm"} { //nolint:paralleltest // as above
		t.Run(declined, func(t *testing.T) {
			p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: declined})
			b.ends(t, b.process(t, request(declined)), p, fsm.Failed)
			p.fail(t)
			q := asked(orders.Retry)
			q.OrderID = declined
			b.ends(t, b.do(t, q), p, fsm.Completed)
			if n := value[int](t, b.Pool, `SELECT count(*) FROM books.step_calls
				WHERE order_id = $1 AND generation = 0 AND step = 'charge' AND operation = 'undo' AND outcome = 'done'`, declined); n == 0 {
				t.Error("the charge of generation 0 was not voided")
			}
		})
	}
}

// Whoever sends a retry twice, by mistake or because no answer came, restarts the order once.
func TestRedriveThatComesTwice(t *testing.T) {
	t.Parallel()
	t.Run("is done once, also without a request id", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				_, err := b.engine.Do(t.Context(), asked(orders.Retry))
				if refused := (*orders.NotApplicable)(nil); err != nil && !errors.As(err, &refused) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		b.refused(t, asked(orders.Retry), orders.RefusedRetried)
		if generation := value[int](t, b.Pool, `SELECT generation FROM books.orders`); generation != 1 {
			t.Errorf("restarted %d times", generation)
		}
		q := asked(orders.Retry)
		q.Generation = new(int32(0))
		b.refused(t, q, orders.RefusedGeneration)
		for generation, say := range []func(q *engine.Request){
			func(q *engine.Request) { q.Generation = new(int32(1)) },
			func(q *engine.Request) { q.IfSeq = new(value[int32](t, b.Pool, `SELECT seq FROM books.orders`)) },
			func(q *engine.Request) { q.RequestID = "again" },
		} {
			q := asked(orders.Retry)
			say(&q)
			if o := b.do(t, q); o.Status != fsm.Failed || o.Generation != int32(generation)+2 {
				t.Error(brief(o))
			}
		}
		b.verified(t)
	})
	t.Run("is not what a retry means that was sent while the order was held", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
		p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: "charge"})
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Failed)
		b.refused(t, asked(orders.Retry), orders.RefusedRetried)
	})
}
