package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"pawl/internal/provider"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestRetry(t *testing.T) {
	t.Parallel()
	for _, fault := range []simulator.Fault{simulator.Error, simulator.TimeoutAfter, simulator.NotDone} {
		t.Run(fmt.Sprintf("of a step that was answered %s goes on with the same key", fault), func(t *testing.T) {
			t.Parallel()
			b, p := impatient(t, fault)
			for _, step := range []string{"charge", "reserve", "confirm"} {
				t.Run(step, func(t *testing.T) { //nolint:paralleltest // the provider has one fault at a time
					p.fail(t, simulator.Rule{Fault: fault, Step: step})
					b.sticks(t, step)
					p.fail(t)
					b.retriesWithTheSameKey(t, step, p)
				})
			}
		})
	}
	t.Run("of an undo that was refused does it", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve"}, simulator.Rule{Fault: simulator.Decline, Step: "charge", Operation: "undo"})
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Failed)
	})
	t.Run("begins a new window", func(t *testing.T) {
		t.Parallel()
		b, _ := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "charge"})
		before, err := b.engine.Orders.Get(t.Context(), "order")
		assert.NoError(t, err)
		if o := b.do(t, asked(orders.Retry)); text(o.Hold) != "attention" || !o.RetryWindowStartedAt.After(*before.RetryWindowStartedAt) {
			t.Errorf("held %s, window from %s", text(o.Hold), o.RetryWindowStartedAt)
		}
	})
}

func (b *bundle) retriesWithTheSameKey(t *testing.T, orderID string, p *simulated) {
	t.Helper()
	tried := value[int32](t, b.Pool, `SELECT calls FROM books.orders WHERE order_id = $1`, orderID)
	q := asked(orders.Retry)
	q.OrderID = orderID
	b.ends(t, b.do(t, q), p, fsm.Completed)
	if last := value[int32](t, b.Pool, `SELECT max(call) FROM books.step_calls WHERE order_id = $1`, orderID); last <= tried {
		t.Errorf("call %d after %d", last, tried)
	}
}

func TestRedrive(t *testing.T) {
	t.Parallel()
	t.Run("of an order of the ledger is its next generation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		b.setStock(t, "widget", 1)
		o := b.do(t, asked(orders.Retry))
		if o.Status != fsm.Completed || o.Generation != 1 || o.FailureCode != nil {
			t.Errorf("%+v", o)
		}
		b.sameAsStored(t, o)
		b.verified(t)
	})
	t.Run("can be done again and again", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		for generation := range int32(3) {
			q := asked(orders.Retry)
			q.Generation = &generation
			if o := b.do(t, q); o.Status != fsm.Failed || o.Generation != generation+1 || text(o.FailureCode) != "out_of_stock" {
				t.Errorf("%+v", o)
			}
		}
		b.verified(t)
	})
	t.Run("waits for what is still being undone", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, byCallers)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders`)
		b.refused(t, asked(orders.Retry), orders.RefusedStillUndoing)
		b.exec(t, `UPDATE late_undos SET finished_at = now()`)
		if o := b.do(t, asked(orders.Retry)); o.Generation != 1 {
			t.Errorf("%+v", o)
		}
	})
	t.Run("is done once, however often the request comes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.replica(t, engine.Config{})
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		q := asked(orders.Retry)
		q.RequestID = "r"
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				o, err := []*engine.Engine{b.engine, other}[i%2].Do(t.Context(), q)
				if err != nil || o.Status != fsm.Failed || o.Generation != 1 {
					t.Errorf("%v, %s of generation %d", err, o.Status, o.Generation)
				}
			})
		}
		callers.Wait()
		b.writesNothing(t, func() { b.do(t, q) })
		b.verified(t)
	})
}

// A redrive after a refusal kills the earlier keys first.
func TestRedriveKillsEarlierKeys(t *testing.T) { //nolint:tparallel // the provider has one fault at a time
	t.Parallel()
	p := newProvider(t)
	b := remote(t, quick, p.quick(""))
	for _, declined := range []string{"charge", "reserve", "confirm"} { //nolint:paralleltest // as above
		t.Run(declined, func(t *testing.T) {
			p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: declined})
			b.ends(t, b.process(t, request(declined)), p, fsm.Failed)
			p.fail(t)
			q := asked(orders.Retry)
			q.OrderID = declined
			b.ends(t, b.do(t, q), p, fsm.Completed)
			if n := value[int](t, b.Pool, `SELECT count(*) FROM books.step_calls
				WHERE order_id = $1 AND generation = 0 AND step = 'charge' AND operation = 'undo' AND outcome = 'done'`, declined); n == 0 {
				t.Error("the charge of generation 0 was not voided")
			}
		})
	}
}

// Whoever sends a retry twice, by mistake or because no answer came, restarts the order once.
func TestRedriveThatComesTwice(t *testing.T) {
	t.Parallel()
	t.Run("is done once, also without a request id", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setStock(t, "widget", 0)
		b.process(t, request("order"))
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				_, err := b.engine.Do(t.Context(), asked(orders.Retry))
				if refused := (*orders.NotApplicable)(nil); err != nil && !errors.As(err, &refused) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		b.refused(t, asked(orders.Retry), orders.RefusedRetried)
		assert.Equal(t, value[int](t, b.Pool, `SELECT generation FROM books.orders`), 1, "restarted times")
		q := asked(orders.Retry)
		q.Generation = new(int32(0))
		b.refused(t, q, orders.RefusedGeneration)
		for generation, say := range []func(q *engine.Request){
			func(q *engine.Request) { q.Generation = new(int32(1)) },
			func(q *engine.Request) { q.IfSeq = new(value[int32](t, b.Pool, `SELECT seq FROM books.orders`)) },
			func(q *engine.Request) { q.RequestID = "again" },
		} {
			q := asked(orders.Retry)
			say(&q)
			if o := b.do(t, q); o.Status != fsm.Failed || o.Generation != int32(generation)+2 {
				t.Error(brief(o))
			}
		}
		b.verified(t)
	})
	t.Run("is not what a retry means that was sent while the order was held", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
		p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: "charge"})
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Failed)
		b.refused(t, asked(orders.Retry), orders.RefusedRetried)
	})
}

// deaf is a policy whose provider can't be asked what became of a key.
func (p *simulated) deaf() string {
	return fmt.Sprintf(`
