package faults

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// parrot is a provider that repeats in every field of its answers what it was sent, and the secret that it shares. The
// item of an order says how it answers at first.
type parrot struct {
	t      *testing.T
	secret string
	mu     sync.Mutex
	seen   map[string]int    // requests, by key
	echoes map[string]string // what to repeat, by key
	tokens []string          // of callback URLs
}

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var body struct{ Item, PaymentMethod, CallbackURL, Operation, Step string }
	_ = json.Unmarshal(text, &body)
	key := r.Header.Get("Idempotency-Key") + r.URL.Query().Get("key")
	if form, err := url.ParseQuery(string(text)); err == nil && strings.HasPrefix(r.URL.Path, "/v1/") {
		body.PaymentMethod = form.Get("payment_method")
	}
	token := body.CallbackURL[strings.LastIndex(body.CallbackURL, "/")+1:]
	p.mu.Lock()
	if token != "" && !slices.Contains(p.tokens, token) {
		p.tokens = append(p.tokens, token)
	}
	if len(text) > 0 {
		p.echoes[key] = strings.Join([]string{body.PaymentMethod, p.secret, r.Header.Get("Authorization"), strings.ToUpper(token), url.QueryEscape(body.PaymentMethod), string(text)}, " ")
	}
	p.seen[key]++
	first, echo := p.seen[key] == 1, p.echoes[key]
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	said := map[string]any{"code": echo, "detail": echo, "reference": "r " + echo[:min(len(echo), 200)], "data": map[string]any{echo: []any{echo, json.Number(digits)}}}
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		w.WriteHeader(map[bool]int{true: 500, false: 402}[first])
		said = map[string]any{"error": map[string]any{"type": "card_error", "code": echo, "decline_code": echo, "message": echo}}
	case r.URL.Path == "/lookup":
		said["state"] = map[bool]string{true: "in_progress", false: "done"}[p.seen[key] < 3]
	case first && body.Item == "unknown", first && body.Operation == "undo":
		w.WriteHeader(http.StatusInternalServerError)
	case first && body.Item == "not_done":
		w.WriteHeader(http.StatusServiceUnavailable)
		said["outcome"] = "not_done"
	case first && body.Item == "unreadable":
		fmt.Fprint(w, echo)
		return
	case first && body.Item == "broken":
		if connection, _, err := w.(http.Hijacker).Hijack(); err == nil {
			fmt.Fprintf(connection, "%s\r\n\r\n", echo)
			_ = connection.Close()
		}
		return
	case body.Operation == "do" && (body.Item == "refused" && body.Step == "charge" || body.Item == "undone" && body.Step == "reserve"):
		w.WriteHeader(http.StatusPaymentRequired)
	case body.Item == "waiting" && body.Operation == "do":
		w.WriteHeader(http.StatusAccepted)
		said["action"] = map[string]any{"url": "https://bank.example/?" + echo, "returnUrl": "javascript:" + echo, "note": echo}
	}
	_ = json.NewEncoder(w).Encode(said)
}

// digits are a card number, which stands in data as a number, too.
const digits = "4242111122223333"

// leaks collects what came out of a service.
type leaks struct {
	*parrot
	process *process
	client  *client
	out     map[string]string // what came out, by where
	signing []string          // secrets of a webhook endpoint
}

func (l *leaks) note(where, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out[where] += text + "\n"
}

// ask makes a request, notes the answer and returns it.
func (l *leaks) ask(method, path, body string) string {
	l.t.Helper()
	a := l.send(request{method: method, url: path, body: body, prefer: "wait=1"})
	where, _, _ := strings.Cut(path, "?")
	if strings.HasPrefix(where, "/api/callbacks/") {
		where = "/api/callbacks/"
	}
	l.note(method+" "+where, fmt.Sprintln(a.header)+a.text)
	return a.text
}

// send makes a request, to a path, whose answer is not searched.
func (l *leaks) send(r request) *answer {
	l.t.Helper()
	r.url = l.process.url() + r.url
	a := l.client.send(l.t.Context(), r)
	assert.Require(l.t, a.code != 0, a.err)
	return a
}

// until asks for an order until it is as is said.
func (l *leaks) until(orderID, is string) {
	l.t.Helper()
	var text string
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(text, is); {
		text = l.ask(http.MethodGet, "/api/orders/"+orderID+"?wait=2", "")
		assert.Require(l.t, !time.Now().After(deadline) && !strings.Contains(text, `"hold":"attention"`),
			orderID, "is not", is, text)
	}
}

