package engine_test

import (
	"testing"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// What was in doubt for 22 hours is in doubt for 22 hours when it is undone, too: the provider
// forgets the key 24 hours after the first call, and says of an unknown key that nothing stands.
func TestStopKeepsTheAgeOfADoubt(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}}`)
	s.faults(t, simulator.Rule{Fault: simulator.CutAfter}, simulator.Rule{Fault: simulator.Hang, Operation: "undo"})
	s.admit(t, request("one"))
	s.until(t, "one", "retry")
	s.exec(t, `UPDATE orders SET in_doubt_since = in_doubt_since - interval '22 hours'`)
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its charge is being undone", func() bool {
		return value[bool](t, s.Pool, `SELECT status = 'refunding' AND in_doubt_since IS NOT NULL FROM orders`)
	})
	age := value[float64](t, s.Pool, `SELECT extract(epoch FROM now() - in_doubt_since)::float8 / 3600 FROM orders`)
	if age < 22 {
		t.Errorf("in doubt for %.2f hours: the undo would be sent until the key is 45 hours old", age)
	}
	if o := s.get(t, "one"); o.ChargeInDoubt == nil || !*o.ChargeInDoubt {
		t.Error("the charge is shown as one that was made")
	}
	s.faults(t)
}

// retry begins a new window of tries; that an earlier call is in doubt does not change by it.
func TestNotDoneByCallbackAfterARetryLeavesTheFirstCallInDoubt(t *testing.T) {
	t.Parallel()
	for _, verb := range []bool{false, true} {
		name := "without a retry by a person"
		if verb {
			name = "after a retry by a person"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}}`)
			s.faults(t, simulator.Rule{Fault: simulator.Error, Times: 1}, simulator.Rule{Fault: simulator.CallbackNever})
			s.admit(t, request("one")) // the answer to the first call says nothing: it may still have an effect
			s.until(t, "one", "retry")
			if !verb {
				s.exec(t, `UPDATE orders SET due_at = now()`)
			} else {
				if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "t", Async: true}); err != nil {
					t.Fatal(err)
				}
			}
			s.until(t, "one", "callback")
			if _, err := s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "not_done"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the answer is used", func() bool {
				return value[bool](t, s.Pool, `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`)
			})
			if !value[bool](t, s.Pool, `SELECT in_doubt_since IS NOT NULL FROM orders`) {
				t.Error("nothing is in doubt; a cancel would end the order without an undo, and the first call may still arrive")
			}
		})
	}
}

// Somebody asked to stop during the last try: there is no next one to wait for, and nobody to ask.
func TestCancelDuringTheLastTryUndoesTheStep(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 1ms, maxRetries: 0, budget: 0s}}`)
	s.faults(t, simulator.Rule{Fault: simulator.CutAfter, Times: 1})
	called, open := s.door.shut(t, "/charge")
	s.admit(t, request("one"))
	eventually(t, "it is called for", func() bool { return called.Load() == 1 })
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true}); err != nil {
		t.Fatal(err)
	}
	open()
	var o orders.Order
	eventually(t, "it is at rest", func() bool { o = s.get(t, "one"); return o.Hold != nil || o.Status.Final() })
	if o.Status != "canceled" {
		t.Errorf("%s, held: %s", o.Status, *o.HoldReason)
	}
}

// A provider that first says not done, and then done, before we had the time for the first.
func TestDoneAfterANotDoneThatWasNotUsedYet(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	// The reservation is never answered: the order is still there to be canceled once the charge is done.
	s.use(t, `{charge: {executor: simulator, url: SIM, timeout: 5s, retry: {initial: 30s, cap: 30s}}, reserve: {executor: simulator, url: SIM}}`)
	s.faults(t, simulator.Rule{Fault: simulator.CallbackNever})
	s.admit(t, request("one"))
	s.until(t, "one", "callback")
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Pause, OrderID: "one", Actor: "t", Async: true}); err != nil {
		t.Fatal(err)
	}
	s.until(t, "one", "paused")
	token := s.tokenOf(t, "one")
	for _, outcome := range []string{"not_done", "done"} {
		r, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: outcome})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Accepted {
			t.Errorf("%s is not accepted: %s", outcome, r.Reason)
		}
	}
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Resume, OrderID: "one", Actor: "t", Async: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer is used", func() bool {
		return value[bool](t, s.Pool, `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`)
	})
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is canceled", func() bool { return status(t, s.Pool, "one") == "canceled" })
	if n := value[int](t, s.Pool, `SELECT count(*) FROM step_calls WHERE step = 'charge' AND operation = 'undo'`) + value[int](t, s.Pool, `SELECT count(*) FROM late_undos`); n == 0 {
		t.Error("canceled with a charge that was reported as done, and never undone")
	}
}

// A step that a callback reports as done while the call is answered with a refusal.
func TestDoneByCallbackBeforeARefusalIsUndone(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM}`)
	s.faults(t, simulator.Rule{Fault: simulator.Decline})
	_, open := s.door.shut(t, "/charge")
	s.admit(t, request("one"))
	if _, err := s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "done"}); err != nil {
		t.Fatal(err)
	}
	open()
	o := s.process(t, request("one"))
	eventually(t, "what was reported as done stands, or is undone", func() bool {
		return o.Status == "completed" || value[int](t, s.Pool, `SELECT (SELECT count(*) FROM step_calls WHERE operation = 'undo')
			+ (SELECT count(*) FROM late_undos)`) > 0
	})
}
