package engine_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/signing"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestCallbacksRacingTheir202 has a thousand orders answered by callbacks that come before, with and right after the
// answer they belong to. One that is lost would wait an hour.
func TestCallbacksRacingTheir202(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, engine.Config{RecoveryInterval: often})
	s.use(t, `charge: {executor: simulator, url: SIM, callbackTimeout: 1h}`)
	s.faults(t,
		"callback-before,fraction=0.3",
		"callback-twice,fraction=0.3",
		"answer-twice,fraction=0.2",
		"callback-late:1ms,fraction=0.5",
		"async")
	orders := times(300, 1000)
	var callers sync.WaitGroup
	turn := make(chan struct{}, 100)
	for i := range orders {
		callers.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			id := fmt.Sprintf("o%04d", i)
			// Without a limit: whoever has one is told at once that the answer may take an hour.
			order, err := deref(s.anyone().Process(t.Context(), request(id)))
			assert.True(t, err == nil && order.Status == "completed", id, err, brief(order))
		})
	}
	callers.Wait()
	effects := s.sim.Summary().Steps["charge"]
	assert.True(t, effects.Effects == orders && effects.Live == orders, effects)
	slowest := value[float64](t, s.Pool, `SELECT extract(epoch FROM max(finished_at - created_at))::float8 FROM orders`)
	assert.True(t, slowest <= 600, "one waited", slowest, "s")
}

// waiting opens a shop whose steps are answered 202: their results come by callbacks.
func waiting(tuning string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := with(atEndpoint(tuning, "charge", "reserve", "confirm"))(t)
		s.provider.says("charge/do: waiting", "reserve/do: waiting", "confirm/do: waiting")
		return s
	}
}

// tell reports what became of a call.
func (s *shop) tell(t testing.TB, token, outcome, reference string) engine.Receipt {
	t.Helper()
	receipt, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: outcome,
		CallbackText: provider.CallbackText{Reference: reference}})
	assert.NoError(t, err, "tell", outcome)
	return receipt
}

// tells reports what became of a step, once it was called for.
func tells(step, outcome, reference string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		r := s.tell(t, s.provider.token(t, step), outcome, reference)
		assert.True(t, r.Accepted, step, r)
	}
}

// made checks how often something was called for.
func made(want int, call string) act {
	return func(t *testing.T, s *shop) { t.Helper(); assert.Equal(t, len(s.provider.made(call)), want, call) }
}

// madeAgain waits for a call to be made once more.
func madeAgain(call string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, call+" is made again", func() bool { return len(s.provider.made(call)) == 2 })
	}
}