// methods are payment methods: of orders, of a retry, and at Stripe.
var methods = []string{"pm_marked_payment_method", digits, "pm_marked_method_of_a_retry", "pm_marked_method_of_stripe"}

func body(id, item, method string) string {
	return fmt.Sprintf(`{"orderId":%q,"amount":"9.50","item":%q,"paymentMethod":%q}`, id, item, method)
}

// ordersByHTTP sends orders that are answered in every way, and requests that are refused.
func (l *leaks) ordersByHTTP() {
	l.t.Helper()
	for _, item := range []string{"done", "unknown", "not_done", "unreadable", "broken", "refused", "undone"} {
		for i, method := range methods[:2] {
			id := fmt.Sprintf("%s-%d", item, i)
			l.ask(http.MethodPost, "/api/orders/process", body(id, item, method))
			l.until(id, map[bool]string{true: `"status":"failed"`, false: `"status":"completed"`}[item == "refused" || item == "undone"])
		}
	}
	l.ask(http.MethodPost, "/api/orders/process", body("waiting", "waiting", methods[0]))
	for answered := map[string]bool{}; len(answered) < 3; {
		l.until("waiting", `"hold":"callback"`)
		l.mu.Lock()
		token := l.tokens[len(l.tokens)-1]
		l.mu.Unlock()
		if !answered[token] {
			answered[token] = true
			echo, _ := json.Marshal(methods[0] + " " + token + " " + l.secret)
			l.ask(http.MethodPost, "/api/callbacks/"+token, fmt.Sprintf(`{"outcome":"done","reference":%s,"code":%[1]s,"detail":%[1]s,"data":{"a":%[1]s}}`, echo))
			l.ask(http.MethodPost, "/api/callbacks/"+token, fmt.Sprintf(`{"outcome":"refused","code":%s}`, echo))
			l.ask(http.MethodPost, "/api/callbacks/"+token, fmt.Sprintf(`{"outcome":%s}`, echo))
		}
		if len(answered) == 3 {
			l.until("waiting", `"status":"completed"`)
		}
	}
	l.ask(http.MethodPost, "/api/orders/done-0/refunds", `{"amount":"1.25","reason":"test","requestId":"r-1"}`)
	l.ask(http.MethodPost, "/api/orders/process", body("done-0", "done", methods[1])) // a conflict
	l.ask(http.MethodPost, "/api/orders/process", body("long", "done", strings.Repeat(methods[0], 20)))
	l.ask(http.MethodPost, "/api/orders/process", body("done-0", "done", methods[0]+"\x01"))
	l.ask(http.MethodPost, "/api/orders/process", body("cut", "done", methods[0])[:70])
	l.ask(http.MethodPost, "/api/orders/refused-0/retry", fmt.Sprintf(`{"reason":"test","paymentMethod":%q}`, methods[2]))
	l.until("refused-0", `"status":"failed"`)
	l.ask(http.MethodPost, "/api/webhooks/stripe", `{"object":"event"}`)
}

// hooks has events sent to an endpoint that repeats the secrets they are signed with, one after the other.
func (l *leaks) hooks() {
	l.t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprint(w, l.signing)
	}))
	l.t.Cleanup(receiver.Close)
	id := "whe_1"
	for _, path := range []string{"/api/webhook-endpoints", "/api/webhook-endpoints/" + id + "/rotate-secret"} {
		a := l.send(request{method: http.MethodPost, url: path, body: fmt.Sprintf(`{"url":%q}`, receiver.URL)})
		var made struct{ ID, Secret string }
		if err := json.Unmarshal([]byte(a.text), &made); err != nil || made.ID != id || made.Secret == "" {
			l.t.Fatalf("%s: %s, %v", path, a, err) // these two answers show it, and no other
		}
		l.mu.Lock()
		l.signing = append(l.signing, strings.TrimPrefix(made.Secret, "whsec_"))
		l.mu.Unlock()
		said := l.ask(http.MethodPost, "/api/webhook-endpoints/"+id+"/test", "")
		assert.Contains(l.t, said, "***", "the answer of the endpoint is not masked")
	}
}

