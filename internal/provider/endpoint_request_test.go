package provider_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
	"pawl/test/assert"
)

// done is a provider that does everything and remembers nothing.
var done = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestBodyOfARequest(t *testing.T) {
	t.Parallel()
	full := provider.Call{
		Installation: installation, OrderID: "order \"1\" \\ <é> \U0001f600\u2028", Step: fsm.Charge, Generation: 3,
		Amount: decimal.MustParse("1234567890.50"), Currency: "EUR", Item: "a\tb\x7f\xff", Quantity: 7, CustomerID: "c", PaymentMethod: "pm_1",
		Metadata: []byte(`{"zz":"1","b":"\u0001","a":"\/&"}`), CallbackURL: "https://shop.example/api/callbacks/abc",
		Fence: 9, Number: 4, Reference: "ch_1",
	}
	plain := provider.Call{Installation: installation, OrderID: "order-123", Step: fsm.Reserve, Currency: "JPY", Item: "i", Quantity: 1,
		Amount: decimal.MustParse("0"), Metadata: []byte(`{}`)}
	fullBody := `{"orderId":"order \"1\" \\ <é> ` + "\U0001f600\u2028" + `","step":"charge","operation":"do","generation":3,"amount":"1234567890.50",` +
		`"currency":"EUR","item":"a\u0009b` + "\x7f\ufffd" + `","quantity":7,"customerId":"c","paymentMethod":"pm_1",` +
		`"metadata":{"a":"/&","b":"\u0001","zz":"1"},"callbackUrl":"https://shop.example/api/callbacks/abc"}`
	fullUndo := `{"orderId":"order \"1\" \\ <é> ` + "\U0001f600\u2028" +
		`","step":"charge","operation":"undo","generation":3,"amount":"1234567890.50",` +
		`"currency":"EUR","item":"a\u0009b` + "\x7f\ufffd" + `","quantity":7,"customerId":"c","paymentMethod":"pm_1",` +
		`"metadata":{"a":"/&","b":"\u0001","zz":"1"},"undoKey":"` + full.Key(provider.Do) + `"`
	charged := provider.Call{Installation: installation, OrderID: "order-123", Step: fsm.Charge, Currency: "EUR", Item: "i", Quantity: 1,
		Amount: decimal.MustParse("2.50"), Reference: "ch_1"}
	given := charged
	given.OperationKind, given.OperationID, given.Reason = provider.Refund, "ticket-1", "broken"
	returned := given
	returned.RefundLines = []byte(`[{"line":2,"item":"i","quantity":1,"amount":"2.50","restock":true}]`)
	lined := plain
	lined.Item, lined.Lines = "", []byte(`[{"item":"i","quantity":2,"amount":"5.00"},{"item":"by air","quantity":1,"amount":"-5.00","kind":"discount"}]`)
	nameless := full
	nameless.Reference = ""
	for _, v := range []struct {
		call *provider.Call
		op   provider.Operation
		body string
	}{
		{&full, provider.Do, fullBody},
		{&full, provider.Undo, fullUndo + `,"reference":"ch_1"}`},
		{&nameless, provider.Undo, fullUndo + `}`},
		{&plain, provider.Do, `{"orderId":"order-123","step":"reserve","operation":"do","generation":0,"amount":"0","currency":"JPY","item":"i","quantity":1}`},
		{&lined, provider.Do, `{"orderId":"order-123","step":"reserve","operation":"do","generation":0,"amount":"0","currency":"JPY","lines":` + string(lined.Lines) + `}`},
		{&given, provider.Refund, `{"orderId":"order-123","step":"charge","operation":"refund","generation":0,"amount":"2.50","currency":"EUR","item":"i","quantity":1,` +
			`"refundId":"ticket-1","reason":"broken","chargeKey":"` + charged.Key(provider.Do) + `","reference":"ch_1"}`},
		{&returned, provider.Refund, `{"orderId":"order-123","step":"charge","operation":"refund","generation":0,"amount":"2.50","currency":"EUR","item":"i","quantity":1,` +
			`"refundId":"ticket-1","reason":"broken","refundLines":[{"line":2,"item":"i","quantity":1,"amount":"2.50","restock":true}],` +
			`"chargeKey":"` + charged.Key(provider.Do) + `","reference":"ch_1"}`},
	} {
		w, url := lay(t, done)
		e := atURL(url, v.call.Step, "")
		act := map[provider.Operation]string{provider.Do: "/do", provider.Undo: "/undo", provider.Refund: "/refund"}
		map[provider.Operation]func(context.Context, *provider.Call) provider.Result{
			provider.Do: e.Do, provider.Undo: e.Undo, provider.Refund: e.Operate}[v.op](t.Context(), v.call)
		r := w.seen()[0]
		assert.True(t, r.body == v.body && r.uri == act[v.op] && r.method == http.MethodPost, r.method, r.uri, r.body, v.body)
		assert.True(t, json.Valid([]byte(r.body)), "no JSON")
	}
}

