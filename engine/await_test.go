package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// waiters are the two ways to wait for an order.
func waiters(s *shop, in engine.Input) map[string]func(context.Context) (orders.Order, error) {
	return map[string]func(context.Context) (orders.Order, error){
		"process": func(ctx context.Context) (orders.Order, error) { return deref(s.engine.Process(ctx, in)) },
		"await":   func(ctx context.Context) (orders.Order, error) { return s.engine.Await(ctx, in.OrderID, final) },
	}
}

// final is what most callers wait for.
func final(_ int32, final bool) bool { return final }

// changed is what those wait for who have seen an order at a seq.
func changed(seen int32) func(int32, bool) bool {
	return func(seq int32, _ bool) bool { return seq != seen }
}

// A callback may come at any moment, whenever it is due at the latest.
func TestACallbackIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"process", "await"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.use(t, `{charge: {executor: simulator, url: SIM}, reserve: {executor: simulator, url: SIM}}`)
			s.faults(t, "async:300ms")
			in := request("one")
			s.admit(t, in)
			s.until(t, "one", "callback")
			o, err := waiters(s, in)[way](within(t, patience))
			assert.True(t, err == nil && o.Status == "completed", err, brief(o))
		})
	}
}

func TestWhatIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	t.Run("a customer who has to act must be told", func(t *testing.T) {
		t.Parallel()
		s := with(atEndpoint("", "charge"))(t)
		s.provider.says(`charge/do: 202 {"reference":"r","action":{"url":"https://bank.example"}}`)
		in := request("one")
		s.admit(t, in)
		s.until(t, "one", "callback")
		o, err := deref(s.engine.Process(within(t, patience), in))
		assert.True(t, err == nil && text(o.Hold) == "callback" && len(o.Action) != 0, err, brief(o))
	})
	t.Run("a person takes time", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, "charging", "one")
		o, err := deref(b.engine.Process(within(t, patience), request("one")))
		assert.True(t, err == nil && text(o.Hold) == "paused", err, brief(o))
	})
	t.Run("an order that nobody knows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		assert.ErrorIs(t, assert.Err(b.engine.Await(within(t, patience), "one", final)), orders.ErrNotFound)
	})
}

// Whoever waits for less than it takes is told how far it is.
func TestAwaitEndsInTime(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM}`)
	s.faults(t, "async:1h")
	in := request("one")
	s.admit(t, in)
	s.until(t, "one", "callback")
	for way, wait := range waiters(s, in) {
		o, err := wait(within(t, 200*time.Millisecond))
		for limit := 400 * time.Millisecond; errors.Is(err, orders.ErrUnavailable) && limit < patience; limit *= 2 { // too little for a busy machine
			o, err = wait(within(t, limit))
		}
		assert.True(t, err == nil && text(o.Hold) == "callback", way, err, brief(o))
	}
	eventually(t, "nobody is in memory for it", func() bool { return s.engine.InFlight() == 0 })
}

// awaiting has somebody wait for an order. The channel gets what he is told.
func awaiting(t *testing.T, e *engine.Engine, orderID string, enough func(int32, bool) bool) <-chan answer {
	t.Helper()
	told := make(chan answer, 1)
	go func() {
		o, err := e.Await(within(t, patience), orderID, enough)
		told <- answer{orderID, o, err}
	}()
	return told
}

// TestAwaitAChange has callers wait for any change of an order, which others cause: this replica does nothing to it.
func TestAwaitAChange(t *testing.T) {
	t.Parallel()
	t.Run("every one is told", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, byCallers)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "one")
		for seq, state := range []fsm.State{fsm.Reserving, fsm.Confirming, fsm.Completed} {
			told := awaiting(t, b.engine, "one", changed(int32(seq)+1))
			g.advance(t, state, "one")
			a := <-told
			assert.True(t, a.err == nil && a.order.Status == state, a.err, brief(a.order))
		}
	})
	t.Run("an order that waits for a person changes when he acts", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, byCallers)
		b.hold(t, fsm.Charging, "one")
		told, ended := awaiting(t, b.engine, "one", changed(2)), awaiting(t, b.engine, "one", final)
		b.do(t, engine.Request{OrderID: "one", Verb: orders.Resume, Actor: "ann"})
		a := <-told
		assert.True(t, a.err == nil && a.order.Seq != 2, a.err, brief(a.order))
		a = <-ended
		assert.True(t, a.err == nil && a.order.Status == fsm.Completed, a.err, brief(a.order))
	})
	t.Run("one that was left behind is left alone by those who look", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, byCallers)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "one")
		g.letGo(t, "one")
		b.writesNothing(t, func() {
			o, err := inVain(t, func(ctx context.Context) (orders.Order, error) { return b.engine.Await(ctx, "one", final) })
			assert.True(t, err == nil && o.Status == fsm.Charging, err, brief(o))
		})
	})
	t.Run("one that is removed is not found", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		newGhost(b.Pool).admit(t, time.Minute, "one")
		told := awaiting(t, b.engine, "one", final)
		eventually(t, "somebody waits", func() bool { return b.engine.Onlookers() == 1 })
		b.exec(t, `SET LOCAL session_replication_role = replica; DELETE FROM transitions; DELETE FROM orders`)
		assert.ErrorIs(t, (<-told).err, orders.ErrNotFound)
	})
	t.Run("who waits when the service stops is told how far it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		newGhost(b.Pool).admit(t, time.Minute, "one")
		e := b.replica(t, byCallers)
		told := awaiting(t, e, "one", final)
		eventually(t, "he waits", func() bool { return e.Onlookers() == 1 })
		stop(t, e)
		if a := <-told; a.err != nil && !errors.Is(a.err, orders.ErrUnavailable) || a.err == nil && a.order.Status != fsm.Charging {
			t.Errorf("%v, %s", a.err, brief(a.order))
		}
	})
}

// TestManyOnlookers has two hundred callers wait for a hundred orders. A look at all of them is one statement, and the
// orders are read in sets.
func TestManyOnlookers(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint("order ", i))
	}
	g.admit(t, time.Minute, ids...)
	e, counter := b.counted(t, byCallers)
	var told []<-chan answer
	for range 2 {
		for _, id := range ids {
			told = append(told, awaiting(t, e, id, final))
		}
	}
	eventually(t, "they wait", func() bool { return e.Onlookers() == 200 })
	g.advance(t, fsm.Completed, ids...)
	for _, answers := range told {
		a := <-answers
		assert.True(t, a.err == nil && a.order.Status == fsm.Completed, a.err, brief(a.order))
	}
	n := counter.Named("OrdersByNo")
	assert.True(t, n <= 50, n, "statements read 100 orders")
}