// forgeEvent sends an event with a secret in the place of its signature.
func (l *leaks) forgeEvent(hook string) {
	l.t.Helper()
	a := l.send(request{method: http.MethodPost, url: "/api/webhooks/stripe", body: `{"a":"` + hook + `"}`, header: [2]string{"Stripe-Signature", "t=1,v1=" + hook}})
	l.note("webhook", a.text)
}

// readAll asks for everything that the API tells.
func (l *leaks) readAll() {
	l.t.Helper()
	orders := l.ask(http.MethodGet, "/api/orders?limit=200", "")
	for _, path := range []string{"/health", "/api/inventory", "/api/orders?status=failed", "/openapi.yaml", "/api/events?limit=200",
		"/api/webhook-endpoints", "/api/webhook-endpoints/whe_1", "/api/webhook-endpoints/whe_1/deliveries"} {
		l.ask(http.MethodGet, path, "")
	}
	var list struct{ Orders []struct{ OrderID string } }
	err := json.Unmarshal([]byte(orders), &list)
	assert.Require(l.t, err == nil && len(list.Orders) >= 16, err, orders)
	for _, o := range list.Orders {
		l.ask(http.MethodGet, "/api/orders/"+o.OrderID+"/calls", "")
		l.ask(http.MethodGet, "/api/orders/"+o.OrderID+"/transitions", "")
	}
}

// TestNothingWithheldComesOut sends marked texts through every way in and has every executor's every answer repeat them.
// Then it looks for them in everything that comes out.
func TestNothingWithheldComesOut(t *testing.T) {
	build(t)
	t.Parallel()
	const step, hook, key = "marked_secret_of_steps", "marked_secret_of_webhooks", "sk_test_marked_key"
	l := &leaks{parrot: &parrot{t: t, secret: step, seen: map[string]int{}, echoes: map[string]string{}}, client: newClient(4, true), out: map[string]string{}}
	t.Cleanup(l.client.close)
	provider, spans := httptest.NewServer(l.parrot), &spanStore{}
	t.Cleanup(provider.Close)
	collector := httptest.NewServer(spans)
	t.Cleanup(collector.Close)
	database := dbtest.New(t)
	at := func(of, more string) string {
		return fmt.Sprintf("%s: {executor: http, url: %q, lookupUrl: %q, secret: 'env:PAWL_SECRET_STEP', retry: {initial: 1ms, cap: 20ms, maxRetries: 200, budget: 0s}, timeout: 20s%s}\n",
			of, provider.URL+"/"+of, provider.URL+"/lookup", more)
	}
	undo := func(of string) string { return fmt.Sprintf(", undoUrl: %q", provider.URL+"/"+of+"/undo") }
	byHTTP := at("charge", undo("charge")+fmt.Sprintf(", refundUrl: %q", provider.URL+"/charge/refund")) + at("reserve", undo("reserve")) + at("confirm", "")
	byStripe := func(url string) string {
		return fmt.Sprintf("charge: {executor: stripe, url: %q, secret: 'env:PAWL_SECRET_KEY', webhookSecret: 'env:PAWL_SECRET_HOOK', retry: {initial: 1ms, cap: 20ms, maxRetries: 7, budget: 0s}}\n", url)
	}
	stripe := &stripeParrot{simulator: simulator.New(), secrets: hook + " " + key, methods: map[string]string{
		"pm_marked_approved": "pm_card_visa", "pm_marked_declined": "pm_card_visa_chargeDeclinedLostCard",
		"pm_marked_to_act": "pm_card_authenticationRequired", "pm_marked_processing": "pm_usBankAccount_processing",
	}}
	atStripe := slices.Sorted(maps.Keys(stripe.methods))
	likeStripe := httptest.NewServer(stripe)
	t.Cleanup(likeStripe.Close)
	serve := func(policy string) {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		assert.NoError(t, os.WriteFile(path, []byte(policy), 0o600))
		l.process = launch(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "PAWL_SECRET_STEP=" + step, "PAWL_SECRET_HOOK=" + hook, "PAWL_SECRET_KEY=" + key},
			"serve", "--database-url", database.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--log-level", "debug", "--policy", path)
	}
	end := func() {
		l.note("metrics", l.ask(http.MethodGet, "/metrics", ""))
		l.process.terminate()
		l.note("log", l.process.stdout()+l.process.stderr())
	}
	serve(byHTTP)
	l.hooks()
	l.ordersByHTTP()
	end()

	serve(byStripe(likeStripe.URL))
	l.ordersAtStripe()
	end()

	l.secret = key
	serve(byStripe(provider.URL))
	l.ask(http.MethodPost, "/api/orders/process", body("stripe", "done", methods[3]))
	l.until("stripe", `"status":"failed"`)
	l.forgeEvent(hook)
	l.readAll()
	_, said := run(t, "verify", "--database-url", database.URL, "-o", "json")
	l.note("verify", said)
	end()
	l.books(database)
	spans.mu.Lock()
	for _, span := range spans.spans {
		l.note("traces", span.String())
	}
	spans.mu.Unlock()
	l.search(database, append(slices.Concat(atStripe, methods, l.tokens), step, hook, key))
}