charge:
  executor: http
  url: %s/charge
  undoUrl: %s/charge/undo
  timeout: 1m
  retry: {initial: 1ms, cap: 5ms, maxRetries: 0, budget: 1ms}
`, p.url, p.url)
}

func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	forgotten := func(t *testing.T) (*bundle, *simulated) {
		t.Helper()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b := remote(t, engine.Config{}, p.deaf())
		b.process(t, request("order"))
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '23 hours'`)
		return b, p
	}
	t.Run("are not sent again by a retry", func(t *testing.T) {
		t.Parallel()
		b, _ := forgotten(t)
		b.refused(t, asked(orders.Retry), orders.RefusedUnknown)
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '22 hours'`)
		q := asked(orders.Retry)
		q.DryRun = true
		b.do(t, q)
	})
	t.Run("are not sent again by a resumption", func(t *testing.T) {
		t.Parallel()
		b, _ := forgotten(t)
		b.exec(t, `UPDATE orders SET hold = 'paused'`)
		b.refused(t, asked(orders.Resume), orders.RefusedUnknown)
		q := asked(orders.StepResult)
		q.Settle = &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone}
		b.do(t, q)
		isNow(t, b.do(t, asked(orders.Resume)), fsm.Completed)
	})
	t.Run("are asked after where that is possible", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '3 days'`)
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
	})
}

func TestRetryUnderTheActivePolicy(t *testing.T) {
	t.Parallel()
	active := asked(orders.Retry)
	active.ActivePolicy = true
	t.Run("goes on with it", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		b := remote(t, engine.Config{}, "reserve:\n  executor: http\n  url: http://127.0.0.1:1/reserve\n  undoUrl: http://127.0.0.1:1/undo\n"+
			"  retry: {initial: 30m, cap: 30m, maxRetries: 0, budget: 1ms, nonRetryable: [connect]}\n"+p.deaf())
		b.admit(t, request("order"))
		eventually(t, "it waits", func() bool {
			o, err := b.engine.Orders.Get(t.Context(), "order")
			return err == nil && o.Status == fsm.Reserving && slices.Contains([]string{"retry", "attention"}, text(o.Hold))
		})
		version := b.activate(t, p.deaf())
		if o := b.do(t, active); o.Status != fsm.Completed || *o.Policy != version {
			t.Errorf("%s under policy %d, held %s", o.Status, *o.Policy, text(o.Hold))
		}
	})
	t.Run("asks after a forgotten key, where the other could not", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b := remote(t, engine.Config{}, p.deaf())
		b.process(t, request("order"))
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '3 days', hold_reason = 'outcome_unknown: so it says'`)
		b.refused(t, asked(orders.Retry), orders.RefusedUnknown)
		b.refused(t, active, orders.RefusedUnknown) // it is the same policy
		b.activate(t, strings.Replace(p.deaf(), "  timeout", "  lookupUrl: "+p.url+"/lookup\n  timeout", 1))
		isNow(t, b.do(t, active), fsm.Completed)
	})
	t.Run("is refused while a step could not be undone under it", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "reserve"})
		b.activate(t, newProvider(t).impatient(time.Minute))
		b.refused(t, active, orders.RefusedPolicySwitch)
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
	})
	t.Run("of a failed order is refused where its keys would stay alive", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: "charge"})
		b := remote(t, engine.Config{}, p.quick(""))
		b.process(t, request("order"))
		b.activate(t, "reservationTtl: 1h\n")
		b.refused(t, active, orders.RefusedPolicySwitch)
	})
}

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
	isNow(t, s.process(t, in), fsm.Failed)
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
	eventually(t, "the late effect of the first charge is undone", s.answers(t, true,
		`SELECT count(*) > 0 AND bool_and(finished_at IS NOT NULL) FROM late_undos`))
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, want := range map[string]string{
		"charge do 0": "one", "charge undo 0": "one", "charge do 1": "two", "charge undo 1": "two", "charge do 2": "three",
	} {
		assert.Equal(t, k.used[name], want, name, "was sent with")
	}
	for _, fault := range k.faults {
		t.Error(fault)
	}
	if n := value[int](t, s.Pool, `SELECT count(*) FROM step_answers WHERE detail LIKE '%one%'`); n > 0 {
		t.Error("a payment method is kept with an answer")
	}
	changes := column[string](t, s.Pool, `SELECT concat_ws(' ', seq > 1, verb, actor, payment_method) FROM books.transitions WHERE payment_method IS NOT NULL ORDER BY seq`)
	assert.Equal(t, fmt.Sprint(changes), "[t retry ann changed t retry ann changed]", "history", changes)
	for _, of := range []string{"one", "three"} {
		in.PaymentMethod = of
		isNow(t, s.process(t, in), fsm.Completed)
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
		b.counts(t, 0, `SELECT count(*) FROM transitions WHERE payment_method IS NOT NULL`)
	})
}
