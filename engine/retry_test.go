package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/test/assert"
)

func TestRetry(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"error", "timeout-after", "not-done"} {
		t.Run("of a step that was answered "+fault+" goes on with the same key", func(t *testing.T) {
			t.Parallel()
			policy := impatient
			if fault == "timeout-after" {
				policy = strings.ReplaceAll(impatient, "timeout: 1m", "timeout: 1s") // it is waited for
			}
			s := with(policy)(t)
			for _, step := range []string{"charge", "reserve", "confirm"} {
				s.faults(t, fault+"@"+step)
				s.sticks(t, step)
				s.faults(t)
				tried := value[int32](t, s.Pool, `SELECT calls FROM books.orders WHERE order_id = $1`, step)
				q := asked(orders.Retry)
				q.OrderID = step
				s.ends(t, s.do(t, q), fsm.Completed)
				s.counts(t, true, `SELECT max(call) > $2 FROM books.step_calls WHERE order_id = $1`, step, tried)
			}
		})
	}
	play(t, []scene{
		{"of an undo that was refused does it", stuck("decline@reserve", "decline@charge/undo"), acts{
			fails(), ends(asked(orders.Retry), fsm.Failed)}},
		{"begins a new window", stuck("error@charge"), acts{func(t *testing.T, s *shop) {
			t.Helper()
			before := s.get(t, "order")
			if o := s.do(t, asked(orders.Retry)); text(o.Hold) != "attention" || !o.RetryWindowStartedAt.After(*before.RetryWindowStartedAt) {
				t.Errorf("%s, window from %s", brief(o), o.RetryWindowStartedAt)
			}
		}}},
	})
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
		assert.True(t, o.Status == fsm.Completed && o.Generation == 1 && o.FailureCode == nil, o)
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
			o := b.do(t, q)
			assert.True(t, o.Status == fsm.Failed && o.Generation == generation+1 && text(o.FailureCode) == "out_of_stock", o)
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
		o := b.do(t, asked(orders.Retry))
		assert.Equal(t, o.Generation, 1, o)
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
				assert.True(t, err == nil && o.Status == fsm.Failed && o.Generation == 1, err, o.Status, "of generation", o.Generation)
			})
		}
		callers.Wait()
		b.writesNothing(t, func() { b.do(t, q) })
		b.verified(t)
	})
}

// A redrive after a refusal kills the earlier keys first.
func TestRedriveKillsEarlierKeys(t *testing.T) {
	t.Parallel()
	s := with(eager)(t)
	for _, declined := range []string{"charge", "reserve", "confirm"} {
		s.faults(t, "decline@"+declined)
		s.ends(t, s.process(t, request(declined)), fsm.Failed)
		s.faults(t)
		q := asked(orders.Retry)
		q.OrderID = declined
		s.ends(t, s.do(t, q), fsm.Completed)
		s.counts(t, true, `SELECT EXISTS (SELECT FROM books.step_calls
			WHERE order_id = $1 AND generation = 0 AND step = 'charge' AND operation = 'undo' AND outcome = 'done')`, declined)
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
				refused := (*orders.NotApplicable)(nil)
				assert.True(t, err == nil || errors.As(err, &refused), err)
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
			o := b.do(t, q)
			assert.True(t, o.Status == fsm.Failed && o.Generation == int32(generation)+2, brief(o))
		}
		b.verified(t)
	})
	play(t, []scene{{"is not what a retry means that was sent while the order was held", stuck("not-done@charge"), acts{
		fails("decline@charge"), ends(asked(orders.Retry), fsm.Failed), refuses(asked(orders.Retry), orders.RefusedRetried)}}})
}

// deaf is a policy whose provider can't be asked what became of a key.
const deaf = "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, timeout: 1m, " +
	"retry: {initial: 1ms, cap: 5ms, maxRetries: 0, budget: 1ms}"

// doubted opens a shop whose charge is in doubt for so long.
func doubted(policy, since string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := with(policy)(t)
		s.faults(t, "cut-after@charge")
		s.sticks(t, "order")
		s.exec(t, `UPDATE orders SET in_doubt_since = now() - $1::text::interval`, since)
		return s
	}
}

// byActive is a retry under the policy that is active by then.
func byActive() engine.Request {
	q := asked(orders.Retry)
	q.ActivePolicy = true
	return q
}

// dry is a request that only looks.
func dry(q engine.Request) act {
	q.DryRun = true
	return func(t *testing.T, s *shop) { t.Helper(); s.do(t, q) }
}

func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	unknown := refuses(asked(orders.Retry), orders.RefusedUnknown)
	play(t, []scene{
		{"are not sent again by a retry", doubted(deaf+"}", "23 hours"), acts{unknown,
			sql(`UPDATE orders SET in_doubt_since = now() - interval '22 hours'`), dry(asked(orders.Retry))}},
		{"are not sent again by a resumption", doubted(deaf+"}", "23 hours"), acts{sql(`UPDATE orders SET hold = 'paused'`),
			refuses(asked(orders.Resume), orders.RefusedUnknown), asks(settled(fsm.Charge, engine.SettledDone,
				"")), does(asked(orders.Resume), "completed")}},
		{"are asked after where that is possible", doubted(impatient, "3 days"), acts{
			fails(), ends(asked(orders.Retry), fsm.Completed)}},
		// A policy can't make a provider remember for longer what it was sent under another one.
		{"are not remembered by a policy with a longer retention", doubted(deaf+"}", "1 s"), acts{
			uses(deaf + ", keyRetention: 72h}"),
			refuses(byActive(), orders.RefusedPolicySwitch), uses(deaf + ", keyRetention: 23h}"), dry(byActive())}},
	})
}

