package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/policy/store"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// withProvider is the API with a policy whose charge is done by a provider that answers 202; path yields where it was
// asked to call back.
func withProvider(t *testing.T) (b *bundle, path func() string) {
	t.Helper()
	b = &bundle{Database: dbtest.New(t), grace: patience}
	var last atomic.Value
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var call struct{ CallbackURL string }
		assert.Succeeds(t, json.NewDecoder(r.Body).Decode(&call))
		if call.CallbackURL != "" {
			last.Store(call.CallbackURL)
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"reference":"r","action":{"redirect":"https://bank.example/<3ds>"}}`)
		}
	}))
	t.Cleanup(provider.Close)
	policy := fmt.Sprintf("charge: {executor: http, url: %q, undoUrl: %q, timeout: 60s}", provider.URL+"/do", provider.URL+"/undo")
	b.activate(t, policy)
	b.serve(t, b.URL, engine.Config{RecoveryInterval: 10 * time.Millisecond, PublicURL: "https://shop.example/pawl/"}, Config{ResponseTimeout: patience})
	return b, func() string {
		deadline := time.Now().Add(patience)
		for last.Load() == nil {
			assert.Require(t, !time.Now().After(deadline), "the provider is not called")
		}
		url, _ := last.Load().(string)
		path, found := strings.CutPrefix(url, "https://shop.example/pawl")
		assert.Require(t, found, "the callback is to go to", url)
		return path
	}
}

// activate makes a policy the active one, which an engine knows that is started after it.
func (b *bundle) activate(t *testing.T, policy string) {
	t.Helper()
	assert.NoError(t, assert.Err(store.Use(t.Context(), db.New(b.Pool), []byte(policy), "test")))
}

func TestCallback(t *testing.T) {
	t.Parallel()
	b, path := withProvider(t)
	a := b.process(t, `{"orderId":"o/1","amount":1,"item":"i","paymentMethod":"pm_0123456789"}`, "Prefer", "wait=10")
	if o := a.wantStatus(t, 202); o.Hold != "callback" { // an hour: longer than the caller waits
		t.Errorf("%+v", o)
	}
	for _, shown := range []string{`"policy":1`, `"calls":1`, `"inDoubt":true`, `"resumesAt":"`, `"action":{"redirect":"https://bank.example/<3ds>"}`} {
		assert.Contains(t, a.body, shown)
	}
	b.exec(t, `UPDATE orders SET hold = 'retry', retries = 3, retry_window_started_at = '2026-11-01T00:00Z'`)
	assert.Contains(t, b.get(t, "/api/orders/o%2F1").body, `"retry":{"failed":3,"left":5,"until":"2026-11-01T00:15:00Z"}`)
	b.exec(t, `UPDATE orders SET hold = 'callback', retries = NULL`)
	post := func(body string) answer { return b.call(t, "POST "+path(), body) }
	for body, code := range map[string]string{
		`{}`: "invalid_input", `{"outcome":"perhaps"}`: "invalid_input", `{"outcome":1}`: "invalid_input", `[]`: "invalid_input",
		`{"outcome":"done","reference":"` + strings.Repeat("x", 256) + `"}`: "invalid_input",
		`{"outcome":"done","data":[1]}`:                                     "invalid_input",
		`{"outcome":"done","data":{"a":"\u0000"}}`:                          "invalid_input",
	} {
		post(body).wantProblem(t, 422, code)
	}
	post(`{"outcome":"done","outcome":"refused"}`).wantProblem(t, 400, "malformed_json")
	post(strings.Repeat(" ", 70_000)).wantProblem(t, 413, "body_too_large")
	n := b.count(t, `SELECT count(*) FROM step_answers`)
	assert.Require(t, n == 0, n, "answers")
	for _, body := range []string{
		`{"outcome":"refused","code":"no\u0000 pm_0123456789","detail":null,"reference":""}`,
		`{"outcome":"refused","code":"no\u0000 pm_0123456789"}`,
	} {
		b.accepts(t, post(body), `{"accepted":true}`)
	}
	b.accepts(t, post(`{"outcome":"done"}`), `{"accepted":false,"reason":"answered before: refused, by callback"}`)
	o := b.process(t, `{"orderId":"o/1","amount":1,"item":"i"}`).wantStatus(t, 200)
	assert.True(t, o.Status == "failed" && o.Failure.Step == "charge" && !strings.Contains(o.Failure.Code, "pm_"), o, o.Failure)
}

func (b *bundle) accepts(t *testing.T, a answer, body string) {
	t.Helper()
	a.wantStatus(t, 200)
	assert.Equal(t, a.body, body)
}

func TestCallbackOfNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, token := range []string{"x", "%2F%2F", "..%2F", strings.Repeat("a", 47), strings.Repeat("a", 5000), "%00"} {
		b.call(t, "POST /api/callbacks/"+token, `{"outcome":"done"}`).wantProblem(t, 404, "not_found")
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	b, path := withProvider(t)
	b.process(t, body("orderId", `"o"`), "Prefer", "wait=10").wantStatus(t, 202)
	b.call(t, "POST "+path(), `{"outcome":"done","reference":"ref-1","data":{"a":1}}`).wantStatus(t, 200)
	o := b.process(t, body("orderId", `"o"`)).wantStatus(t, 200)
	assert.Equal(t, o.Status, "completed", o)
	assert.Contains(t, b.get(t, "/api/orders/o").body, `"charge":{"completed":true,"reference":"ref-1"}`)
	page := b.get(t, "/api/orders/o/calls")
	var got struct{ Calls []call }
	err := json.Unmarshal([]byte(page.body), &got)
	assert.Require(t, err == nil && len(got.Calls) == 1, page.body, err)
	first := got.Calls[0]
	assert.True(t, first.Call == 1 && first.Step == "charge" && first.Operation == "do" && first.Outcome == "waiting" &&
		first.Reference == "r" && *first.Policy == 1 && !first.FinishedAt.Before(first.StartedAt), first)
	assert.Equal(t, b.get(t, "/api/orders/o/calls?after=1&limit=1").body, `{"calls":[]}`)
	b.exec(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, charge_operation) SELECT order_no, -n, 1, 0, 'charge', 'refund', 1 FROM orders, generate_series(1, 3) AS n`)
	for query, want := range map[string]string{
		"": "[-3 -2 -1 1]", "?sort=newest": "[1 -1 -2 -3]", "?before=0": "[-3 -2 -1]", "?before=0&sort=newest&limit=2": "[-1 -2]",
		"?after=-2&before=0&sort=oldest": "[-1]", "?after=0": "[1]",
	} {
		page := b.get(t, "/api/orders/o/calls"+query)
		var got struct{ Calls []call }
		err := json.Unmarshal([]byte(page.body), &got)
		numbers := each(got.Calls, func(c *call) int32 { return c.Call })
		assert.True(t, fmt.Sprint(numbers) == want && err == nil, query, numbers, err, want)
	}
	b.get(t, "/api/orders/o/calls?sort=down").wantProblem(t, 422, "invalid_parameter")
	b.get(t, "/api/orders/none/calls").wantProblem(t, 404, "not_found")
	b.get(t, "/api/orders/o/calls?limit=0").wantProblem(t, 422, "invalid_parameter")
}

func TestStripeEvents(t *testing.T) {
	t.Setenv("PAWL_SECRET_TEST_WEBHOOK_OLD", "whsec_of_the_old_hook")
	t.Setenv("PAWL_SECRET_TEST_WEBHOOK", "whsec_of_the_new_hook")
	t.Setenv("PAWL_SECRET_TEST_KEY", "sk_test_1")
	b := setup(t)
	send := func(payload, secret string) answer {
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(payload), Secret: secret, Timestamp: time.Now()})
		return b.call(t, "POST /api/webhooks/stripe", payload, "Stripe-Signature", signed.Header)
	}
	event := `{"object":"event","id":"evt_1","type":"any","data":{"object":{"object":"payment_intent","id":"pi_1","metadata":{}}}}`
	send(event, "whsec_of_the_new_hook").wantProblem(t, 400, "bad_signature") // there is no policy that knows it
	for _, name := range []string{"PAWL_SECRET_TEST_WEBHOOK_OLD", "PAWL_SECRET_TEST_WEBHOOK"} {
		b.activate(t, "charge: {executor: stripe, secret: env:PAWL_SECRET_TEST_KEY, webhookSecret: env:"+name+"}")
	}
	b.serve(t, b.URL, engine.Config{}, Config{ResponseTimeout: patience})
	for _, secret := range []string{"whsec_of_the_old_hook", "whsec_of_the_new_hook"} {
		b.accepts(t, send(event, secret), `{"accepted":true}`)
	}
	send(event, "whsec_of_the_guess_hook").wantProblem(t, 400, "bad_signature")
	b.call(t, "POST /api/webhooks/stripe", event).wantProblem(t, 400, "bad_signature")
	b.call(t, "POST /api/webhooks/stripe", "{}").wantProblem(t, 400, "bad_signature")
}
