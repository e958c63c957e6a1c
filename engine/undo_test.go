package engine_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// keeper is an endpoint that charges each key once, undoes by reference or by key, and forgets keys when it may: an undo
// that finds nothing under its key is a success, a reference is good for as long as its charge stands.
type keeper struct {
	mu     sync.Mutex
	mute   bool              // charges without answering
	dead   bool              // undos are not done and not answered
	shy    bool              // does not say what it calls a charge
	full   bool              // has nothing to reserve
	keys   map[string]string // of dos: the charge, or nothing where it was undone
	live   map[string]bool   // charges
	undos  map[string]string // bodies, by the key of the undo
	faults []string
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var body struct{ UndoKey, Reference string }
	var text json.RawMessage
	if json.NewDecoder(r.Body).Decode(&text) != nil || json.Unmarshal(text, &body) != nil {
		k.faults = append(k.faults, "a body that is no JSON")
	}
	switch key := r.Header.Get("Idempotency-Key"); {
	case r.URL.Path == "/reserve" && k.full:
		w.WriteHeader(http.StatusPaymentRequired)
	case r.URL.Path == "/reserve":
		w.WriteHeader(http.StatusTooManyRequests)
	case strings.HasSuffix(r.URL.Path, "/undo"):
		if known, again := k.undos[key]; again && known != string(text) {
			k.faults = append(k.faults, fmt.Sprintf("another body under the same key: %s, then %s", known, text))
		}
		k.undos[key] = string(text)
		if k.dead {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		delete(k.live, body.Reference)
		delete(k.live, k.keys[body.UndoKey])
		k.keys[body.UndoKey] = ""
	default:
		k.charge(w, key)
	}
}

func (k *keeper) charge(w http.ResponseWriter, key string) {
	name, known := k.keys[key]
	switch {
	case known && name == "":
		w.WriteHeader(http.StatusPaymentRequired)
		return
	case !known:
		name = fmt.Sprintf("ch_%d", len(k.keys)+1)
		k.keys[key], k.live[name] = name, true
	}
	switch {
	case k.mute:
		w.WriteHeader(http.StatusInternalServerError)
	case !k.shy:
		fmt.Fprintf(w, `{"reference":%q}`, name)
	}
}

// says changes what it does from now on.
func (k *keeper) says(change func(*keeper)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

// named is what undos named, if anything.
func (k *keeper) named() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, text := range k.undos {
		var body struct{ Reference string }
		_ = json.Unmarshal([]byte(text), &body)
		names = append(names, body.Reference)
	}
	return names
}

// openKeeper is a shop whose charge and reservation are done by a keeper. An order comes to rest in charging if the
// keeper is mute, else in reserving.
func openKeeper(t *testing.T, k *keeper) *shop {
	t.Helper()
	return openKeeperWith(t, k, quick)
}

func openKeeperWith(t *testing.T, k *keeper, cfg engine.Config) *shop {
	t.Helper()
	k.keys, k.live, k.undos = map[string]string{}, map[string]bool{}, map[string]string{}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	s := openShop(t, 1, cfg)
	const policy = `{charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", retry: {initial: 30m, cap: 30m}},
		reserve: {executor: http, url: "URL/reserve", undoUrl: "URL/reserve/undo", retry: {initial: 30m, cap: 30m}}}`
	s.use(t, strings.ReplaceAll(policy, "URL", server.URL))
	s.admit(t, request("one"))
	s.until(t, "one", "retry")
	return s
}

// aDayPasses makes everything 26 hours older; the keeper forgets its keys.
func (s *shop) aDayPasses(t *testing.T, k *keeper) {
	t.Helper()
	s.exec(t, `UPDATE orders SET in_doubt_since = in_doubt_since - interval '26 hours'`)
	s.exec(t, `UPDATE step_calls SET started_at = started_at - interval '26 hours', finished_at = finished_at - interval '26 hours'`)
	k.says(func(k *keeper) { clear(k.keys) })
}

func (s *shop) verb(t *testing.T, v orders.Verb, settle *engine.Settled) {
	t.Helper()
	if _, err := s.engine.Do(t.Context(), engine.Request{Verb: v, OrderID: "one", Actor: "t", RequestID: rand.Text(), Settle: settle, Async: true}); err != nil {
		t.Fatalf("%s: %v", v, err)
	}
}

// undone checks that an order has come back and nothing is charged.
func (s *shop) undone(t *testing.T, k *keeper, status fsm.State) {
	t.Helper()
	s.until(t, "one", string(status))
	k.says(func(k *keeper) {
		if len(k.live) > 0 || len(k.faults) > 0 {
			t.Errorf("%s, and charged: %v; %v", status, k.live, k.faults)
		}
	})
}

// heldForgotten checks that an order waits on its way back, and says why; what has been undone by hand then ends it.
func (s *shop) heldForgotten(t *testing.T, k *keeper, status fsm.State) {
	t.Helper()
	held := s.until(t, "one", "attention")
	if held.Status != fsm.Refunding || held.HoldReason == nil || !strings.HasPrefix(*held.HoldReason, orders.RefusedUnknown) {
		t.Errorf("%s, held: %v", held.Status, held.HoldReason)
	}
	k.says(func(k *keeper) {
		assert.Equal(t, len(k.live), 1, "charged", k.live)
		clear(k.live)
	})
	s.refused(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "t"}, orders.RefusedUnknown)
	s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone})
	s.undone(t, k, status)
}