func TestRetryUnderTheActivePolicy(t *testing.T) {
	t.Parallel()
	play(t, []scene{
		{"goes on with it", with(deaf + "}\nreserve: {executor: http, url: 'http://127.0.0.1:1/reserve', undoUrl: 'http://127.0.0.1:1/undo', " +
			"retry: {initial: 30m, cap: 30m, maxRetries: 0, budget: 1ms, nonRetryable: [connect]}}"), acts{admits(),
			comes(true, `SELECT status = 'reserving' AND coalesce(hold IN ('retry', 'attention'), false) FROM orders`),
			uses(deaf + "}"), does(byActive(), "completed"), shows(2, `SELECT policy FROM orders`)}},
		{"asks after a forgotten key, where the other could not", doubted(deaf+"}", "3 days"), acts{
			sql(`UPDATE orders SET hold_reason = 'outcome_unknown: so it says'`), refuses(asked(orders.Retry),
				orders.RefusedUnknown),
			refuses(byActive(), orders.RefusedUnknown), // it is the same policy
			uses(deaf + ", lookupUrl: SIM/lookup}"), does(byActive(), "completed")}},
		{"is refused while a step could not be undone under it", stuck("error@reserve"), acts{
			uses(strings.ReplaceAll(impatient, "SIM", "http://127.0.0.1:1")), refuses(byActive(),
				orders.RefusedPolicySwitch), fails(),
			ends(asked(orders.Retry), fsm.Completed)}},
		{"of a failed order is refused where its keys would stay alive", with(eager), acts{
			fails("decline@charge"), processes("failed: card_declined"),
			uses("reservationTtl: 1h"), refuses(byActive(), orders.RefusedPolicySwitch)}},
	})
}

func retryWith(paymentMethod string, generation int32) engine.Request {
	q := asked(orders.Retry)
	q.PaymentMethod, q.Generation = paymentMethod, &generation
	return q
}

// A declined card does not make the order id unusable. What was sent with it is sent again as it was.
func TestRetryWithAnotherPaymentMethod(t *testing.T) {
	t.Parallel()
	s := with(atEndpoint("", "charge"))(t)
	s.provider.says("charge/do: only three")
	in := request("order")
	in.PaymentMethod = "one"
	isNow(t, s.process(t, in), fsm.Failed)
	if o := s.do(t, retryWith("two", 0)); o.Status != fsm.Failed || o.Generation != 1 {
		t.Error(brief(o))
	}
	if o := s.do(t, retryWith("three", 1)); o.Status != fsm.Completed || o.Generation != 2 || *o.PaymentMethod != "three" {
		t.Error(brief(o))
	}
	done := engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Detail: "one"}}
	assert.NoError(t, assert.Err(s.engine.Answer(t.Context(), s.tokenOf(t, "order"), done)))
	comes(true, finished)(t, s) // the late effect of the first charge is undone
	used := map[string]string{}
	for _, call := range []string{"charge/do", "charge/undo"} {
		for _, c := range s.provider.made(call) {
			used[fmt.Sprint(call, " ", c.Generation)] = c.PaymentMethod
		}
	}
	assert.Equal(t, used, map[string]string{"charge/do 0": "one", "charge/undo 0": "one", "charge/do 1": "two",
		"charge/undo 1": "two", "charge/do 2": "three"})
	s.counts(t, 0, `SELECT count(*) FROM step_answers WHERE detail LIKE '%one%'`)
	changes := column[string](t, s.Pool, `SELECT concat_ws(' ', seq > 1, verb, actor, payment_method) FROM books.transitions WHERE payment_method IS NOT NULL ORDER BY seq`)
	assert.Equal(t, fmt.Sprint(changes), "[t retry ann changed t retry ann changed]", "history", changes)
	for _, of := range []string{"one", "three"} {
		in.PaymentMethod = of
		isNow(t, s.process(t, in), fsm.Completed)
		o, err := deref(s.engine.Admit(t.Context(), in))
		assert.True(t, err == nil && o.Status == fsm.Completed, "asked for with", of, "without waiting", brief(o), err)
	}
	in.PaymentMethod = "four"
	_, err := s.engine.Process(t.Context(), in)
	assert.True(t, errors.As(err, new(*orders.Conflict)), "asked for with one that it never had", err)
}

// A request id stands for one request. Whoever sends it with another payment method is not told that this one was used.
func TestRetryAgainWithAnotherPaymentMethod(t *testing.T) {
	t.Parallel()
	s := with(atEndpoint("", "charge"))(t)
	s.provider.says("charge/do: only three")
	in := request("order")
	in.PaymentMethod = "one"
	s.process(t, in)
	for i, id := range []string{"kept", "changed"} {
		q := retryWith("two", int32(i))
		q.RequestID = id
		if id == "kept" {
			q.PaymentMethod = ""
		}
		o := s.do(t, q)
		assert.True(t, o.Status == fsm.Failed && o.Generation == int32(i)+1, brief(o))
	}
	for _, c := range []struct {
		id, brings string
		reused     bool
	}{{"kept", "", false}, {"kept", "one", true}, {"kept", "three", true}, {"changed", "two", false}, {"changed", "", true}, {"changed", "three", true}} {
		q := retryWith(c.brings, map[string]int32{"kept": 0, "changed": 1}[c.id])
		q.RequestID = c.id
		o, err := s.engine.Do(t.Context(), q)
		assert.True(t, errors.Is(err, orders.ErrKeyReused) == c.reused && (c.reused || err == nil), c.id, "with", c.brings, brief(o), err)
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
		assert.True(t, assert.Err(b.Pool.Exec(t.Context(), `UPDATE orders SET payment_method = 'another'`)) != nil,
			"it was changed behind the order's back")
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
