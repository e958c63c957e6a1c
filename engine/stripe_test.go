package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/engine"
	"pawl/internal/cell"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// bank is as much of Stripe as one payment intent needs. What it does with a confirmation is told before.
type bank struct {
	*httptest.Server
	mu       sync.Mutex
	status   string // of the intent
	confirms string // what a confirmation makes of it
	busy     int    // captures that are answered 429 first
	requests []string
}

func openBank(t *testing.T, confirms string) *bank {
	t.Helper()
	b := &bank{confirms: confirms}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// ServeHTTP implements http.Handler.
func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	op := strings.TrimPrefix(r.URL.Path, "/v1/payment_intents")
	b.requests = append(b.requests, r.Method+" "+op)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case op == "" && b.status == "":
		b.status = "requires_confirmation"
	case op == "/pi_1/confirm":
		b.status = b.confirms
	case op == "/pi_1/capture" && b.busy > 0:
		b.busy--
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error":{"type":"invalid_request_error","code":"rate_limit"}}`)
		return
	case op == "/v1/refunds":
		fmt.Fprint(w, `{"object":"refund","id":"re_1","status":"succeeded","payment_intent":"pi_1"}`)
		return
	case op == "/pi_1/capture":
		b.status = "succeeded"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "payment_intent", "id": "pi_1", "status": b.status})
}

func (b *bank) set(status string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

func (b *bank) asked(request string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.requests, request)
}

// useStripe makes a policy of a bank; the secret of its webhooks is "whsec_of_stripes_hook".
func (s *shop) useStripe(t *testing.T, b *bank, tuning string) {
	t.Helper()
	folder := t.TempDir()
	for name, secret := range map[string]string{"key": "sk_test_1", "webhook": "whsec_of_stripes_hook"} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(secret), 0o600))
	}
	s.use(t, fmt.Sprintf("charge: {executor: stripe, url: %q, secret: \"file:%s/key\", webhookSecret: \"file:%s/webhook\"%s", b.URL, folder, folder, tuning))
}

func paid(orderID string) engine.Input {
	in := request(orderID)
	in.PaymentMethod = "pm_card_visa"
	return in
}

// What is captured is the intent of the charge, also by a driver who did not charge it.
func TestCaptureIsTriedAgain(t *testing.T) {
	t.Parallel()
	s, b := openShop(t, 1, quick), openBank(t, "requires_capture")
	b.busy = 3
	s.useStripe(t, b, ", capture: on_confirm}\nconfirm: {executor: stripe, retry: {initial: 1ms, cap: 2ms}}")
	s.admit(t, paid("o"))
	o := s.until(t, "o", "completed")
	assert.Equal(t, *o.ChargeReference, "pi_1", brief(o))
}

// event is one of Stripe's about an order, signed.
func (s *shop) event(t *testing.T, orderID, secret string) (payload []byte, signature string) {
	t.Helper()
	installation := value[string](t, s.Pool, `SELECT id::text FROM installation`)
	payload = fmt.Appendf(nil, `{"object":"event","id":"evt_1","type":"payment_intent.succeeded","data":{"object":{"object":"payment_intent",
		"id":"pi_1","status":"canceled","metadata":{"pawl_installation":%q,"pawl_order":%q,"pawl_generation":"0"}}}}`, installation, orderID)
	return payload, webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: secret, Timestamp: time.Now()}).Header
}

func TestStripeEventIsAHint(t *testing.T) {
	t.Parallel()
	s, b := openShop(t, 1, quick), openBank(t, "processing")
	s.useStripe(t, b, "}")
	s.admit(t, paid("o"))
	held := s.until(t, "o", "callback")
	send := func(orderID, secret string) error {
		payload, signature := s.event(t, orderID, secret)
		return s.engine.StripeEvent(t.Context(), payload, signature)
	}
	err := send("o", "whsec_of_somebody_else")
	assert.True(t, errors.Is(err, engine.ErrSignature) && s.get(t, "o").Seq == held.Seq, err, brief(s.get(t, "o")))
	err = send("another", "whsec_of_stripes_hook")
	assert.True(t, err == nil && s.get(t, "o").Seq == held.Seq, err, brief(s.get(t, "o")))
	if err := send("o", "whsec_of_stripes_hook"); err != nil { // it asks, and is told to wait on
		t.Fatal(err)
	}
	eventually(t, "Stripe is asked", func() bool { return b.asked("GET /pi_1") })
	eventually(t, "it waits on", func() bool {
		o := s.get(t, "o")
		return o.Hold != nil && *o.Hold == "callback" && o.Seq > held.Seq+1
	})
	b.set("succeeded") // and the event says canceled
	assert.NoError(t, send("o", "whsec_of_stripes_hook"))
	done := s.until(t, "o", "completed")
	err = send("o", "whsec_of_stripes_hook")
	assert.True(t, err == nil && s.get(t, "o").Seq == done.Seq, err, brief(s.get(t, "o")))
}