func TestCallbacks(t *testing.T) {
	t.Parallel()
	soon := ", retry: {initial: 1ms, cap: 1ms}"
	sameToken := func(t *testing.T, s *shop) {
		t.Helper()
		made := s.provider.made("charge/do")
		assert.Equal(t, made[1].CallbackURL, made[0].CallbackURL, "with another token the body would differ")
	}
	during := func(t *testing.T, s *shop) {
		t.Helper()
		s.provider.meanwhile(func(c received) {
			token := c.CallbackURL[strings.LastIndex(c.CallbackURL, "/")+1:]
			r, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done"})
			assert.True(t, err == nil && r.Accepted, r, err)
		})
	}
	another := func(t *testing.T, s *shop) {
		t.Helper()
		for _, other := range [][2]string{{"refused", ""}, {"done", "another"}} {
			r := s.tell(t, s.provider.token(t, "charge"), other[0], other[1])
			assert.True(t, !r.Accepted && r.Reason != "", other, r)
		}
	}
	late := func(t *testing.T, s *shop) {
		t.Helper()
		s.exec(t, `UPDATE orders SET due_at = now()`)
		comes(true, `SELECT count(*) = 2 FROM step_calls WHERE finished_at IS NOT NULL`)(t, s)
	}
	play(t, []scene{
		{"take an order through all its steps", waiting(""), acts{
			admits(), is("charging callback"), tells("charge", "done", "ref-charge"),
			is("reserving callback"), tells("reserve", "done", "ref-reserve"), is("confirming callback"), tells("confirm",
				"done", "ref-confirm"),
			is("completed"), shows("ref-charge ref-reserve",
				`SELECT charge_reference || ' ' || reserve_reference FROM full_orders`)}},
		{"that refuse undo what was done", waiting(""), acts{
			admits(), tells("charge", "done", "r"), tells("reserve", "refused", ""), is("failed"),
			shows("reserve true", `SELECT failure_step || ' ' || (refunded_at IS NOT NULL) FROM full_orders`), made(1,
				"charge/undo"), made(0, "reserve/undo")}},
		{"that say not done let the step be tried again", waiting(soon), acts{
			admits(), is("callback"), tells("charge", "not_done", ""),
			madeAgain("charge/do"), sameToken, is("callback"), shows(true, `SELECT in_doubt_since IS NOT NULL FROM orders`)}},
		{"that do not come in time leave a doubt, which not done about one of two calls does not end", waiting(""), acts{
			admits(), is("callback"), late, made(2, "charge/do"), is("callback"), tells("charge", "not_done", ""),
			comes(true, `SELECT count(*) = 3 FROM step_calls`), shows(true, `SELECT retries > 0 AND in_doubt_since < (SELECT started_at FROM step_calls WHERE call = 2) FROM orders`)}},
		{"that come before their answer are used when it comes", waiting(""), acts{
			during, processes("completed"), made(1, "charge/do")}},
		{"that come twice count once, and another one does not count", waiting(""), acts{admits(), tells("charge", "done", "r"),
			tells("charge", "done", "r"), another, is("reserving"), shows("r", `SELECT charge_reference FROM full_orders`)}},
	})
}

