package engine_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// strict is an endpoint that refuses to undo by a name it never gave, and may refuse to let keys of reservations die.
type strict struct {
	mu    sync.Mutex
	mute  bool     // does not answer charges
	full  bool     // refuses reservations
	stern bool     // refuses to undo what it never reserved
	dos   []string // keys of charges
	undos []string // what undos of charges named

	voids chan struct{} // if any, no undo of a reservation is answered before it is closed
}

func (k *strict) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k.voids != nil && r.URL.Path == "/reserve/undo" {
		<-k.voids
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var body struct{ Reference string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	refuse := func(code string) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"outcome":"refused","code":"` + code + `"}`))
	}
	switch r.URL.Path {
	case "/reserve":
		if k.full {
			w.WriteHeader(http.StatusPaymentRequired)
		}
	case "/reserve/undo":
		if k.stern {
			refuse("nothing_reserved")
		}
	case "/do/undo":
		k.undos = append(k.undos, body.Reference)
		if body.Reference != "" {
			refuse("unknown_reference")
		}
	default:
		k.dos = append(k.dos, r.Header.Get("Idempotency-Key"))
		if k.mute {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
}

func (k *strict) says(change func(*strict)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

// openStrict is a shop whose order "one" has been sent.
func openStrict(t *testing.T, k *strict) *shop {
	t.Helper()
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	s := openShop(t, 1, quick)
	s.use(t, strings.ReplaceAll(`{charge: {executor: http, url: "URL/do", undoUrl: "URL/do/undo", retry: {initial: 30m, cap: 30m}},
		reserve: {executor: http, url: "URL/reserve", undoUrl: "URL/reserve/undo", retry: {initial: 30m, cap: 30m}}}`, "URL", server.URL))
	s.admit(t, request("one"))
	return s
}

// heldBecause waits until the order is held for a person, for this.
func (s *shop) heldBecause(t *testing.T, state fsm.State, reason string) {
	t.Helper()
	o := s.until(t, "one", "attention")
	if o.Status != state || *o.HoldReason != reason {
		t.Fatalf("%s, held: %s", o.Status, *o.HoldReason)
	}
}

// What a person has undone because the endpoint would not is not asked of it again.
func TestRetryAfterAnUndoByHand(t *testing.T) {
	t.Parallel()
	t.Run("of the order", func(t *testing.T) {
		t.Parallel()
		k := &strict{mute: true, full: true}
		s := openStrict(t, k)
		s.until(t, "one", "retry")
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone, Reference: "ticket-7"})
		s.heldBecause(t, fsm.Refunding, "undo_refused: unknown_reference")
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone})
		s.redrives(t, k)
	})
	t.Run("of a late effect", func(t *testing.T) {
		t.Parallel()
		k := &strict{mute: true, full: true}
		s := openStrict(t, k)
		s.until(t, "one", "retry")
		token := s.tokenOf(t, "one")
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
		s.until(t, "one", "failed")
		if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ticket-7"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its undo is refused", s.answers(t, true,
			`SELECT coalesce(bool_or(code = 'unknown_reference'), false) FROM late_undos`))
		s.exec(t, `UPDATE late_undos SET finished_at = now(), code = NULL, detail = 'undone by hand'`)
		s.redrives(t, k)
	})
}

// redrives starts the failed order again and sees it end with one charge, and nothing named again.
func (s *shop) redrives(t *testing.T, k *strict) {
	t.Helper()
	s.until(t, "one", "failed")
	var dos, undos int
	k.says(func(k *strict) { k.full, k.mute, dos, undos = false, false, len(k.dos), len(k.undos) })
	s.verb(t, orders.Retry, nil)
	s.until(t, "one", "completed")
	k.says(func(k *strict) {
		if len(k.dos) != dos+1 || len(k.undos) != undos {
			t.Errorf("charges sent %d, undos %q", len(k.dos)-dos, k.undos[undos:])
		}
	})
}

// An order that is held because an old key is not to die has not called for its step: nobody can say what became of it.
func TestVoidRefused(t *testing.T) {
	t.Parallel()
	const reason = "void_refused: nothing_reserved"
	open := func(t *testing.T) (*shop, *strict) {
		t.Helper()
		k := &strict{full: true, stern: true}
		s := openStrict(t, k)
		s.until(t, "one", "failed")
		k.says(func(k *strict) { k.full, k.dos = false, nil })
		s.verb(t, orders.Retry, nil)
		s.heldBecause(t, fsm.Charging, reason)
		return s, k
	}
	charges := func(t *testing.T, k *strict, want int) {
		t.Helper()
		k.says(func(k *strict) {
			assert.Equal(t, len(k.dos), want, "charges sent")
		})
	}
	t.Run("takes no result of the step", func(t *testing.T) {
		t.Parallel()
		s, k := open(t)
		for _, outcome := range []string{engine.SettledDone, engine.SettledRefused, engine.SettledNotDone} {
			s.refused(t, engine.Request{Verb: orders.StepResult, OrderID: "one", Actor: "t",
				Settle: &engine.Settled{Step: fsm.Charge, Outcome: outcome}}, orders.RefusedState)
		}
		o := s.get(t, "one")
		if allowed := orders.AllowedActions(&o); !slices.Equal(allowed, []string{"cancel", "retry"}) || o.InDoubtSince != nil {
			t.Errorf("allowed: %v, in doubt since %v", allowed, o.InDoubtSince)
		}
		charges(t, k, 0)
	})
	t.Run("is sent again by retry, which charges once it is answered", func(t *testing.T) {
		t.Parallel()
		s, k := open(t)
		s.verb(t, orders.Retry, nil)
		s.heldBecause(t, fsm.Charging, reason)
		charges(t, k, 0)
		k.says(func(k *strict) { k.stern = false })
		s.verb(t, orders.Retry, nil)
		s.until(t, "one", "completed")
		charges(t, k, 1)
	})
	t.Run("holds no order that was canceled meanwhile", func(t *testing.T) {
		t.Parallel()
		k := &strict{full: true, stern: true, voids: make(chan struct{})}
		s := openStrict(t, k)
		s.until(t, "one", "failed")
		s.verb(t, orders.Retry, nil)
		eventually(t, "the old key is being undone", s.answers(t, true,
			`SELECT EXISTS (SELECT FROM step_calls WHERE operation = 'undo' AND step = 'reserve' AND finished_at IS NULL)`))
		s.verb(t, orders.Cancel, nil)
		close(k.voids)
		s.until(t, "one", "canceled")
		charges(t, k, 1)
	})
	t.Run("is left by cancel, a day later too", func(t *testing.T) {
		t.Parallel()
		s, k := open(t)
		s.aDayPasses(t, &keeper{})
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		charges(t, k, 0)
	})
}

// An order of the next generation whose old key is not answered for: its charge was never called for, whatever is asked.
func TestAVoidSaysNothingAboutTheCharge(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) (s *shop, answers *atomic.Bool) {
		t.Helper()
		answers = &atomic.Bool{}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !strings.HasSuffix(r.URL.Path, "/undo"):
				w.WriteHeader(http.StatusPaymentRequired)
			case !answers.Load():
				w.WriteHeader(http.StatusInternalServerError)
			}
		}))
		t.Cleanup(server.Close)
		s = openShop(t, 1, quick)
		s.use(t, strings.ReplaceAll(`charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", retry: {initial: 30m, cap: 30m}}`, "URL", server.URL))
		s.admit(t, request("one"))
		s.until(t, "one", "failed")
		s.verb(t, orders.Retry, nil)
		held := s.until(t, "one", "retry")
		if held.InDoubtSince != nil || held.Generation != 1 {
			t.Errorf("generation %d, in doubt since %v", held.Generation, held.InDoubtSince)
		}
		return s, answers
	}
	t.Run("canceled it was not charged, and the void goes on", func(t *testing.T) {
		t.Parallel()
		s, answers := open(t)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		for _, table := range []string{"charges", "refunds"} {
			s.counts(t, 0, `SELECT count(*) FROM `+table)
		}
		answers.Store(true)
		eventually(t, "the old key is undone", func() bool {
			s.exec(t, `UPDATE late_undos SET due_at = now() WHERE finished_at IS NULL AND code IS NOT NULL`)
			return value[bool](t, s.Pool, `SELECT EXISTS (SELECT FROM books.late_undos WHERE order_id = 'one' AND step = 'charge' AND generation = 0
				AND finished_at IS NOT NULL)`)
		})
		if keys := column[string](t, s.Pool, `SELECT DISTINCT format('%s of generation %s', operation, generation) FROM step_calls WHERE generation > 0`); len(keys) > 0 {
			t.Errorf("called: %q", keys)
		}
		s.verified(t)
	})
	t.Run("nobody can say what became of it", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t)
		for _, outcome := range []string{engine.SettledDone, engine.SettledRefused, engine.SettledNotDone} {
			s.refused(t, engine.Request{Verb: orders.StepResult, OrderID: "one", Actor: "t",
				Settle: &engine.Settled{Step: fsm.Charge, Outcome: outcome}}, orders.RefusedNotCalled)
		}
	})
	t.Run("the ledger does not charge it before the old key is dead", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t)
		s.use(t, "{}")
		s.refused(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "t", ActivePolicy: true}, orders.RefusedPolicySwitch)
	})
}

