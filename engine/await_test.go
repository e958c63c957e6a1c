package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"pawl/engine"
	"pawl/orders"
	"pawl/simulator"
)

// waiters are the two ways to wait for an order.
func waiters(s *shop, in engine.Input) map[string]func(context.Context) (orders.Order, error) {
	return map[string]func(context.Context) (orders.Order, error){
		"process": func(ctx context.Context) (orders.Order, error) { return s.engine.Process(ctx, in) },
		"await":   func(ctx context.Context) (orders.Order, error) { return s.engine.Await(ctx, in.OrderID) },
	}
}

// A callback may come at any moment, whenever it is due at the latest.
func TestACallbackIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"process", "await"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.use(t, `{charge: {executor: simulator, url: SIM}, reserve: {executor: simulator, url: SIM}}`)
			s.faults(t, simulator.Rule{Fault: simulator.Async, Delay: 300 * time.Millisecond})
			in := request("one")
			s.admit(t, in)
			s.until(t, "one", "callback")
			if o, err := waiters(s, in)[way](within(t, patience)); err != nil || o.Status != "completed" {
				t.Errorf("%v, %s", err, brief(o))
			}
		})
	}
}

func TestWhatIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	t.Run("a customer who has to act must be told", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.says(202, `{"reference":"r","action":{"url":"https://bank.example"}}`)
		in := request("one")
		d.admit(t, in)
		d.until(t, "one", "callback")
		for way, wait := range waiters(d.shop, in) {
			if o, err := wait(within(t, patience)); err != nil || text(o.Hold) != "callback" || len(o.Action) == 0 {
				t.Errorf("%s: %v, %s", way, err, brief(o))
			}
		}
	})
	t.Run("a person takes time", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, "charging", "one")
		if o, err := b.engine.Await(within(t, patience), "one"); err != nil || text(o.Hold) != "paused" {
			t.Errorf("%v, %s", err, brief(o))
		}
	})
	t.Run("an order that nobody knows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if _, err := b.engine.Await(within(t, patience), "one"); !errors.Is(err, orders.ErrNotFound) {
			t.Error(err)
		}
	})
}

// Whoever waits for less than it takes is told how far it is.
func TestAwaitEndsInTime(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM}`)
	s.faults(t, simulator.Rule{Fault: simulator.Async, Delay: time.Hour})
	in := request("one")
	s.admit(t, in)
	s.until(t, "one", "callback")
	for way, wait := range waiters(s, in) {
		if o, err := wait(within(t, 200*time.Millisecond)); err != nil || text(o.Hold) != "callback" {
			t.Errorf("%s: %v, %s", way, err, brief(o))
		}
	}
	eventually(t, "nobody is in memory for it", func() bool { return s.engine.InFlight() == 0 })
}