func TestCallbacksWithAWrongToken(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("o"))
	token := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	refused := func(t *testing.T, token string) {
		t.Helper()
		before := value[int64](t, d.Pool, `SELECT count(*) FROM step_answers`)
		assert.ErrorIs(t, assert.Err(d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done"})), orders.ErrNotFound,
			token)
		assert.Equal(t, value[int64](t, d.Pool, `SELECT count(*) FROM step_answers`), before, "something was stored")
	}
	for name, forged := range map[string]string{
		"nothing":             "",
		"no token":            "../../etc/passwd",
		"too short":           token[:20],
		"too long":            token + "a",
		"another code":        token[:len(token)-4] + "aaaa",
		"another step":        token[:33] + flip(token[33:34]) + token[34:],
		"another order":       "aaaaaaaaaaaab" + token[13:],
		"in capital letters":  strings.ToUpper(token),
		"with a wrong ending": token[:len(token)-1] + "1",
	} {
		refused(t, forged)
		assert.Require(t, !t.Failed(), "a forged token was taken", name)
	}
	t.Run("an order that took its number", func(t *testing.T) {
		t.Parallel()
		d.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`) // as after a restore
		d.exec(t, `UPDATE orders SET order_id = 'another' WHERE order_id = 'o'`)
		refused(t, token)
		d.exec(t, `UPDATE orders SET order_id = 'o' WHERE order_id = 'another'`)
		d.exec(t, `ALTER TABLE orders ENABLE TRIGGER USER`)
	})
	t.Run("a step that was not called for", func(t *testing.T) { //nolint:paralleltest // the last one
		d.exec(t, `UPDATE step_calls SET generation = 7`)
		refused(t, token)
		d.exec(t, `UPDATE step_calls SET generation = 0`)
	})
}

func flip(letter string) string {
	if letter == "a" {
		return "b"
	}
	return "a"
}

// What is reported when the books say it is absent or undone is undone at its provider.
func TestLateCallbacks(t *testing.T) {
	t.Parallel()
	late := func(step string) act {
		return comes(1, `SELECT count(*) FROM late_undos WHERE step = '`+step+`' AND finished_at IS NOT NULL`)
	}
	unchanged := func(do act) act { // it has ended
		return func(t *testing.T, s *shop) {
			t.Helper()
			before := s.get(t, "order").Seq
			do(t, s)
			assert.Equal(t, s.get(t, "order").Seq, before, "seq")
		}
	}
	listed := func(t *testing.T, s *shop) {
		t.Helper()
		calls, err := s.engine.Orders.Calls(t.Context(), "order", orders.Span{After: -1000, Before: 1000, Limit: 10})
		assert.True(t, err == nil && len(calls) != 0 && calls[0].Call < 0 && calls[0].Operation == "undo" && *calls[0].Outcome == "done",
			calls, err)
	}
	notAccepted := func(t *testing.T, s *shop) {
		t.Helper()
		r := s.tell(t, s.provider.token(t, "reserve"), "done", "after all")
		assert.True(t, !r.Accepted, r)
	}
	play(t, []scene{
		{"about a canceled order are undone, once", waiting(""), acts{admits(), is("callback"), cancel, is("canceled"),
			unchanged(tells("charge", "done", "late")), late("charge"), made(2, "charge/undo"), unchanged(listed)}},
		{"about a step that was refused are undone while the order is", waiting(", retry: {initial: 1ms, cap: 1ms}"), acts{
			admits(),
			tells("charge", "done", "r"), is("reserving callback"), tells("reserve", "refused", ""), is("failed"), notAccepted,
			late("reserve"), made(1, "reserve/undo")}},
		{"about a completed order change nothing", waiting(""), acts{
			says("charge/do: done", "reserve/do: done", "confirm/do: done"),
			processes("completed"), unchanged(tells("charge", "done", "ch_1")), unchanged(tells("reserve", "done", "ch_2")),
			unchanged(tells("confirm", "done", "ch_3")), shows(0, `SELECT count(*) FROM late_undos`)}},
	})
}

// TestCallbackWhoseStatementIsLost has a callback that may take the place of the one before it lost on its way to the
// database: whoever sent it must come again, and not be told that the one before it counts.
func TestCallbackWhoseStatementIsLost(t *testing.T) {
	t.Parallel()
	s := waiting(", retry: {initial: 1ms, cap: 1ms}")(t)
	p := newProxy(t, s.URL)
	behind := startEngine(t, p.URL, byCallers)
	for _, do := range []act{admits(), is("callback"), tells("charge", "not_done", ""), madeAgain("charge/do"), is("callback")} {
		do(t, s)
	}
	token := s.provider.token(t, "charge")
	p.On(func(statement string) fate {
		if statement == "AnswerStore" {
			return loseRequest
		}
		return passes
	})
	done := engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "r"}}
	if receipt, err := behind.Answer(t.Context(), token, done); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("%+v, %v", receipt, err)
	}
	p.On(nil)
	receipt, err := behind.Answer(t.Context(), token, done)
	assert.True(t, err == nil && receipt.Accepted, receipt, err)
	comes(true, `SELECT charged_at IS NOT NULL FROM full_orders`)(t, s)
}

// A token that is not ours is known before anything is asked of the database: here nobody waits for its answer.
func TestForgedTokensCostNoRead(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("o"))
	token := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	gone, leave := context.WithCancel(t.Context())
	leave()
	forged := strings.Repeat("a", len(token))
	assert.ErrorIs(t, assert.Err(d.engine.Answer(gone, forged, engine.CallbackResult{Outcome: "done"})), orders.ErrNotFound,
		"forged")
	_, err := d.engine.Answer(gone, token, engine.CallbackResult{Outcome: "done"})
	assert.True(t, err != nil && !errors.Is(err, orders.ErrNotFound), "ours was not looked for", err)
}

// A token ends when the order has left the step and was called for a month ago. While the order is at the step it holds,
// however long that takes.
func TestCallbackTokensEndWithTheirStep(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("o"))
	charge := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	age := func(by string) {
		d.exec(t, fmt.Sprintf(`UPDATE step_calls SET started_at = started_at - interval '%s', finished_at = finished_at - interval '%[1]s'`, by))
	}
	age("32 days")
	r := d.tell(t, charge, "done", "r")
	assert.True(t, r.Accepted, "at the step", r)
	reserve := d.provider.token(t, "reserve")
	assert.ErrorIs(t, assert.Err(d.engine.Answer(t.Context(), charge, engine.CallbackResult{Outcome: "done"})), orders.ErrNotFound,
		"after the step, 32 days old")
	d.tell(t, reserve, "done", "r")
	d.tell(t, d.provider.token(t, "confirm"), "done", "r")
	d.until(t, "o", "completed")
	if r := d.tell(t, reserve, "done", "r"); !r.Accepted {
		t.Errorf("sent again after the end: %+v", r)
	}
	age("30 days")
	if r := d.tell(t, reserve, "done", "r"); !r.Accepted {
		t.Errorf("a month after the end: %+v", r)
	}
	age("2 days")
	assert.ErrorIs(t, assert.Err(d.engine.Answer(t.Context(), reserve, engine.CallbackResult{Outcome: "done"})), orders.ErrNotFound,
		"more than a month after the end")
}

// What a callback repeats of the call is masked as in an answer, and so is what a person says.
func TestCallbacksAreMasked(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	in := request("o")
	in.PaymentMethod = "pm_marked_card"
	d.admit(t, in)
	token := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	_, err := d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{
		Reference: "ch_" + token, Data: []byte(`{"token":"` + strings.ToUpper(token) + `","with":"pm_marked_card"}`)}})
	assert.NoError(t, err)
	d.provider.token(t, "reserve")
	held := d.until(t, "o", "callback")
	d.exec(t, `UPDATE orders SET hold = 'attention', hold_reason = 'test', due_at = NULL, seq = seq + 1`)
	d.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb) SELECT order_no, seq, status, status, fence, 'attention' FROM orders`)
	if held.ChargeReference != nil {
		t.Errorf("reference %s", *held.ChargeReference)
	}
	q := asked(orders.StepResult)
	q.OrderID, q.Async = "o", true
	q.Settle = &engine.Settled{Step: "reserve", Outcome: engine.SettledRefused, Code: "PM_MARKED_CARD", Detail: "no " + token}
	d.do(t, q)
	d.until(t, "o", "failed")
	for _, marked := range []string{token, "pm_marked_card"} {
		for _, table := range []string{"step_answers", "step_calls", "charges", "reservations", "transitions", "late_undos"} {
			d.counts(t, 0, `SELECT count(*) FROM `+table+` AS t WHERE t::text ILIKE '%' || $1 || '%'`, marked)
		}
	}
}

// The log has one line about a webhook that was refused, not one for each secret and each request that anybody sends.
// The secret of a policy that was replaced long ago signs nothing any more.
func TestWebhookSecretsEnd(t *testing.T) {
	t.Parallel()
	var said dbtest.Log
	cfg := quick
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	b := setupWith(t, cfg)
	folder := t.TempDir()
	for _, name := range []string{"key", "old", "new"} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("sk_test_of_the_"+name), 0o600))
	}
	for _, name := range []string{"old", "gone", "lost", "new"} {
		b.activate(t, fmt.Sprintf("charge: {executor: stripe, secret: 'file:%s/key', webhookSecret: 'file:%[1]s/%s'}", folder, name))
	}
	send := func(e *engine.Engine, name string) error {
		payload := []byte(`{"object":"event","id":"evt_1","type":"any","data":{"object":{}}}`)
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: "sk_test_of_the_" + name, Timestamp: time.Now()})
		return e.StripeEvent(t.Context(), payload, signed.Header)
	}
	for range 20 {
		err := send(b.engine, "guess")
		assert.Require(t, errors.Is(err, engine.ErrSignature), err)
	}
	n := strings.Count(said.String(), "a webhook was refused")
	assert.True(t, n == 1 && strings.Count(said.String(), "level=WARN") == 1, n, "lines", said.String())
	for _, name := range []string{"old", "new"} {
		assert.NoError(t, send(b.engine, name), name)
	}
	b.exec(t, `ALTER TABLE policy_activations DISABLE TRIGGER USER`)
	b.exec(t, `UPDATE policy_activations SET at = at - interval '32 days'`)
	later := b.replica(t, cfg) // the one that runs looks again within minutes
	assert.ErrorIs(t, send(later, "old"), engine.ErrSignature, "of a policy that was replaced a month ago")
	assert.NoError(t, send(later, "new"), "of the active policy")
}

