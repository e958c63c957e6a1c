package engine_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// made are the calls that the books have of an order: operation, outcome and code.
func (b *bundle) made(t testing.TB, orderID string) []string {
	t.Helper()
	return column[string](t, b.Pool, `SELECT concat_ws(' ', operation, outcome, code) FROM books.step_calls WHERE order_id = $1 ORDER BY call`, orderID)
}

// lingering is a provider that loses the connection of each charge, goes on working on it until it is asked often enough,
// and tells who asks. No clock has a part in it.
type lingering struct {
	sent, asked atomic.Int32
	doneAt      atomic.Int32 // the look-up that says that it is done
}

// ServeHTTP implements http.Handler.
func (l *lingering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		l.sent.Add(1)
		panic(http.ErrAbortHandler)
	}
	said := `{"state":"in_progress"}`
	if l.asked.Add(1) >= l.doneAt.Load() {
		said = `{"state":"done","reference":"ch_1"}`
	}
	_, _ = w.Write([]byte(said))
}

// openLingering is a shop whose charges are done by such a provider.
func openLingering(t testing.TB, doneAt int32, retry string) (*shop, *lingering) {
	t.Helper()
	l := &lingering{}
	l.doneAt.Store(doneAt)
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	s := openShop(t, 1, quick)
	s.use(t, strings.ReplaceAll(`charge: {executor: http, url: URL/do, undoUrl: URL/undo, lookupUrl: URL/lookup, timeout: 1m, retry: `+retry+`}`, "URL", server.URL))
	return s, l
}

// A provider that has not answered and is at work is asked until it is done. Nobody calls back, so nothing else would tell.
func TestAProviderThatTakesItsTime(t *testing.T) {
	t.Parallel()
	s, l := openLingering(t, 5, `{initial: 1ms, cap: 50ms, maxRetries: 2}`)
	if o := s.process(t, request("slow")); o.Status != "completed" {
		t.Fatal(brief(o))
	}
	want := append([]string{"do unknown connection_lost"}, slices.Repeat([]string{"lookup unknown in_progress"}, 4)...)
	if made := s.made(t, "slow"); !slices.Equal(made, append(want, "lookup done")) || l.sent.Load() != 1 {
		t.Errorf("calls: %q, sent %d times", made, l.sent.Load())
	}
}

// What is in progress for longer than retries and budget last comes to a person, and a retry asks at once.
func TestAProviderThatIsNeverDone(t *testing.T) {
	t.Parallel()
	s, l := openLingering(t, math.MaxInt32, `{initial: 30m, cap: 30m, maxRetries: 1, budget: 0s}`)
	s.admit(t, request("one"))
	s.until(t, "one", "retry")
	s.exec(t, `UPDATE orders SET due_at = now()`)
	held := s.until(t, "one", "attention")
	if made := s.made(t, "one"); !slices.Equal(made, []string{"do unknown connection_lost", "lookup unknown in_progress"}) || text(held.HoldReason) == "" {
		t.Errorf("%s, calls %q", brief(held), made)
	}
	l.doneAt.Store(0)
	s.do(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "ann", Async: true})
	s.until(t, "one", "completed")
	if made := s.made(t, "one"); made[len(made)-1] != "lookup done" {
		t.Errorf("calls: %q", made)
	}
}

// Whoever does not want to wait for a callback asks: by a look-up, or with the same key where there is none.
func TestRetryOfAnOrderThatWaitsForACallback(t *testing.T) {
	t.Parallel()
	for policy, last := range map[string]string{
		`charge: {executor: simulator, url: SIM}`:                             "lookup done",
		`charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo}`: "do done",
	} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.use(t, policy)
			s.faults(t, simulator.Rule{Fault: simulator.CallbackNever, Times: 1})
			s.admit(t, request("one"))
			held := s.until(t, "one", "callback")
			if !slices.Contains(orders.AllowedActions(&held), "retry") {
				t.Errorf("allowed: %q", orders.AllowedActions(&held))
			}
			if o := s.do(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "ann"}); o.Status != "completed" {
				t.Error(brief(o))
			}
			if made := s.made(t, "one"); !slices.Equal(made, []string{"do waiting", last}) {
				t.Errorf("calls: %q", made)
			}
			s.stands(t, "one", "charge live")
		})
	}
	t.Run("that is still owed leaves it waiting", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `charge: {executor: simulator, url: SIM}`)
		s.faults(t, simulator.Rule{Fault: simulator.Async, Delay: time.Hour})
		s.admit(t, request("one"))
		held := s.until(t, "one", "callback")
		s.do(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "ann", Async: true})
		eventually(t, "it was asked, and waits again", func() bool {
			o := s.get(t, "one")
			return o.Seq > held.Seq+1 && text(o.Hold) == "callback"
		})
		if made := s.made(t, "one"); !slices.Equal(made, []string{"do waiting", "lookup waiting"}) {
			t.Errorf("calls: %q", made)
		}
	})
}

// A request that never arrived is sent again at once when the look-up says so, by a call of its own.
func TestARequestThatNeverArrived(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM, timeout: 1m, retry: {initial: 1ms, cap: 1ms}}`)
	s.faults(t, simulator.Rule{Fault: simulator.RefuseConnection, Times: 1})
	if o := s.process(t, request("one")); o.Status != "completed" {
		t.Fatal(brief(o))
	}
	if made := s.made(t, "one"); !slices.Equal(made, []string{"do unknown connection_lost", "lookup retry unseen", "do done"}) {
		t.Errorf("calls: %q", made)
	}
	s.called(t, "one", "charge/do", "charge/do")
}