func TestHeadersOfARequest(t *testing.T) {
	t.Parallel()
	w, url := lay(t, done)
	c := aCall(fsm.Charge)
	c.Fence = 42
	e := atURL(url, c.Step, secretOf(t, secretText))
	e.Do(t.Context(), c)
	e.Undo(t.Context(), again(c))
	for i, op := range []provider.Operation{provider.Do, provider.Undo} {
		r := w.seen()[i]
		for name, want := range map[string]string{
			"Idempotency-Key": c.Key(op), "Webhook-Id": c.Key(op), "Fencing-Token": strconv.Itoa(42 + i), "Content-Type": "application/json",
		} {
			got := r.header.Values(name)
			assert.True(t, len(got) == 1 && got[0] == want, name, got, want)
		}
		agent := r.header.Get("User-Agent")
		assert.True(t, regexp.MustCompile(`^pawl/[^ ()]+$`).MatchString(agent), "User-Agent", agent)
		checkSignature(t, &r)
	}
}

// checkSignature does what a receiver does, by the text of the specification.
func checkSignature(t *testing.T, r *request) {
	t.Helper()
	at := r.header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	assert.True(t, err == nil && time.Since(time.Unix(seconds, 0)).Abs() <= 5*time.Minute, "webhook-timestamp", at)
	key, err := base64.StdEncoding.DecodeString(secretText[len("whsec_"):])
	assert.NoError(t, err)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(r.header.Get("webhook-id") + "." + at + "." + r.body))
	want, got := "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), r.header.Get("webhook-signature")
	assert.Equal(t, got, want, "webhook-signature")
}

func TestNothingIsSignedWithoutASecret(t *testing.T) {
	t.Parallel()
	w, url := lay(t, done)
	atURL(url, fsm.Charge, "").Do(t.Context(), aCall(fsm.Charge))
	for name := range w.seen()[0].header {
		assert.True(t, !regexp.MustCompile(`(?i)^webhook`).MatchString(name), "there is", name)
	}
}

func TestASecretThatCantBeReadSendsNothing(t *testing.T) {
	t.Parallel()
	w, url := lay(t, done)
	for name, secret := range map[string]policy.Secret{
		"is missing":    "file:/does/not/exist",
		"is not base64": secretOf(t, "whsec_%%%hidden%%%"),
		"has no key":    secretOf(t, "whsec_"),
	} {
		e := atURL(url, fsm.Charge, secret)
		result, ok := e.Do(t.Context(), aCall(fsm.Charge)).(provider.Retry)
		assert.True(t, ok && result.Code == "secret_unusable" && result.Counts && !regexp.MustCompile("hidden").MatchString(result.Detail),
			"a secret that", name, result)
	}
	assert.Equal(t, len(w.seen()), 0, "requests")
}