// A replica that dies in the undo of an old key leaves nothing in doubt that would count as a try: the take-overs count.
func TestAVoidThatKillsItsDriverIsHeld(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	g := newGhost(database.Pool)
	g.admit(t, time.Minute, "one")
	for calls := 0; ; calls++ {
		o := g.stored(t, "one")[0]
		if o.Hold != nil {
			if calls != 4 || o.InDoubtSince != nil {
				t.Errorf("held after %d calls, in doubt since %v", calls, o.InDoubtSince)
			}
			return
		}
		rows, err := g.query.CallsBegin(t.Context(), db.CallsBeginParams{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq,
			Step: "charge", Operation: "undo", UndoReferences: []string{""}, Generation: new(int32(0)), CallSeconds: 1, LeaseSeconds: 1})
		if err != nil || len(rows) != 1 {
			t.Fatalf("%v, begun: %v", err, rows)
		}
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), `UPDATE orders SET due_at = now()`)))
		g.claim(t, "one")
	}
}

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
	s.do(t, engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true})
	eventually(t, "its charge is being undone", s.answers(t, true,
		`SELECT status = 'refunding' AND in_doubt_since IS NOT NULL FROM orders`))
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
				s.do(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "t", Async: true})
			}
			s.until(t, "one", "callback")
			if _, err := s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "not_done"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the answer is used", s.answers(t, true,
				`SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`))
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
	s.do(t, engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true})
	open()
	var o orders.Order
	eventually(t, "it is at rest", func() bool { o = s.get(t, "one"); return o.Hold != nil || o.Status.Final() })
	assert.Equal(t, o.Status, "canceled", brief(o))
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
	s.do(t, engine.Request{Verb: orders.Pause, OrderID: "one", Actor: "t", Async: true})
	s.until(t, "one", "paused")
	token := s.tokenOf(t, "one")
	for _, outcome := range []string{"not_done", "done"} {
		r, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: outcome})
		assert.NoError(t, err)
		if !r.Accepted {
			t.Errorf("%s is not accepted: %s", outcome, r.Reason)
		}
	}
	s.do(t, engine.Request{Verb: orders.Resume, OrderID: "one", Actor: "t", Async: true})
	eventually(t, "the answer is used", s.answers(t, true, `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`))
	s.do(t, engine.Request{Verb: orders.Cancel, OrderID: "one", Actor: "t", Async: true})
	reaches(t, s.Pool, "one", "canceled")
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
	assert.NoError(t, assert.Err(s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "done"})))
	open()
	o := s.process(t, request("one"))
	eventually(t, "what was reported as done stands, or is undone", func() bool {
		return o.Status == "completed" || value[int](t, s.Pool, `SELECT (SELECT count(*) FROM step_calls WHERE operation = 'undo')
			+ (SELECT count(*) FROM late_undos)`) > 0
	})
}