// What an endpoint forgot is a success to undo: the charge stands, and the books say refunded.
func TestAnOldUndoDoesNotGoByAForgottenKey(t *testing.T) {
	t.Parallel()
	done := &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone}
	t.Run("of an order that was paused for a day", func(t *testing.T) {
		t.Parallel()
		k := &keeper{shy: true}
		s := openKeeper(t, k)
		s.verb(t, orders.Pause, nil)
		s.aDayPasses(t, k)
		s.verb(t, orders.Cancel, nil)
		s.heldForgotten(t, k, fsm.Canceled)
	})
	t.Run("of an order whose reservation is refused a day later", func(t *testing.T) {
		t.Parallel()
		k := &keeper{shy: true}
		s := openKeeper(t, k)
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.full = true })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.heldForgotten(t, k, fsm.Failed)
	})
	t.Run("of a canceled order that a person says was charged", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeper(t, k)
		s.aDayPasses(t, k)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "attention")
		s.verb(t, orders.StepResult, done)
		s.heldForgotten(t, k, fsm.Canceled)
	})
	t.Run("that a person says was not done", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true, dead: true}
		s := openKeeper(t, k)
		s.verb(t, orders.Cancel, nil)
		s.undoUnanswered(t)
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.dead = false })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.until(t, "one", "attention")
		since := value[string](t, s.Pool, `SELECT in_doubt_since::text FROM orders`)
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledNotDone})
		eventually(t, "the answer is used", s.answers(t, true, `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`))
		if now := value[string](t, s.Pool, `SELECT coalesce(in_doubt_since::text, 'not in doubt') FROM orders`); now != since {
			t.Errorf("in doubt since %s, then %s", since, now)
		}
		s.exec(t, `UPDATE orders SET due_at = now() WHERE hold = 'retry'`)
		s.heldForgotten(t, k, fsm.Canceled)
	})
	t.Run("that is paused: it does not resume", func(t *testing.T) {
		t.Parallel()
		k := &keeper{shy: true, dead: true, full: true}
		s := openKeeper(t, k)
		s.undoUnanswered(t)
		s.verb(t, orders.Pause, nil)
		s.until(t, "one", "paused")
		s.exec(t, `UPDATE orders SET in_doubt_since = NULL`) // only the charge is old
		s.aDayPasses(t, k)
		s.refused(t, engine.Request{Verb: orders.Resume, OrderID: "one", Actor: "t"}, orders.RefusedUnknown)
	})
}

// What has a name at the endpoint is taken back by it, however long the key is forgotten.
func TestAnOldUndoGoesByReference(t *testing.T) {
	t.Parallel()
	t.Run("that the charge was answered with", func(t *testing.T) {
		t.Parallel()
		k := &keeper{}
		s := openKeeper(t, k)
		s.verb(t, orders.Pause, nil)
		s.aDayPasses(t, k)
		s.verb(t, orders.Cancel, nil)
		s.undone(t, k, fsm.Canceled)
		assert.Equal(t, k.named(), []string{"ch_1"}, "named")
	})
	t.Run("that a person gave", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeper(t, k)
		s.aDayPasses(t, k)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "attention")
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone, Reference: "ch_1"})
		s.undone(t, k, fsm.Canceled)
	})
	t.Run("after a day of undos that were not answered", func(t *testing.T) {
		t.Parallel()
		k := &keeper{dead: true}
		s := openKeeper(t, k)
		s.verb(t, orders.Cancel, nil)
		s.undoUnanswered(t)
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.dead = false })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.undone(t, k, fsm.Canceled)
	})
}

// An endpoint compares bodies: an undo that began without a name goes on without one, though it has become known.
func TestAnUndoKeepsTheBodyItBeganWith(t *testing.T) {
	t.Parallel()
	k := &keeper{mute: true, dead: true}
	s := openKeeper(t, k)
	token := s.tokenOf(t, "one")
	s.verb(t, orders.Cancel, nil)
	s.undoUnanswered(t)
	s.reports(t, token, "ch_1")
	k.says(func(k *keeper) { k.dead = false })
	s.exec(t, `UPDATE orders SET due_at = now()`)
	s.undone(t, k, fsm.Canceled)
	assert.Equal(t, k.named(), []string{""}, "named")
}