func TestASecretIsReadWithEveryCall(t *testing.T) {
	t.Parallel()
	w, url := lay(t, done)
	secret := secretOf(t, "another secret, just as long")
	e := atURL(url, fsm.Charge, secret)
	e.Do(t.Context(), aCall(fsm.Charge))
	rewrite(t, secret, secretText)
	e.Do(t.Context(), aCall(fsm.Charge))
	checkSignature(t, &w.seen()[1])
}

func TestCallsOfAnOrderAreOneTrace(t *testing.T) {
	t.Parallel()
	w, url := lay(t, done)
	c := aCall(fsm.Charge)
	calls := []*provider.Call{c, again(c)}
	reserve, next, other := *c, *c, *c
	reserve.Step, next.Generation, other.OrderID = fsm.Reserve, 1, c.OrderID+" "
	for _, call := range append(calls, &reserve, &next, &other) {
		atURL(url, call.Step, "").Do(t.Context(), call)
	}
	var traces []string
	parents := map[string]bool{}
	for _, r := range w.seen() {
		part := regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`).FindStringSubmatch(r.header.Get("traceparent"))
		assert.Require(t, part != nil, "traceparent", r.header.Get("traceparent"))
		traces, parents[part[2]] = append(traces, part[1]), true
	}
	assert.True(t, traces[0] == traces[1] && traces[0] == traces[2] && traces[0] != traces[3] && traces[0] != traces[4] && len(parents) == 5,
		"traces", traces, "parents", parents)
}

// A policy has no such URLs. If it did, nothing would be sent, the order would be held, and no password would be shown.
func TestAnAddressThatCantBeUsedSendsNothing(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"none": "", "another scheme": "file:///etc/passwd", "no host": "http:///do", "what is no URL": "http://hidden\x7f",
	} {
		for _, executor := range []policy.Executor{policy.HTTP, policy.Simulator} {
			e := endpoint.New(&policy.Step{Executor: executor, URL: url}, fsm.Charge, local, provider.NewTransport(0, true))
			result, ok := e.Do(t.Context(), aCall(fsm.Charge)).(provider.Retry)
			assert.True(t, ok && result.Counts && !regexp.MustCompile("hidden").MatchString(result.Detail),
				name, "by", executor, result)
		}
	}
}

func TestLookupURLMakesALooker(t *testing.T) {
	t.Parallel()
	const url = "http://shop.example/"
	for of, s := range map[bool]policy.Step{
		false: {Executor: policy.HTTP, URL: url},
		true:  {Executor: policy.HTTP, URL: url, LookupURL: url},
	} {
		_, looks := endpoint.New(&s, fsm.Confirm, local, provider.NewTransport(0, true)).(provider.Looker)
		assert.Equal(t, looks, of, s, "is a Looker")
	}
	_, looks := endpoint.New(&policy.Step{Executor: policy.Simulator, URL: url}, fsm.Charge, local, provider.NewTransport(0, true)).(provider.Looker)
	assert.True(t, looks, "the simulator can't be asked")
}

// The clock of the machine may be wrong: what others compare with theirs goes by the clock of the call.
func TestClockOfTheCall(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	signed := ""
	_, url := lay(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed = r.Header.Get("Webhook-Timestamp")
		w.Header()["Date"] = nil // read by our own then
		w.Header().Set("Retry-After", at.Add(time.Hour).Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	c := aCall(fsm.Charge)
	c.Clock = func() time.Time { return at }
	result := atURL(url, fsm.Charge, secretOf(t, secretText)).Do(t.Context(), c)
	retry, _ := result.(provider.Retry)
	assert.Equal(t, retry.After, time.Hour, result, "want to wait for an hour")
	assert.Equal(t, signed, strconv.FormatInt(at.Unix(), 10), "signed at", at.Unix())
}

// atURL is an http executor whose URLs are all below one address.
func atURL(url string, of fsm.Step, secret policy.Secret) provider.Executor {
	return endpoint.New(&policy.Step{Executor: policy.HTTP, URL: url + "/do", UndoURL: url + "/undo",
		RefundURL: url + "/refund", Secret: secret}, of, local, provider.NewTransport(0, true))
}