// A cell ignores an event about an order of another cell, even if a division has left it the row.
func TestStripeEventOfOtherCell(t *testing.T) {
	t.Parallel()
	cfg := quick
	cfg.Cell = cell.Of("o", 2)
	cfg.Cell.Number = 1 - cfg.Cell.Number
	s, b := openShop(t, 1, cfg), openBank(t, "processing")
	s.useStripe(t, b, "}")
	s.admit(t, paid("o"))
	held := s.until(t, "o", "callback")
	b.set("succeeded")
	payload, signature := s.event(t, "o", "whsec_of_stripes_hook")
	err := s.engine.StripeEvent(t.Context(), payload, signature)
	assert.True(t, err == nil && s.get(t, "o").Seq == held.Seq, err, brief(s.get(t, "o")))
}

// What Stripe reports about a dispute is recorded for the order of the charge, once, and only with the secret of its account.
func TestStripeDisputes(t *testing.T) {
	t.Parallel()
	s, b := openShop(t, 1, quick), openBank(t, "succeeded")
	s.useStripe(t, b, "}")
	s.admit(t, paid("o"))
	s.until(t, "o", "completed")
	send := func(secret, intent, status, currency string) error {
		return s.reportDispute(t, secret, fmt.Sprintf(`"created":1790000000,"data":{"object":{"object":"dispute",
			"id":"dp_1","charge":"ch_1","payment_intent":%q,"status":%q,"amount":250,"currency":%q,"reason":"fraudulent"}}`, intent, status, currency))
	}
	assert.ErrorIs(t, send("whsec_of_somebody_else", "pi_1", "lost", "usd"), engine.ErrSignature)
	for _, report := range [][3]string{
		{"pi_1", "needs_response", "usd"}, {"pi_1", "under_review", "usd"}, {"pi_1", "lost", "usd"}, {"pi_1", "lost", "usd"},
		{"pi_2", "lost", "usd"}, {"pi_1", "won", "eur"}, {"", "won", "usd"},
	} {
		assert.NoError(t, send("whsec_of_stripes_hook", report[0], report[1], report[2]))
	}
	facts := value[string](t, s.Pool, `SELECT string_agg(concat_ws(' ', order_id, reference, state, amount, currency, reason, extract(epoch FROM at)::bigint), ', ' ORDER BY state) FROM books.disputes`)
	assert.Equal(t, facts, "o dp_1 lost 2.50 USD fraudulent 1790000000, o dp_1 opened 2.50 USD fraudulent 1790000000")
	o := s.get(t, "o")
	assert.True(t, o.Status == "completed" && *o.Disputes == 2, brief(o))
	found, err := s.engine.Orders.Search(t.Context(), orders.Sought{Term: "ch_1", Among: orders.Filter{Limit: 2}}, orders.Position{})
	assert.NoError(t, err)
	assert.True(t, len(found.Matches) == 1 && found.Matches[0].Order.OrderID == "o" && found.Matches[0].Matched == "disputeCharge", found)
}

// reportDispute sends an event about a dispute.
func (s *shop) reportDispute(t *testing.T, secret, event string) error {
	t.Helper()
	payload := fmt.Appendf(nil, `{"object":"event","id":"evt_1","type":"charge.dispute.created",%s}`, event)
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: secret, Timestamp: time.Now()})
	return s.engine.StripeEvent(t.Context(), payload, signed.Header)
}

// Before a charge is recorded, nobody knows whose dispute it is. Stripe must repeat it, unless it is older than all orders
// that are being charged.
func TestDisputeBeforeItsCharge(t *testing.T) {
	t.Parallel()
	s, b := openShop(t, 1, quick), openBank(t, "processing")
	s.useStripe(t, b, "}")
	s.admit(t, paid("o"))
	s.until(t, "o", "callback")
	report := func(at time.Time) error {
		return s.reportDispute(t, "whsec_of_stripes_hook", fmt.Sprintf(`"created":%d,"data":{"object":{"object":"dispute",
			"id":"dp_1","charge":"ch_1","payment_intent":"pi_1","status":"needs_response","amount":250,"currency":"usd"}}`, at.Unix()))
	}
	assert.NoError(t, report(time.Now().Add(-time.Hour)))
	assert.ErrorIs(t, report(time.Now()), orders.ErrUnavailable, "while an order is being charged")
	b.set("succeeded")
	payload, signature := s.event(t, "o", "whsec_of_stripes_hook")
	assert.NoError(t, s.engine.StripeEvent(t.Context(), payload, signature))
	s.until(t, "o", "completed")
	s.counts(t, 0, `SELECT count(*) FROM disputes`)
	assert.NoError(t, report(time.Now()))
	s.counts(t, 1, `SELECT count(*) FROM disputes`)
}

// An order that was taken up while it reserved goes back in the same run. Its refund needs what Stripe calls the charge:
// without it a day later, when the key is forgotten, an undo finds nothing to take back.
func TestRefundKnowsTheCharge(t *testing.T) {
	t.Parallel()
	s, b := openShop(t, 1, quick), openBank(t, "succeeded")
	s.useStripe(t, b, "}\n"+atEndpoint(halfAnHour, "reserve"))
	s.provider.says("reserve/do: not done; refused")
	s.admit(t, paid("o"))
	s.until(t, "o", "retry")
	s.exec(t, `UPDATE orders SET due_at = now()`)
	s.until(t, "o", "failed")
	b.mu.Lock()
	defer b.mu.Unlock()
	creations := slices.Index(b.requests, "POST ")
	assert.True(t, !slices.Contains(b.requests[creations+1:], "POST ") && slices.Contains(b.requests, "POST /v1/refunds"),
		"asked for", strings.Join(b.requests, ", "))
}
