package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

var update = flag.Bool("update", false, "write examples.json")

// TestExamples makes one request after the other, as clients would. The first of each operation, and of some problems, is
// its example in the documentation: with -update it is written there. Without, it fails if the answers are others now.
func TestExamples(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	s := newStory(t)
	s.sellsAndHolds()
	s.usesProviders()
	s.keepsBooks()
	s.tellsReceivers()
	if *update {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		assert.NoError(t, encoder.Encode(s.told))
		assert.NoError(t, os.WriteFile("examples.json", b.Bytes(), 0o644))
		return
	}
	assert.Equal(t, slices.Sorted(maps.Keys(examples())), slices.Sorted(maps.Keys(s.told)), "examples.json is about")
	for name, stored := range examples() {
		assert.Equal(t, outline(t, stored), outline(t, s.told[name]), name, "is not what is stored: go test ./httpapi -run Examples -update")
	}
	for _, op := range theServer().documented {
		e, docs := examples()[op.OperationID], html.UnescapeString(withoutEngine().get(t, "/docs/"+op.Tags[0]).body)
		command := strings.ReplaceAll(e.Command(), docsOrigin, "http://localhost")
		assert.True(t, e.Status != 0 && strings.Contains(docs, command) && strings.Contains(docs, indented(e.Answer)), op.OperationID, "has no example in /docs")
		assert.Equal(t, slices.Contains(problemsOf(op), "refund_too_large"), op.OperationID == "refundOrder", op.OperationID, "lists a problem of refunds")
	}
}

// story is what happens to a shop, and what was told of it.
type story struct {
	*bundle
	t         *testing.T
	told      map[string]example
	outside   *httptest.Server // the provider, and the receiver of webhooks
	callbacks chan string
	private   *strings.Replacer // addresses and times of the test by those of a shop
}

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{bundle: &bundle{Database: dbtest.New(t), grace: patience}, t: t, told: map[string]example{}, callbacks: make(chan string, 1)}
	s.outside = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.outside.Close)
	s.private = strings.NewReplacer(s.outside.URL, "https://shop.example", strings.TrimPrefix(s.outside.URL, "http://"), "shop.example", "in 0s, last", "in 15m0s, last",
		pg.ReplicaName(), "pawl-0:7")
	s.serve(t, s.URL, engine.Config{Lease: lease, RecoveryInterval: 10 * time.Millisecond, PublicURL: "https://pawl.shop.example"}, Config{ResponseTimeout: patience})
	s.number(t)
	pool := open(t, s.URL)
	t.Cleanup(pool.Close)
	deliverer := webhooks.NewDeliverer(db.New(pool), events.NewReader(db.New(pool), s.engine.Orders),
		webhooks.Config{AllowPrivate: true, Registerer: prometheus.NewRegistry()})
	deliverer.Start()
	t.Cleanup(func() { deliverer.Stop(context.WithoutCancel(t.Context())) })
	return s
}

// answer is that of a receiver, or of a provider: it calls back later, does not know, or does what it is asked to.
func (s *story) answer(w http.ResponseWriter, r *http.Request) {
	var call struct{ OrderID, Operation, PaymentMethod, CallbackURL string }
	_ = json.NewDecoder(r.Body).Decode(&call)
	switch {
	case r.URL.Path == "/hooks":
		fmt.Fprint(w, `{"received":true}`)
	case r.URL.Path == "/refunds", call.PaymentMethod == "card_timeout":
		w.WriteHeader(http.StatusServiceUnavailable)
	case call.PaymentMethod == "bank_transfer" && call.Operation == "do":
		w.WriteHeader(http.StatusAccepted)
		s.callbacks <- strings.TrimPrefix(call.CallbackURL, "https://pawl.shop.example")
	default:
		fmt.Fprintf(w, `{"reference":"ch_%s"}`, call.OrderID)
	}
}