// books notes what a role sees that may read the views and nothing else.
func (l *leaks) books(database *dbtest.Database) {
	l.t.Helper()
	ctx := context.WithoutCancel(l.t.Context())
	tx, err := database.Pool.Begin(ctx)
	assert.NoError(l.t, err)
	defer tx.Rollback(ctx)
	var role string // of people and reports
	if err := tx.QueryRow(ctx, `SELECT rolname FROM pg_catalog.pg_roles
		WHERE rolname LIKE '%\_read' AND rolname NOT LIKE 'pg\_%' AND has_schema_privilege(oid, 'books', 'USAGE')`).Scan(&role); err != nil {
		l.t.Fatal(err)
	}
	var views []string
	err = tx.QueryRow(ctx, "SELECT array_agg(viewname::text) FROM pg_catalog.pg_views WHERE schemaname = 'books'").Scan(&views)
	assert.Require(l.t, err == nil && len(views) >= 5, "views", views, err)
	assert.NoError(l.t, assert.Err(tx.Exec(ctx, "SET LOCAL ROLE "+role)))
	for _, view := range views {
		var text string
		assert.NoError(l.t, tx.QueryRow(ctx, "SELECT coalesce(string_agg(v::text, E'\\n'), '') FROM books."+view+" AS v").Scan(&text),
			"books.", view)
		l.note("books."+view, text)
	}
}

// search looks for marked texts in all that came out. That they were repeated is seen by what stands in their place.
func (l *leaks) search(database *dbtest.Database, marked []string) {
	l.t.Helper()
	var secret []byte
	err := database.Pool.QueryRow(context.WithoutCancel(l.t.Context()), "SELECT callback_secret FROM pawl.installation").Scan(&secret)
	assert.NoError(l.t, err)
	marked = append(marked, hex.EncodeToString(secret))
	repeated := strings.ToLower(fmt.Sprint(l.echoes))
	for _, text := range slices.Concat(methods, l.tokens, []string{"marked_secret_of_steps"}) {
		assert.Contains(l.t, repeated, strings.ToLower(text), text, "was not repeated")
	}
	marked = append(marked, l.signing...)
	for where, out := range l.out {
		for _, text := range marked {
			at := strings.Index(strings.ToLower(out), strings.ToLower(text))
			assert.True(l.t, at < 0, text, "came out at", where, out[max(0, at-120):min(len(out), at+len(text)+40)])
		}
		assert.True(l.t, !strings.Contains(out, "javascript:"), "javascript: came out at", where)
	}
	for _, where := range []string{"books.step_calls", "GET /api/orders/refused-0", "log"} {
		assert.Contains(l.t, l.out[where], "***", where, "nothing was masked")
	}
}

// stripeParrot is Stripe as the simulator plays it, but it repeats what is withheld in every text of its answers that is not
// a name or a word of its API.
type stripeParrot struct {
	simulator *simulator.Simulator
	methods   map[string]string // what the simulator calls a payment method
	secrets   string

	mu     sync.Mutex
	method string // of the order that is charged
}

// ownWords are the fields of Stripe's objects that an executor goes by.
var ownWords = []string{
	"id", "object", "type", "status", "currency", "created", "capture_method", "payment_intent", "latest_charge", "metadata",
	"balance_transaction", "confirmation_method", "last_payment_error",
}

