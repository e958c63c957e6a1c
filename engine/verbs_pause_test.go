package engine_test

import (
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

func TestPause(t *testing.T) {
	t.Parallel()
	t.Run("during a call records its answer and holds before the next step", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		called, open := p.door.shut(t, "/charge")
		b := remote(t, engine.Config{}, p.quick(""))
		answers := ask(t, b.engine, request("order"))
		eventually(t, "a call is under way", func() bool { return called.Load() == 1 })
		paused := make(chan orders.Order, 1)
		go func() {
			order, err := b.engine.Do(t.Context(), asked(orders.Pause))
			if err != nil {
				t.Error(err)
			}
			paused <- order
		}()
		eventually(t, "the pause is asked for", func() bool {
			return value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE stop_requested = 'pause'`) == 1
		})
		open()
		o := (<-paused)
		if o.Status != fsm.Reserving || text(o.Hold) != "paused" || o.StopRequested != nil {
			t.Errorf("%s, held %s", o.Status, text(o.Hold))
		}
		if a := <-answers; a.err != nil || text(a.order.Hold) != "paused" {
			t.Errorf("%v, held %s", a.err, text(a.order.Hold))
		}
		b.ends(t, b.do(t, asked(orders.Resume)), p, fsm.Completed)
	})
	t.Run("of an order that another replica drives can be taken back", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "order")
		q := asked(orders.Pause)
		q.Async = true
		if o := b.do(t, q); text(o.StopRequested) != "pause" || o.Hold != nil {
			t.Errorf("%+v", o)
		}
		q.Verb = orders.Resume
		if o := b.do(t, q); o.StopRequested != nil || *o.Owner != g.owner {
			t.Errorf("%+v", o)
		}
		g.advance(t, fsm.Completed, "order")
		b.verified(t)
	})
	t.Run("keeps an answer that comes meanwhile for the resumption", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.CallbackNever, Step: "charge"})
		b := remote(t, engine.Config{RecoveryInterval: often}, p.quick(""))
		if _, err := b.engine.Admit(t.Context(), request("order")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it waits for its callback", func() bool {
			o, err := b.engine.Orders.Get(t.Context(), "order")
			return err == nil && text(o.Hold) == "callback"
		})
		b.do(t, asked(orders.Pause))
		q := asked(orders.StepResult)
		q.Settle = &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone, Reference: "ch_7"}
		if o := b.do(t, q); o.Status != fsm.Charging || text(o.Hold) != "paused" {
			t.Errorf("%s, held %s", o.Status, text(o.Hold))
		}
		b.refused(t, q, orders.RefusedAnswered)
		b.ends(t, b.do(t, asked(orders.Resume)), p, fsm.Completed)
		if calls := value[int](t, b.Pool, `SELECT count(*) FROM books.step_calls WHERE step = 'charge'`); calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestPauseOfWhatWaits(t *testing.T) {
	t.Parallel()
	t.Run("does not stop the time of a deadline", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{RecoveryInterval: often})
		in := request("order")
		in.StartAt, in.CompleteBy = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		if _, err := b.engine.Admit(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if o := b.do(t, asked(orders.Pause)); o.Status != fsm.Pending || text(o.Hold) != "paused" {
			t.Errorf("%s, held %s", o.Status, text(o.Hold))
		}
		b.overdue(t, "order")
		eventually(t, "it is canceled", func() bool { return status(t, b.Pool, "order") == "canceled" })
	})
	t.Run("of a scheduled order ends in the wait for its time", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := request("order")
		in.StartAt = time.Now().Add(time.Hour)
		if _, err := b.engine.Admit(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		b.do(t, asked(orders.Pause))
		q := asked(orders.Resume)
		q.Async = true
		b.do(t, q)
		eventually(t, "it is scheduled again", func() bool {
			o, err := b.engine.Orders.Get(t.Context(), "order")
			return err == nil && text(o.Hold) == "scheduled" && o.DueAt.Equal(*o.StartAt)
		})
	})
}