// say makes a request, and keeps it and its answer if they are the first of their operation or problem.
func (s *story) say(status int, request, body string, header ...string) answer {
	s.t.Helper()
	method, target, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(s.t.Context(), method, target, strings.NewReader(strings.ReplaceAll(body, "https://shop.example", s.outside.URL)))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	a := send(s.t, s.api, r, header...)
	assert.Require(s.t, a.status == status, request, body, a.status, a.body)
	e := example{Request: request, Status: status, Headers: map[string]string{}, Body: []byte(body), Answer: []byte(s.private.Replace(a.body))}
	for i := 0; i < len(header); i += 2 {
		e.Headers[header[i]] = header[i+1]
	}
	if body == "" {
		e.Body = nil
	}
	if a.body == "" {
		e.Answer = nil
	}
	name := theServer().operationAt(documentedAs(r.Pattern)).OperationID
	if status >= 400 {
		name = a.decoded(s.t).Code
	}
	if _, told := s.told[name]; !told {
		s.told[name] = e
	}
	return a
}

func (s *story) sellsAndHolds() {
	const process = "POST /api/orders/process"
	s.say(200, "GET /health", "")
	s.say(200, "GET /livez", "")
	s.say(200, "GET /api/me", "")
	s.say(200, "POST /api/webhook-endpoints", `{"url":"https://shop.example/hooks","types":["order.*"]}`)
	s.say(200, "PUT /api/inventory/widget", `{"onHand":12}`, "If-None-Match", "*")
	s.say(200, process, `{"orderId":"order-123","amount":"99.99","item":"widget","customerId":"customer-9"}`)
	s.say(409, process, `{"orderId":"order-123","amount":"100","item":"widget"}`)
	s.say(422, process, `{"orderId":"order-124","amount":"99.999","item":"widget"}`)
	s.say(200, "GET /api/orders/order-123", "")
	s.say(200, "GET /api/orders/order-123/transitions", "")
	s.say(422, "GET /api/orders?limit=201", "")
	s.say(409, "POST /api/orders/order-123/cancel", `{"reason":"not needed"}`)
	s.say(200, "POST /api/orders/order-123/refunds", `{"requestId":"ticket-4712","amount":"9.99","reason":"a cup is broken"}`)
	s.say(200, "GET /api/requests/ticket-4712", "")
	s.say(200, "GET /api/money-movements?currency=USD", "")

	s.say(200, "POST /api/inventory/lamp/adjustments", `{"requestId":"delivery-1","change":1,"reason":"delivery"}`)
	s.say(200, process, `{"orderId":"order-124","amount":"50.00","item":"lamp","quantity":2}`)
	s.say(200, "GET /api/error-groups", "")
	s.say(200, "POST /api/inventory/lamp/adjustments", `{"requestId":"delivery-2","change":1,"reason":"delivery"}`)
	s.say(200, "POST /api/orders/order-124/retry", `{"requestId":"retry-1","reason":"there are two again"}`)

	s.say(200, "POST /api/policies?dryRun=true", `{"source":"approval:\n  - {amountOver: 500, currency: USD, timeout: 24h}\n"}`)
	s.say(422, "POST /api/policies", `{"source":"charge:\n  executor: paypal\n"}`)
	s.say(200, "POST /api/policies", `{"source":"approval:\n  - {amountOver: 500, currency: USD, timeout: 24h}\n"}`)
	s.say(200, "POST /api/policies/1/activate", `{"reason":"agreed with finance"}`)
	s.say(200, "GET /api/policies", "")
	s.say(200, "GET /api/policies/1", "")
	for _, id := range []string{"order-500", "order-501", "order-502", "order-503", "order-504"} {
		s.say(202, process, `{"orderId":"`+id+`","amount":"700.00","item":"widget"}`)
	}
	s.say(200, "POST /api/orders/order-500/approve", `{"reason":"a known customer"}`)
	s.say(200, "POST /api/orders/order-501/reject", `{"reason":"the address is false"}`)
	s.say(202, "POST /api/orders/order-502/pause", `{"reason":"the customer is asked"}`)
	s.say(202, "POST /api/orders/order-502/resume", `{"reason":"the customer has answered"}`)
	s.say(200, "POST /api/orders/order-502/cancel", `{"reason":"not needed"}`)
	s.say(200, "POST /api/bulk/pause", `{"ids":["order-503","order-123"],"requestId":"close-1","reason":"the shop is closed"}`)
}