func (p *stripeParrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	if form, err := url.ParseQuery(string(text)); err == nil && form.Has("payment_method") {
		p.mu.Lock()
		p.method = form.Get("payment_method")
		p.mu.Unlock()
		form.Set("payment_method", p.methods[form.Get("payment_method")])
		text = []byte(form.Encode())
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	recorded := httptest.NewRecorder()
	p.simulator.ServeHTTP(recorded, r)
	var answer any
	if json.Unmarshal(recorded.Body.Bytes(), &answer) == nil {
		recorded.Body = bytes.NewBuffer(nil)
		p.mu.Lock()
		echo := p.secrets + " " + p.method
		p.mu.Unlock()
		_ = json.NewEncoder(recorded.Body).Encode(repeat(answer, echo))
	}
	for name, values := range recorded.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(recorded.Code)
	_, _ = w.Write(recorded.Body.Bytes())
}

// repeat adds the echo to the texts of an answer, and to each object one more.
func repeat(value any, echo string) any {
	switch value := value.(type) {
	case string:
		return value + "?" + echo
	case []any:
		for i := range value {
			value[i] = repeat(value[i], echo)
		}
	case map[string]any:
		for name, member := range value {
			if _, isText := member.(string); name != "metadata" && !(isText && slices.Contains(ownWords, name)) {
				value[name] = repeat(member, echo)
			}
		}
		if value["object"] != nil {
			value["description"] = echo
		}
	}
	return value
}

// ordersAtStripe are orders that Stripe answers in every way: done, declined, to be acted upon and processing, then
// undone, refunded or failed.
func (l *leaks) ordersAtStripe() {
	l.t.Helper()
	for id, wanted := range map[string]string{
		"marked_approved": `"status":"completed"`, "marked_declined": `"status":"failed"`,
		"marked_to_act": `"hold":"callback"`, "marked_processing": `"hold":"callback"`,
	} {
		l.ask(http.MethodPost, "/api/orders/process", body(id, "stripe", "pm_"+id))
		l.until(id, wanted)
		if strings.Contains(wanted, "callback") {
			l.ask(http.MethodPost, "/api/orders/"+id+"/cancel", `{"reason":"test"}`)
			l.until(id, `"status":"canceled"`)
		}
	}
	l.ask(http.MethodPost, "/api/orders/marked_approved/refunds", `{"amount":"1.25","reason":"test","requestId":"r-1"}`)
	l.until("marked_approved", `"state":"done"`)
}

// spanStore is a collector of traces: OTLP over HTTP, protobuf.
type spanStore struct {
	mu       sync.Mutex
	services []string
	spans    []*traces.Span
}

func (s *spanStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				s.services = append(s.services, a.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			s.spans = append(s.spans, scope.Spans...)
		}
	}
}

// TestTraces has the program send its spans to a collector, the last of them while it ends.
func TestTraces(t *testing.T) {
	build(t)
	t.Parallel()
	store := &spanStore{}
	server := httptest.NewServer(store)
	t.Cleanup(server.Close)
	p := launch(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_SERVICE_NAME=shop"},
		"--allow-data-loss", "--database-url", dbtest.Empty(t), "--listen", "127.0.0.1", "--port", "0")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url()+"/api/orders/process",
		strings.NewReader(`{"orderId":"secret","amount":1,"item":"widget"}`))
	assert.NoError(t, err)
	request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	answer, err := http.DefaultTransport.RoundTrip(request)
	assert.NoError(t, err)
	answer.Body.Close()
	code := p.terminate()
	assert.True(t, code == 0 && answer.StatusCode == http.StatusOK, "answered", answer.Status, "ended with", code)
	store.mu.Lock()
	defer store.mu.Unlock()
	assert.Require(t, len(store.spans) == 1 && len(store.services) == 1 && store.services[0] == "shop",
		len(store.spans), "spans, of", store.services)
	if s := store.spans[0]; s.Name != "POST /api/orders/process" || s.Kind != traces.Span_SPAN_KIND_SERVER ||
		string(s.TraceId) != "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" || strings.Contains(s.String(), "secret") {
		t.Errorf("%v", s)
	}
}

// TestTracesThatNobodyTakes: a collector that is not there neither keeps the program from serving nor from ending.
func TestTracesThatNobodyTakes(t *testing.T) {
	build(t)
	t.Parallel()
	p := launch(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"--allow-data-loss", "--database-url", dbtest.Empty(t), "--listen", "127.0.0.1", "--port", "0", "--grace", "2s")
	a := newClient(1, false).insist(t.Context(), p.url(), order{id: "o-1", amount: "1.00", item: "widget"})
	assert.Equal(t, a.state(), "completed", "answered", a)
	assert.Equal(t, p.terminate(), 0, "ended with")
}