// To find a payment intent by a key that Stripe has forgotten is to make another one, and to cancel that.
func TestAnOldUndoAtStripe(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"goes by the payment intent": true, "makes no other one where that is not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stock := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
			t.Cleanup(stock.Close)
			s, b := openShop(t, 1, quick), openBank(t, "succeeded")
			s.useStripe(t, b, fmt.Sprintf("}\nreserve: {executor: http, url: %q, undoUrl: %q, retry: {initial: 30m, cap: 30m}}", stock.URL, stock.URL+"/undo"))
			s.admit(t, paid("one"))
			s.until(t, "one", "retry")
			s.aDayPasses(t, &keeper{})
			ends := "canceled"
			if !known {
				s.exec(t, `UPDATE charges SET reference = NULL`)
				s.exec(t, `UPDATE step_calls SET reference = NULL`)
				ends = "attention"
			}
			s.verb(t, orders.Cancel, nil)
			s.until(t, "one", ends)
			b.mu.Lock()
			defer b.mu.Unlock()
			if n := len(slices.DeleteFunc(slices.Clone(b.requests), func(r string) bool { return r != "POST " })); n != 1 {
				t.Errorf("%d payment intents are asked for: %s", n, strings.Join(b.requests, ", "))
			}
		})
	}
}

func TestAnOldLateUndo(t *testing.T) {
	t.Parallel()
	t.Run("that goes by a forgotten key is not sent, and says so", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeper(t, k)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { clear(k.undos) })
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		eventually(t, "it says that a person must", s.answers(t, true,
			`SELECT coalesce(code = 'outcome_unknown' AND detail <> '' AND finished_at IS NULL, false) FROM books.late_undos`))
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
	t.Run("of what has a name goes by it", func(t *testing.T) {
		t.Parallel()
		k := &keeper{}
		s := openKeeper(t, k)
		k.says(func(k *keeper) { k.full = true })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.until(t, "one", "failed")
		s.exec(t, `UPDATE step_calls SET operation = 'lookup' WHERE operation = 'undo'`) // as if none had been sent
		s.aDayPasses(t, k)
		k.says(func(k *keeper) {
			clear(k.undos)
			k.live["ch_1"] = true
		})
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		eventually(t, "it is undone", s.answers(t, true, `SELECT finished_at IS NOT NULL FROM late_undos`))
		s.undone(t, k, fsm.Failed)
	})
	t.Run("says the same on every call", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true, dead: true}
		s := openKeeper(t, k)
		token := s.tokenOf(t, "one")
		s.verb(t, orders.Cancel, nil)
		s.undoUnanswered(t)
		k.says(func(k *keeper) { k.dead = false })
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		s.reports(t, token, "ch_1")
		eventually(t, "it is undone again", s.answers(t, true,
			`SELECT EXISTS (SELECT FROM late_undos WHERE finished_at IS NOT NULL)`))
		s.undone(t, k, fsm.Canceled)
	})
}

// A policy can't make a provider remember for longer what it was sent under another one.
func TestRetryUnderAPolicyWithALongerRetention(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
	b := remote(t, engine.Config{}, p.deaf())
	b.process(t, request("order"))
	active := asked(orders.Retry)
	active.ActivePolicy = true
	b.activate(t, strings.Replace(p.deaf(), "  timeout", "  keyRetention: 72h\n  timeout", 1))
	b.refused(t, active, orders.RefusedPolicySwitch)
	b.activate(t, strings.Replace(p.deaf(), "  timeout", "  keyRetention: 23h\n  timeout", 1))
	active.DryRun = true
	b.do(t, active)
}

// A machine sleeps for a day, wakes up, and its clock has not heard of it yet: what it is about to send is a day older than
// it thinks. The statement that begins the call knows.
func TestAMachineThatSlept(t *testing.T) {
	t.Parallel()
	hourly := engine.Config{RecoveryInterval: time.Hour} // the database's time is not heard by the way
	t.Run("does not charge by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeperWith(t, k, hourly)
		s.aDayPasses(t, k)
		s.engine.Sleeps(26 * time.Hour)
		s.verb(t, orders.Retry, nil)
		s.until(t, "one", "attention")
		k.says(func(k *keeper) {
			if len(k.keys) > 0 {
				t.Errorf("a key was sent that had been forgotten: %v", k.keys)
			}
		})
		if reason := *s.get(t, "one").HoldReason; reason[:len(orders.RefusedUnknown)] != orders.RefusedUnknown {
			t.Error(reason)
		}
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
		s.until(t, "one", "failed")
	})
	t.Run("does not undo by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true, dead: true}
		s := openKeeperWith(t, k, hourly)
		s.verb(t, orders.Cancel, nil)
		s.undoUnanswered(t)
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.dead = false })
		s.engine.Sleeps(26 * time.Hour)
		s.verb(t, orders.Retry, nil)
		s.heldForgotten(t, k, fsm.Canceled)
	})
	t.Run("does not undo a late effect by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeperWith(t, k, hourly)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { clear(k.undos) })
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		s.engine.Sleeps(26 * time.Hour)
		s.engine.UndoLate()
		if !value[bool](t, s.Pool, `SELECT coalesce(code = 'outcome_unknown' AND finished_at IS NULL, false) FROM late_undos`) {
			t.Error("it does not say that a person must")
		}
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
}