func (s *story) usesProviders() {
	s.activated(`charge:
  - {name: later, paymentMethod: later, executor: http, url: https://shop.example/charge, undoUrl: https://shop.example/undo,
     capture: later, captureUrl: https://shop.example/capture, voidUrl: https://shop.example/void}
  - {name: cards, executor: http, url: https://shop.example/charge, undoUrl: https://shop.example/undo, retry: {initial: 1ms, cap: 1ms, maxRetries: 1, budget: 1ms}}
`)
	const process = "POST /api/orders/process"
	s.say(202, process, `{"orderId":"order-600","amount":"99.99","item":"widget","paymentMethod":"bank_transfer"}`, "Prefer", "respond-async")
	s.say(200, "POST "+<-s.callbacks, `{"outcome":"done","reference":"ch_3P8xZq"}`)
	s.say(200, "GET /api/orders/order-600?wait=60", "")
	s.say(200, "POST /api/orders/order-600/disputes", `{"reference":"dp_1P8xZq","state":"opened","amount":"99.99","reason":"fraudulent"}`)

	s.say(202, process, `{"orderId":"order-601","amount":"99.99","item":"widget","paymentMethod":"card_timeout"}`)
	s.say(200, "GET /api/orders?hold=attention", "")
	eventually(s.t, "the overview has the failed call", func() bool { return strings.Contains(s.get(s.t, "/api/overview").body, `"failedAt"`) })
	s.say(200, "GET /api/overview", "")
	s.say(200, "POST /api/orders/order-601/step-result", `{"step":"charge","outcome":"done","reference":"ch_4P8xZq","reason":"seen in the dashboard"}`)

	s.say(200, process, `{"orderId":"order-602","amount":"99.99","item":"widget","paymentMethod":"later"}`)
	s.say(200, "GET /api/orders/order-602/calls", "") // of one that was answered: a callback may come before or after its call
	s.say(200, "POST /api/orders/order-602/captures", `{"requestId":"parcel-1","amount":"40.00","reason":"parcel 1 of 2"}`)
	s.say(200, "POST /api/orders/order-602/void", `{"requestId":"rest","reason":"the rest is sold out"}`)

	dir := s.t.TempDir()
	for name, secret := range map[string]string{"key": "sk_test_1", "hook": "whsec_of_the_hook"} {
		assert.NoError(s.t, os.WriteFile(filepath.Join(dir, name), []byte(secret), 0o600))
	}
	s.activated(fmt.Sprintf("charge: {executor: stripe, secret: 'file:%s/key', webhookSecret: 'file:%s/hook'}", dir, dir))
	event := `{"id":"evt_1","object":"event","type":"payment_intent.succeeded","data":{"object":{"id":"pi_1","object":"payment_intent"}}}`
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(event), Secret: "whsec_of_the_hook", Timestamp: time.Now()})
	s.say(200, "POST /api/webhooks/stripe", event, "Stripe-Signature", signed.Header)
}

// activated stores a policy, and has new orders use it.
func (s *story) activated(source string) {
	s.t.Helper()
	var p policyVersion
	body := policyBody(s.t, source)
	assert.NoError(s.t, json.Unmarshal([]byte(s.say(200, "POST /api/policies", body).body), &p))
	s.say(200, fmt.Sprintf("POST /api/policies/%d/activate", p.Version), "{}")
}

