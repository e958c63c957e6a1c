package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// TestStorm has everything go wrong at once: four engines, one of them on a line that loses requests and replies, a
// provider with every fault it knows, callers who leave, people who cancel, pause and resume, deadlines, permits. When it
// is over, every order ends, nothing stands that must not, and no call pool has lost a permit.
func TestStorm(t *testing.T) {
	t.Parallel()
	orders := times(60, 150)
	s := openShop(t, 3, engine.Config{RecoveryInterval: often, Lease: time.Second})
	line := newProxy(t, s.URL)
	t.Cleanup(func() { line.On(nil) })
	s.engines = append(s.engines, startEngine(t, line.URL, s.cfg))
	step := "{executor: simulator, url: SIM, timeout: 1s, inFlight: 20, queue: 100, callbackTimeout: 500ms, " +
		"retry: {initial: 5ms, cap: 100ms, maxRetries: 4, budget: 5s}, breaker: {failures: 10, open: 50ms}}"
	s.use(t, "charge: "+step+"\nreserve: "+step+"\nconfirm: "+step+"\nconcurrency: {by: item, limit: 30}\nreservationTtl: 3s\n")
	s.faults(t, allFaults()...)
	line.On(func(string) fate {
		if rand.IntN(100) < 4 {
			return []fate{loseRequest, loseReply, loseClient}[rand.IntN(3)]
		}
		return passes
	})
	var people sync.WaitGroup
	for first := range 8 {
		people.Go(func() {
			for i := first; i < orders; i += 8 {
				s.harass(t, i)
			}
		})
	}
	people.Wait()
	s.faults(t)
	line.On(nil)
	eventually(t, "every order has ended", func() bool { return s.comfort(t) == 0 })
	for _, e := range s.engines {
		eventually(t, "every permit is free", func() bool {
			for _, l := range e.CallPools() {
				if l.InFlight != 0 || l.Queued != 0 {
					return false
				}
			}
			return true
		})
	}
}

// allFaults is a little of each fault.
func allFaults() (rules []simulator.Rule) {
	for _, fault := range []simulator.Fault{
		simulator.Decline, simulator.Slow, simulator.Hang, simulator.RefuseConnection, simulator.TimeoutBefore, simulator.TimeoutAfter,
		simulator.CutAfter, simulator.Error, simulator.ErrorAfter, simulator.NotDone, simulator.RateLimit, simulator.Async,
		simulator.CallbackTwice, simulator.CallbackLate, simulator.CallbackNever, simulator.CallbackBefore, simulator.AnswerTwice,
	} {
		rules = append(rules, simulator.Rule{Fault: fault, Fraction: 0.03, Delay: time.Duration(rand.IntN(150)) * time.Millisecond})
	}
	for _, fault := range []simulator.Fault{simulator.Error, simulator.TimeoutAfter, simulator.NotDone} {
		rules = append(rules, simulator.Rule{Fault: fault, Fraction: 0.05, Operation: "undo"})
	}
	return rules
}

// harass sends an order, leaves soon, and asks things of it and of others before it.
func (s *shop) harass(t *testing.T, i int) {
	t.Helper()
	in := request(fmt.Sprintf("order %d", i))
	in.Item = fmt.Sprintf("item %d", i%7)
	if i%10 == 0 {
		in.CompleteBy = time.Now().Add(time.Duration(rand.IntN(1500)) * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+rand.IntN(300))*time.Millisecond)
	defer cancel()
	_, _ = s.anyone().Process(ctx, in) // how it ends is looked at in the end
	verbs := []orders.Verb{orders.Cancel, orders.Pause, orders.Resume, orders.Retry}
	for range rand.IntN(6) {
		s.ask(t, verbs[rand.IntN(len(verbs))], fmt.Sprintf("order %d", max(0, i-rand.IntN(20))))
	}
}

// ask asks somebody, and does not mind a no.
func (s *shop) ask(t *testing.T, verb orders.Verb, orderID string) {
	t.Helper()
	_, _ = s.anyone().Do(t.Context(), engine.Request{OrderID: orderID, Verb: verb, Actor: "storm", Async: true})
}

// comfort lets go on what a person can let go on, and returns how many orders are left.
func (s *shop) comfort(t *testing.T) int {
	t.Helper()
	for _, id := range column[string](t, s.Pool, `SELECT order_id FROM orders WHERE hold IN ('paused', 'attention')`) {
		s.ask(t, orders.Resume, id)
		s.ask(t, orders.Retry, id)
	}
	return value[int](t, s.Pool, `SELECT count(*) FROM orders WHERE ended_as IS NULL`)
}