// signedBy are the headers of a callback that is signed with the secret of a file, or with another one.
func signedBy(t *testing.T, path string, m signing.Message, at time.Time) http.Header {
	t.Helper()
	key := []byte("of somebody else")
	if path != "" {
		text, err := os.ReadFile(path)
		assert.NoError(t, err)
		key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(string(text), "whsec_"))
		assert.NoError(t, err)
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(m.ID + "." + stamp + "."))
	mac.Write(m.Body)
	header := http.Header{}
	header.Set("Webhook-Id", m.ID)
	header.Set("Webhook-Timestamp", stamp)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return header
}

// A policy can want signed callbacks: then the token alone completes nothing, and what is signed counts for one call only.
func TestSignedCallbacks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	assert.NoError(t, os.WriteFile(path, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600))
	d := waiting(fmt.Sprintf(", secret: 'file:%s', signedCallbacks: true", path))(t)
	d.admit(t, request("o"))
	token, key := d.provider.token(t, "charge"), d.provider.made("charge/do")[0].key
	d.until(t, "o", "callback")
	post := func(token, body string, header http.Header) error {
		return assert.Err(d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", Header: header, Body: []byte(body)}))
	}
	body := `{"outcome":"done","reference":"r"}`
	m, now := signing.Message{ID: key, Body: []byte(body)}, time.Now()
	for name, header := range map[string]http.Header{
		"not at all": {}, "for another body": signedBy(t, path, signing.Message{ID: key, Body: []byte(body + " ")}, now),
		"long ago": signedBy(t, path, m, now.Add(-6*time.Minute)), "ahead of time": signedBy(t, path, m, now.Add(6*time.Minute)),
		"by somebody else": signedBy(t, "", m, now), "with another id": signedBy(t, path, signing.Message{ID: "msg_1", Body: m.Body}, now),
		"without an id": signedBy(t, path, signing.Message{Body: m.Body}, now),
	} {
		assert.ErrorIs(t, post(token, body, header), engine.ErrSignature, "signed", name)
	}
	d.counts(t, 0, `SELECT count(*) FROM step_answers`)
	signed := signedBy(t, path, m, time.Now())
	assert.NoError(t, post(token, body, signed), "signed")
	reserve := d.provider.token(t, "reserve")

	// Whoever has seen it can't complete the next step of the order with it, nor another order.
	d.provider.reset()
	d.admit(t, request("p"))
	for step, token := range map[string]string{"reserve of the same order": reserve, "charge of another order": d.provider.token(t, "charge")} {
		assert.ErrorIs(t, post(token, body, signed), engine.ErrSignature, "signed for a charge", step)
	}
	d.counts(t, 1, `SELECT count(*) FROM step_answers`)
}

// TestTheCallbackSecretIsReplaced does what docs/security.md says to do when somebody has read it.
func TestTheCallbackSecretIsReplaced(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("before"))
	old := d.provider.token(t, "charge")
	d.until(t, "before", "callback")
	d.exec(t, `UPDATE pawl.installation SET callback_secret = DEFAULT`)

	d.engine = d.replica(t, d.cfg) // the one after the restart
	assert.NoError(t, d.engine.LoadPolicies(t.Context()))
	assert.ErrorIs(t, assert.Err(d.engine.Answer(t.Context(), old, engine.CallbackResult{Outcome: "done"})), orders.ErrNotFound,
		"a token of the old secret")
	d.provider.reset()
	d.admit(t, request("after"))
	token := d.provider.token(t, "charge")
	assert.True(t, token != old, "the token is the same")
	d.until(t, "after", "callback")
	d.tell(t, token, "done", "ch_after")
	d.provider.token(t, "reserve")
}