func (s *story) keepsBooks() {
	s.say(200, "GET /api/inventory?limit=1", "")
	s.say(200, "GET /api/inventory/lamp", "")
	s.say(200, "GET /api/inventory/lamp/movements?limit=1", "")
	s.delivered("order-123", "order.refund_done")
	s.say(200, "POST /api/erasures", `{"customerId":"customer-9","reason":"request 4711 of 2026-11-26","requestId":"erasure-4711"}`)
	s.say(200, "GET /api/erasures", "")
	s.say(202, "POST /api/verification", "")
	s.proved(s.t)
	s.say(200, "GET /api/verification", "")
	s.say(200, "GET /api/verifications", "")
	s.say(200, "GET /api/verifications/1", "")
	s.exec(s.t, `SET session_replication_role = replica; UPDATE inventory SET reserved = 2 WHERE item = 'widget'; RESET session_replication_role`)
	s.say(409, "PUT /api/inventory/widget", `{"onHand":1}`, "If-Match", s.get(s.t, "/api/inventory/widget").header.Get("ETag"))
}

func (s *story) tellsReceivers() {
	const endpoint = "/api/webhook-endpoints/whe_1"
	one := fmt.Sprintf("%s/deliveries/%d", endpoint, s.delivered("order-602", "order.void_done"))
	s.say(200, "GET /api/events?limit=1", "")
	s.say(200, "GET /api/webhook-endpoints", "")
	s.say(200, "GET "+endpoint, "")
	s.say(200, "GET "+endpoint+"/deliveries?orderId=order-602&limit=1", "")
	s.say(200, "GET "+one, "")
	s.say(200, "GET /api/orders/order-602/deliveries?limit=1", "")
	s.say(200, "POST "+endpoint+"/test", "")
	s.say(200, "PUT "+endpoint, `{"url":"https://shop.example/refunds","types":["order.refund_done","order.refund_failed"]}`, "If-Match", "*")
	s.say(200, "POST "+one+"/resend", `{"requestId":"resend-1","reason":"the shop lost it"}`)
	eventually(s.t, "it is sent again", func() bool { return strings.Contains(s.get(s.t, one).body, `"attempts":1`) })
	s.say(200, "POST "+one+"/skip", `{"requestId":"skip-1","reason":"entered by hand"}`)
	s.exec(s.t, `UPDATE webhook_deliveries SET state = 'exhausted', finished_at = NULL WHERE type = 'order.refund_done'`)
	s.say(200, "POST "+endpoint+"/recover", `{"since":"2026-11-20T00:00:00Z","requestId":"recover-1","reason":"the receiver was down"}`)
	s.say(200, "POST "+endpoint+"/rotate-secret", `{"requestId":"rotate-1","reason":"once a year"}`)
	s.say(200, "POST "+endpoint+"/disable", `{"requestId":"disable-1","reason":"maintenance of the shop"}`)
	s.say(200, "POST "+endpoint+"/enable", `{"requestId":"enable-1","reason":"maintenance is over"}`)
	s.say(204, "DELETE "+endpoint, "")
}

// delivered waits until an event is, the last of its order, and returns the number of the delivery.
func (s *story) delivered(orderID, event string) (number int64) {
	eventually(s.t, event+" is delivered", func() bool {
		all := s.get(s.t, "/api/orders/"+orderID+"/deliveries").decoded(s.t).Deliveries
		if len(all) > 0 {
			number = all[0].Delivery
		}
		return len(all) > 0 && all[0].Type == event && all[0].State == "delivered"
	})
	return number
}

// word is a value that is the same each time: no number, id, time or cursor.
var word = regexp.MustCompile(`^([A-Z]{3}|[A-Z]?[a-z_. ]{1,40})$`)

// outline lists the members of an example, and their values where these are the same each time.
func outline(t *testing.T, e example) string {
	t.Helper()
	var lines []string
	var walk func(at string, value any)
	walk = func(at string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, member := range value {
				walk(at+"/"+name, member)
			}
		case []any:
			for _, entry := range value {
				walk(at, entry)
			}
		default:
			if text := fmt.Sprint(value); word.MatchString(text) {
				at += " " + text
			}
			lines = append(lines, at)
		}
	}
	text, err := json.Marshal(e)
	assert.NoError(t, err)
	var value any
	assert.NoError(t, json.Unmarshal(text, &value))
	walk("", value)
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}
