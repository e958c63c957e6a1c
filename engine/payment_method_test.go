package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
)

// till is an endpoint that charges with one payment method alone, and keeps what it was sent, by key.
type till struct {
	mu     sync.Mutex
	takes  string
	bodies map[string]string
	faults []string
	used   map[string]string // payment methods, as step operation generation
	tokens map[string]string // callback URLs, in the same way
}

func (k *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var body struct {
		Step, Operation, PaymentMethod, CallbackURL string
		Generation                                  int
	}
	_ = json.Unmarshal(text, &body)
	k.mu.Lock()
	defer k.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if known, again := k.bodies[key]; again && known != string(text) {
		k.faults = append(k.faults, fmt.Sprintf("another body under the same key: %s, then %s", known, text))
	}
	k.bodies[key] = string(text)
	name := fmt.Sprintf("%s %s %d", body.Step, body.Operation, body.Generation)
	k.used[name], k.tokens[name] = body.PaymentMethod, body.CallbackURL
	if body.Operation == "do" && body.PaymentMethod != k.takes {
		w.WriteHeader(http.StatusPaymentRequired)
	}
}

func openTill(t *testing.T) (*shop, *till) {
	t.Helper()
	k := &till{bodies: map[string]string{}, used: map[string]string{}, tokens: map[string]string{}}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	s := openShop(t, 1, quick)
	s.use(t, fmt.Sprintf("charge: {executor: http, url: %q, undoUrl: %q, timeout: 60s}", server.URL+"/charge", server.URL+"/undo"))
	return s, k
}

func retryWith(paymentMethod string, generation int32) engine.Request {
	q := asked(orders.Retry)
	q.PaymentMethod, q.Generation = paymentMethod, &generation
	return q
}

// A declined card does not make the order id unusable. What was sent with it is sent again as it was.
func TestRetryWithAnotherPaymentMethod(t *testing.T) {
	t.Parallel()
	s, k := openTill(t)
	k.takes = "three"
	in := request("order")
	in.PaymentMethod = "one"
	if o := s.process(t, in); o.Status != fsm.Failed {
		t.Fatal(brief(o))
	}
	if o := s.do(t, retryWith("two", 0)); o.Status != fsm.Failed || o.Generation != 1 {
		t.Error(brief(o))
	}
	if o := s.do(t, retryWith("three", 1)); o.Status != fsm.Completed || o.Generation != 2 || *o.PaymentMethod != "three" {
		t.Error(brief(o))
	}
	token := k.tokens["charge do 0"]
	token = token[len(token)-len(s.tokenOf(t, "order")):]
	if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Detail: "one"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late effect of the first charge is undone", func() bool {
		return value[bool](t, s.Pool, `SELECT count(*) > 0 AND bool_and(finished_at IS NOT NULL) FROM late_undos`)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, want := range map[string]string{
		"charge do 0": "one", "charge undo 0": "one", "charge do 1": "two", "charge undo 1": "two", "charge do 2": "three",
	} {
		if k.used[name] != want {
			t.Errorf("%s was sent with %q, want %q", name, k.used[name], want)
		}
	}
	for _, fault := range k.faults {
		t.Error(fault)
	}
	if n := value[int](t, s.Pool, `SELECT count(*) FROM step_answers WHERE detail LIKE '%one%'`); n > 0 {
		t.Error("a payment method is kept with an answer")
	}
	changes := column[string](t, s.Pool, `SELECT concat_ws(' ', seq > 1, verb, actor, payment_method) FROM books.transitions WHERE payment_method IS NOT NULL ORDER BY seq`)
	if fmt.Sprint(changes) != "[t retry ann changed t retry ann changed]" {
		t.Errorf("history: %q", changes)
	}
	for _, of := range []string{"one", "three"} {
		in.PaymentMethod = of
		if o := s.process(t, in); o.Status != fsm.Completed {
			t.Errorf("asked for with %s: %s", of, brief(o))
		}
		if o, err := s.engine.Admit(t.Context(), in); err != nil || o.Status != fsm.Completed {
			t.Errorf("asked for with %s, without waiting: %s, %v", of, brief(o), err)
		}
	}
	in.PaymentMethod = "four"
	if _, err := s.engine.Process(t.Context(), in); !errors.As(err, new(*orders.Conflict)) {
		t.Errorf("asked for with one that it never had: %v", err)
	}
}

// A request id stands for one request. Whoever sends it with another payment method is not told that this one was used.
func TestRetryAgainWithAnotherPaymentMethod(t *testing.T) {
	t.Parallel()
	s, k := openTill(t)
	k.takes = "three"
	in := request("order")
	in.PaymentMethod = "one"
	s.process(t, in)
	for i, id := range []string{"kept", "changed"} {
		q := retryWith("two", int32(i))
		q.RequestID = id
		if id == "kept" {
			q.PaymentMethod = ""
		}
		if o := s.do(t, q); o.Status != fsm.Failed || o.Generation != int32(i)+1 {
			t.Error(brief(o))
		}
	}
	for _, c := range []struct {
		id, brings string
		reused     bool
	}{{"kept", "", false}, {"kept", "one", true}, {"kept", "three", true}, {"changed", "two", false}, {"changed", "", true}, {"changed", "three", true}} {
		q := retryWith(c.brings, map[string]int32{"kept": 0, "changed": 1}[c.id])
		q.RequestID = c.id
		o, err := s.engine.Do(t.Context(), q)
		if errors.Is(err, orders.ErrKeyReused) != c.reused || !c.reused && err != nil {
			t.Errorf("%s with %q: %s, %v", c.id, c.brings, brief(o), err)
		}
	}
}

func TestAnotherPaymentMethodIsRefused(t *testing.T) {
	t.Parallel()
	t.Run("unless the order has failed", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, fsm.Charging, "order")
		b.exec(t, `UPDATE orders SET hold = 'attention', seq = seq + 1`)
		b.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb) SELECT order_no, seq, status, status, fence, 'attention' FROM orders`)
		b.refused(t, retryWith("another", 0), orders.RefusedPaymentMethod)
	})
	t.Run("by the database, from whoever starts nothing anew", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := request("order")
		in.PaymentMethod = "one"
		b.process(t, in)
		if _, err := b.Pool.Exec(t.Context(), `UPDATE orders SET payment_method = 'another'`); err == nil {
			t.Error("it was changed behind the order's back")
		}
	})
	t.Run("and the same one changes nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		in := request("order")
		in.PaymentMethod = "one"
		b.process(t, in)
		b.do(t, retryWith("one", 0))
		if n := value[int](t, b.Pool, `SELECT count(*) FROM transitions WHERE payment_method IS NOT NULL`); n != 0 {
			t.Errorf("%d changes", n)
		}
	})
}
