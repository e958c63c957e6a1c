package engine_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
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
		eventually(t, "its undo is refused", func() bool {
			return value[bool](t, s.Pool, `SELECT coalesce(bool_or(code = 'unknown_reference'), false) FROM late_undos`)
		})
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
			if len(k.dos) != want {
				t.Errorf("charges sent: %d", len(k.dos))
			}
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
		eventually(t, "the old key is being undone", func() bool {
			return value[bool](t, s.Pool, `SELECT EXISTS (SELECT FROM step_calls WHERE operation = 'undo' AND step = 'reserve' AND finished_at IS NULL)`)
		})
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
