package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// atOnce sends requests from a goroutine each and counts the answers.
func (b *bundle) atOnce(t testing.TB, inputs []engine.Input) (completed, conflicts int) {
	t.Helper()
	answers := ask(t, b.engine, inputs...)
	for range inputs {
		a := <-answers
		var conflict *orders.Conflict
		switch {
		case a.err == nil && a.order.Status == fsm.Completed:
			completed++
			b.sameAsStored(t, a.order)
		case errors.As(a.err, &conflict):
			conflicts++
		default:
			t.Errorf("%q: %v, %s", a.orderID, a.err, a.order.Status)
		}
	}
	return completed, conflicts
}

func TestProcessAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("fifty callers with one id make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one")}, 50)); completed != 50 || conflicts != 0 {
			t.Errorf("%d completed, %d conflicts", completed, conflicts)
		}
		if admitted, moves := b.engine.Stats.Admitted.Load(), b.engine.Stats.Moves.Load(); admitted != 1 || moves != 3 {
			t.Errorf("%d admitted, %d moves", admitted, moves)
		}
		proveBooks(t, b.Pool)
	})
	t.Run("fifty callers with one id and two amounts make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := request("one")
		other.Amount = decimal.MustParse("1")
		if completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one"), other}, 25)); completed != 25 || conflicts != 25 {
			t.Errorf("%d completed, %d conflicts", completed, conflicts)
		}
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges`); n != 1 {
			t.Errorf("%d charges", n)
		}
	})
	t.Run("different ids have nothing to do with each other", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if completed, _ := b.atOnce(t, requests("order", 200)); completed != 200 {
			t.Errorf("%d completed", completed)
		}
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges`); n != 200 {
			t.Errorf("%d charges", n)
		}
		proveBooks(t, b.Pool)
	})
}

// inVain waits for an order that does not end, just long enough for the database to say how far it is.
func inVain(t testing.TB, wait func(context.Context) (orders.Order, error)) (order orders.Order, err error) {
	t.Helper()
	for limit := 10 * time.Millisecond; limit < patience; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		order, err = wait(ctx)
		cancel()
		if !errors.Is(err, orders.ErrUnavailable) {
			break
		}
	}
	return order, err
}

func TestProcessUnfinished(t *testing.T) {
	t.Parallel()
	t.Run("a caller who has waited long enough is told how far it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "elsewhere")
		g.advance(t, fsm.Reserving, "elsewhere")
		b.writesNothing(t, func() {
			order, err := inVain(t, func(ctx context.Context) (orders.Order, error) { return b.engine.Process(ctx, request("elsewhere")) })
			if err != nil || order.Status != fsm.Reserving || order.ChargedAt == nil {
				t.Errorf("%v %+v", err, order)
			}
			b.sameAsStored(t, order)
		})
		g.advance(t, fsm.Completed, "elsewhere")
		b.sameAsStored(t, b.process(t, request("elsewhere")))
	})
	t.Run("a caller with other input who has waited long enough is told so", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		newGhost(b.Pool).admit(t, time.Minute, "elsewhere")
		in := request("elsewhere")
		in.Item = "gadget"
		_, err := inVain(t, func(ctx context.Context) (orders.Order, error) { return b.engine.Process(ctx, in) })
		if conflict := (*orders.Conflict)(nil); !errors.As(err, &conflict) || conflict.Order.Status != fsm.Charging {
			t.Error(err)
		}
	})
	t.Run("a caller who leaves does not stop the order", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.engine.Process(ctx, request("left")); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err) // no error: the order was faster than the caller
		}
		if order := b.process(t, request("left")); order.Status != fsm.Completed || order.Seq != 4 {
			t.Errorf("%+v", order)
		}
	})
	t.Run("one that was left behind is finished by whoever asks", func(t *testing.T) {
		t.Parallel()
		for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
			b := setupWith(t, byCallers)
			g := newGhost(b.Pool)
			g.admit(t, time.Minute, "left behind")
			g.advance(t, state, "left behind")
			g.letGo(t, "left behind")
			if order := b.process(t, request("left behind")); order.Status != fsm.Completed || order.Fence != 2 {
				t.Errorf("left %s: %+v", state, order)
			}
			proveBooks(t, b.Pool)
		}
	})
	t.Run("one that is held is told at once, and stays as it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, fsm.Reserving, "held")
		b.writesNothing(t, func() {
			if order := b.process(t, request("held")); order.Status != fsm.Reserving || text(order.Hold) != "paused" {
				t.Errorf("%+v", order)
			}
		})
	})
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	order, err := b.engine.Admit(t.Context(), request("stored"))
	if err != nil || order.OrderNo == 0 || order.OrderID != "stored" {
		t.Fatalf("%v %+v", err, order)
	}
	eventually(t, "the order is completed without its caller", func() bool { return status(t, b.Pool, "stored") == "completed" })
	order, err = b.engine.Admit(t.Context(), request("stored"))
	if err != nil || order.Status != fsm.Completed {
		t.Errorf("%v %+v", err, order)
	}
}

func TestTurnedAway(t *testing.T) {
	t.Parallel()
	t.Run("when there are too many orders in memory", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{MaxInFlight: 1})
		b.process(t, request("known"))
		newGhost(b.Pool).admit(t, time.Minute, "elsewhere")
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := b.engine.Process(ctx, request("elsewhere"))
			done <- err
		}()
		eventually(t, "the first is in memory", func() bool { return b.engine.InFlight() == 1 })
		b.writesNothing(t, func() {
			if o, err := b.engine.Process(t.Context(), request("known")); err != nil || o.Status != fsm.Completed {
				t.Errorf("an order that is stored: %s, %v", o.Status, err)
			}
			if _, err := b.engine.Process(t.Context(), request("too many")); !errors.Is(err, orders.ErrOverloaded) {
				t.Error(err)
			}
		})
		if n := b.engine.Stats.Overloaded.Load(); n != 1 {
			t.Errorf("%d counted", n)
		}
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("when the engine stops", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		e := b.replica(t, engine.Config{})
		stop(t, e)
		b.writesNothing(t, func() {
			_, processed := e.Process(t.Context(), request("late"))
			_, admitted := e.Admit(t.Context(), request("late"))
			_, canceled := e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "late"})
			for _, err := range []error{processed, admitted, canceled, e.Ready(t.Context())} {
				if !errors.Is(err, orders.ErrStopping) {
					t.Error(err)
				}
			}
		})
	})
}

// An order deleted while somebody waits for it is gone for its watcher, and new for a
// request that brings it again.
func TestOrderDeletedWhileWatched(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Minute, "watched")
	outcome := make(chan error, 1)
	go func() {
		_, err := b.engine.Do(context.WithoutCancel(t.Context()), engine.Request{Verb: orders.Cancel, OrderID: "watched"})
		outcome <- err
	}()
	eventually(t, "the stop is written", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE stop_requested IS NOT NULL`) == 1
	})
	b.exec(t, `SET LOCAL pawl.archive = on; DELETE FROM transitions; DELETE FROM orders`)
	if err := <-outcome; !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("the watcher is told %v", err)
	}
	if o := b.process(t, request("watched")); o.Status != fsm.Completed {
		t.Errorf("asked for again it is %s", o.Status)
	}
}
