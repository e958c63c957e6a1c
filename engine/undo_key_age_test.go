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

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
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
		if len(k.live) != 1 {
			t.Errorf("charged: %v", k.live)
		}
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
		eventually(t, "its undo was not answered", func() bool {
			o := s.get(t, "one")
			return o.Status == fsm.Refunding && o.Hold != nil
		})
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.dead = false })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.until(t, "one", "attention")
		since := value[string](t, s.Pool, `SELECT in_doubt_since::text FROM orders`)
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledNotDone})
		eventually(t, "the answer is used", func() bool {
			return value[bool](t, s.Pool, `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`)
		})
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
		eventually(t, "its undo was not answered", func() bool {
			o := s.get(t, "one")
			return o.Status == fsm.Refunding && o.Hold != nil
		})
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
		if names := k.named(); !slices.Equal(names, []string{"ch_1"}) {
			t.Errorf("named: %q", names)
		}
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
		eventually(t, "its undo was not answered", func() bool {
			o := s.get(t, "one")
			return o.Status == fsm.Refunding && o.Hold != nil
		})
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
	eventually(t, "its undo was not answered", func() bool {
		o := s.get(t, "one")
		return o.Status == fsm.Refunding && o.Hold != nil
	})
	if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ch_1"}}); err != nil {
		t.Fatal(err)
	}
	k.says(func(k *keeper) { k.dead = false })
	s.exec(t, `UPDATE orders SET due_at = now()`)
	s.undone(t, k, fsm.Canceled)
	if names := k.named(); !slices.Equal(names, []string{""}) {
		t.Errorf("named: %q", names)
	}
}
