package simulator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

const (
	confirm = "POST /v1/payment_intents/pi_1/confirm"
	capture = "POST /v1/payment_intents/pi_1/capture"
	cancel  = "POST /v1/payment_intents/pi_1/cancel"
	refund  = "POST /v1/refunds payment_intent=pi_1"
)

func TestStripeCharge(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
	s.entries("o", "") // not confirmed yet
	s.says(confirm, "b", "200 pi_1 succeeded")
	s.entries("o", "charge a live 1 12.50 EUR")
	e := s.Books("o")[0]
	assert.True(t, e.Item == "boat" && e.Generation == 3 && e.Reference == "pi_1" && e.Requests == 1, e)
	charge, _ := s.object("pi_1")["latest_charge"].(map[string]any)
	assert.True(t, charge["id"] == "ch_1_1" && charge["captured"] == true && charge["refunded"] == false, charge)
	s.says(confirm, "c", "400 invalid_request_error payment_intent_unexpected_state")
	s.says(cancel, "d", "400 invalid_request_error payment_intent_unexpected_state")
	s.says(capture, "e", "400 invalid_request_error payment_intent_unexpected_state")
	s.says(refund, "f", "200 re_2 succeeded")
	s.says(refund, "g", "400 invalid_request_error charge_already_refunded")
	s.says(refund, "f", "200 re_2 succeeded again")
	s.entries("o", "charge a undone 1 12.50 EUR")
	sum := s.Summary()
	assert.True(t, sum.OK() && sum.Steps["charge"].Undone == 1 && sum.Money[0].Charged == "12.50" && sum.Money[0].Refunded == "12.50", sum)
}

func TestStripeAuthorization(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*provider){
		"is captured once": func(p *provider) {
			p.says(intent("o", "capture_method=manual", "confirm=true"), "a", "200 pi_1 requires_capture")
			p.entries("o", "charge a live 1 12.50 EUR")
			p.says(refund, "b", "400 invalid_request_error payment_intent")
			p.says(capture, "c", "200 pi_1 succeeded")
			p.says(capture, "d", "400 invalid_request_error payment_intent_unexpected_state")
			p.says(cancel, "e", "400 invalid_request_error payment_intent_unexpected_state")
			p.entries("o", "charge a live 1 12.50 EUR; confirm c live 1 12.50 EUR")
			p.says(refund, "f", "200 re_2 succeeded")
			p.entries("o", "charge a undone 1 12.50 EUR; confirm c undone 1 12.50 EUR")
		},
		"is voided": func(p *provider) {
			p.says(intent("o", "capture_method=manual", "confirm=true"), "a", "200 pi_1 requires_capture")
			p.says(cancel, "b", "200 pi_1 canceled")
			p.says(capture, "c", "400 invalid_request_error payment_intent_unexpected_state")
			p.says(confirm, "d", "400 invalid_request_error payment_intent_unexpected_state")
			p.entries("o", "charge a undone 1 12.50 EUR")
		},
		"expires": func(p *provider) {
			p.faults("decline@confirm/capture")
			p.says(intent("o", "capture_method=manual", "confirm=true"), "a", "200 pi_1 requires_capture")
			p.says(capture, "b", "400 invalid_request_error capture_charge_authorization_expired")
			p.entries("o", "charge a undone 1 12.50 EUR; confirm b refused 0 12.50 EUR")
			why := p.object("pi_1")["cancellation_reason"]
			assert.True(p.t, why == "automatic", "canceled for", why)
		},
	})
}

func TestStripeDeclines(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{
		"pm_card_visa_chargeDeclined":                  "402 card_error card_declined generic_decline",
		"pm_card_visa_chargeDeclinedInsufficientFunds": "402 card_error card_declined insufficient_funds",
		"pm_card_chargeDeclinedExpiredCard":            "402 card_error expired_card expired_card",
	} {
		s := start(t, simulator.Config{})
		s.says(intent("o", "payment_method="+method), "a", "200 pi_1 requires_confirmation")
		s.says(confirm, "b", want)
		s.says(confirm, "b", want+" again")
		s.says(confirm, "c", "400 invalid_request_error payment_intent_unexpected_state") // it has no payment method any more
		s.entries("o", "charge a refused 0 12.50 EUR")
		s.says(confirm+" payment_method=pm_card_visa", "d", "200 pi_1 succeeded")
		s.entries("o", "charge a live 1 12.50 EUR")
	}
}

func TestStripeWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, status, happens, then, books string }{
		{"pm_card_authenticationRequired", "requires_action", simulator.Approved, "succeeded", "live 1"},
		{"pm_card_authenticationRequired", "requires_action", simulator.Declined, "requires_payment_method", "refused 0"},
		{"pm_usBankAccount_processing", "processing", simulator.Approved, "succeeded", "live 1"},
		{"pm_usBankAccount_processing", "processing", simulator.Declined, "requires_payment_method", "refused 0"},
	} {
		s := start(t, simulator.Config{})
		s.says(intent("o", "payment_method="+tt.method, "confirm=true"), "a", "200 pi_1 "+tt.status)
		s.entries("o", "charge a pending 0 12.50 EUR")
		response, err := s.client.Post(s.url+"/stripe/payment_intents/pi_1/"+tt.happens, "", nil)
		assert.Require(t, err == nil && response.StatusCode == http.StatusOK, response, err)
		response.Body.Close()
		is := s.object("pi_1")["status"]
		assert.True(t, is == tt.then, tt.happens, "of", tt.method, is)
		s.entries("o", "charge a "+tt.books+" 12.50 EUR")
		assert.True(t, s.Happen("pi_1", tt.happens, "") != nil, "it happens twice")
	}
	s := start(t, simulator.Config{})
	s.says(intent("o", "payment_method=pm_card_authenticationRequired", "confirm=true"), "a", "200 pi_1 requires_action")
	s.says(cancel, "b", "200 pi_1 canceled")
	s.entries("o", "charge a voided 0 12.50 EUR")
}

func TestStripeKeys(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*provider){
		"say again what they said, whatever has become of it": func(p *provider) {
			p.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			p.says(confirm, "b", "200 pi_1 succeeded")
			p.says(refund, "c", "200 re_2 succeeded")
			p.says(intent("o"), "a", "200 pi_1 requires_confirmation again")
			p.says(confirm, "b", "200 pi_1 succeeded again")
			p.says(refund, "c", "200 re_2 succeeded again")
			p.says(intent("o", "amount=1251"), "a", "400 idempotency_error")
			p.says(cancel, "b", "400 idempotency_error")
			sum := p.Summary()
			assert.True(p.t, sum.DuplicatesSuppressed == 3 && sum.OK(), sum)
		},
		"keep an error that came from within, done or not": func(p *provider) {
			p.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			p.faults("error1@charge")
			p.says(confirm, "b", "500 api_error")
			p.says(confirm, "b", "500 api_error again")
			p.faults("error-after1@charge")
			p.says(confirm, "c", "500 api_error")
			p.says(confirm, "c", "500 api_error again")
			p.entries("o", "charge a live 1 12.50 EUR")
		},
		"keep nothing that was refused before it began": func(p *provider) {
			p.says(intent("o", "amount=x"), "a", "400 invalid_request_error parameter_invalid_integer amount")
			p.faults("error1:503@charge/create")
			p.says(intent("o"), "a", "503 api_error")
			p.faults("rate-limit1@charge/create", "error1:401@charge/create")
			p.says(intent("o"), "a", "429 invalid_request_error rate_limit")
			p.says(intent("o"), "a", "401 invalid_request_error")
			p.faults("decline:resource_missing@charge/create")
			p.says(intent("o"), "a", "400 invalid_request_error resource_missing")
			p.faults()
			p.says(intent("o"), "a", "200 pi_1 requires_confirmation")
		},
	})
}

func TestStripeKeysInTime(t *testing.T) {
	t.Parallel()
	t.Run("in use are 409, and another's intent is locked", func(t *testing.T) {
		t.Parallel()
		s := start(t, simulator.Config{})
		s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
		s.faults("hang1@charge/confirm")
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			response, err := s.stripe(ctx, confirm, "b")
			if err == nil {
				response.Body.Close()
			}
			left <- err
		}()
		s.until("confirm", "running")
		s.says(confirm, "b", "409 idempotency_error idempotency_key_in_use")
		s.says(cancel, "c", "429 invalid_request_error lock_timeout")
		s.says("GET /v1/payment_intents/pi_1", "", "200 pi_1 requires_confirmation")
		leave()
		err := <-left
		assert.True(t, err != nil, "answered")
		s.until("confirm", "none")
		s.says(cancel, "c", "200 pi_1 canceled")
	})
	t.Run("are forgotten after a day", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			defer sim.Close()
			assert.Equal(t, ask(sim, stripeRequest(t.Context(), "http://provider", intent("o"), "a")), "200 pi_1 requires_confirmation")
			<-time.After(25 * time.Hour)
			a := ask(sim, stripeRequest(t.Context(), "http://provider", intent("o"), "a"))
			assert.Equal(t, a, "200 pi_2 requires_confirmation")
		})
	})
}

func TestStripeRequestsThatAreWrong(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for what, want := range map[string]string{
		"POST /v1/payment_intents currency=eur":                          "400 invalid_request_error parameter_missing amount",
		"POST /v1/payment_intents amount=1":                              "400 invalid_request_error parameter_missing currency",
		intent("o", "amount=0"):                                          "400 invalid_request_error parameter_invalid_integer amount",
		intent("o", "amount=49", "currency=usd"):                         "400 invalid_request_error amount_too_small amount",
		intent("o", "amount=100000000", "currency=usd"):                  "400 invalid_request_error amount_too_large amount",
		intent("o", "amount=1251", "currency=kwd"):                       "400 invalid_request_error amount",
		intent("o", "amount=1250", "currency=isk"):                       "400 invalid_request_error amount",
		intent("o", "currency=euro"):                                     "400 invalid_request_error currency",
		intent("o", "capture_method=later"):                              "400 invalid_request_error capture_method",
		intent("o", "tip=1"):                                             "400 invalid_request_error parameter_unknown tip",
		"GET /v1/payment_intents/pi_9":                                   "404 invalid_request_error resource_missing intent",
		"GET /v1/refunds":                                                "400 invalid_request_error parameter_missing payment_intent",
		"POST /v1/payment_intents/pi_9/confirm":                          "404 invalid_request_error resource_missing intent",
		"POST /v1/refunds":                                               "400 invalid_request_error parameter_missing payment_intent",
		"POST /v1/refunds payment_intent=pi_9":                           "400 invalid_request_error resource_missing payment_intent",
		"GET /v1/customers":                                              "404 invalid_request_error",
		"POST /v1/payment_intents/pi_9/capture application_fee_amount=1": "400 invalid_request_error parameter_unknown application_fee_amount",
	} {
		s.says(what, "", want)
	}
	response, err := s.client.Post(s.url+"/v1/payment_intents", "", strings.NewReader("amount=1"))
	assert.True(t, err == nil && response.StatusCode == http.StatusUnauthorized, "without a key", response, err)
	response.Body.Close()
}

func TestStripeBooksOutliveTheProcess(t *testing.T) {
	t.Parallel()
	first := start(t, simulator.Config{File: t.TempDir() + "/books.jsonl"})
	first.says(intent("o", "capture_method=manual"), "a", "200 pi_1 requires_confirmation")
	first.says(confirm, "b", "200 pi_1 requires_capture")
	first.says(capture, "c", "200 pi_1 succeeded")
	first.says(intent("p", "payment_method=pm_card_chargeDeclined", "confirm=true"), "d", "402 card_error card_declined generic_decline")
	first.says(refund, "e", "200 re_3 succeeded")
	first.faults("async:1ms@charge")
	first.says(intent("q", "confirm=true"), "f", "200 pi_4 processing")
	second := start(t, simulator.Config{File: crash(t, first.file)})
	second.says(confirm, "b", "200 pi_1 requires_capture again")
	second.says(capture, "g", "400 invalid_request_error payment_intent_unexpected_state")
	second.says(refund, "e", "200 re_3 succeeded again")
	second.entries("o", "charge a undone 1 12.50 EUR; confirm c undone 1 12.50 EUR")
	second.entries("p", "charge d refused 0 12.50 EUR")
	await(t, func() bool { return second.object("pi_4")["status"] == "succeeded" }) // what was promised is kept
	second.entries("q", "charge f live 1 12.50 EUR")
	second.says(intent("r"), "h", "200 pi_5 requires_confirmation")
}

func TestStripeRefunds(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
	const part = "POST /v1/refunds payment_intent=pi_1&amount=500&metadata[pawl_refund]=r1"
	s.says(part, "r1", "400 invalid_request_error payment_intent")
	s.says("POST /v1/payment_intents/pi_1/confirm", "b", "200 pi_1 succeeded")
	s.says("GET /v1/refunds/re_9", "", "404 invalid_request_error resource_missing refund")
	s.says("POST /v1/refunds payment_intent=pi_1&amount=1251", "r0", "400 invalid_request_error amount")
	s.says("POST /v1/refunds payment_intent=pi_1&amount=0", "r0a", "400 invalid_request_error parameter_invalid_integer amount")
	s.says(part, "r2", "200 re_2 succeeded")
	s.says(part, "r2", "200 re_2 succeeded again")
	s.says("GET /v1/refunds/re_2", "", "200 re_2 succeeded")
	charge := s.object("pi_1")["latest_charge"].(map[string]any)
	assert.True(t, charge["amount_refunded"] == 500.0 && charge["refunded"] == false, charge)
	s.says("POST /v1/refunds payment_intent=pi_1&metadata[pawl_refund]=r3", "r3", "200 re_3 succeeded")
	s.says("POST /v1/refunds payment_intent=pi_1&metadata[pawl_refund]=r4", "r4", "400 invalid_request_error charge_already_refunded")
	s.entries("o", "charge a live 1 12.50 EUR; refund r2 live 1 5.00 EUR; refund r3 live 1 7.50 EUR")
	assert.NoError(t, s.Happen("pi_1", simulator.RefundReturned, ""))
	assert.True(t, s.Happen("pi_1", simulator.RefundPaid, "") != nil, "a refund that failed was paid")
	s.entries("o", "charge a live 1 12.50 EUR; refund r2 live 1 5.00 EUR; refund r3 refused 1 7.50 EUR")
	money := s.Summary().Money[0]
	assert.True(t, money.Refunded == "5.00" && s.Summary().OK(), s.Summary())
}

const hookSecret = "whsec_of_the_simulator"

// endpoint takes events, if Stripe's own library takes their signatures.
type endpoint struct {
	*httptest.Server
	mu     sync.Mutex
	events []string // type and id
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.True(t, err == nil, err)
		ev, err := webhook.ConstructEventWithOptions(body, r.Header.Get("Stripe-Signature"), hookSecret,
			webhook.ConstructEventOptions{IgnoreAPIVersionMismatch: true})
		assert.True(t, err == nil, err, body)
		metadata, _ := ev.Data.Object["metadata"].(map[string]any)
		about := metadata["pawl_order"]
		if ev.Data.Object["object"] == "dispute" {
			about = fmt.Sprint(ev.Data.Object["id"], " ", ev.Data.Object["status"], " of ", ev.Data.Object["payment_intent"])
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, fmt.Sprint(strings.TrimPrefix(string(ev.Type), "payment_intent."), " ", ev.ID, " ", about))
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) heard() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

func TestStripeEvents(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]string{
		"approve":            "created evt_1_1 o, succeeded evt_1_2 o",
		"decline":            "created evt_1_1 o, payment_failed evt_1_2 o",
		"answer-twice":       "created evt_1_1 o, succeeded evt_1_2 o, succeeded evt_1_2 o",
		"callback-late:1ms":  "created evt_1_1 o, succeeded evt_1_2 o",
		"callback-before":    "created evt_1_1 o, succeeded evt_1_2 o",
		"callback-never":     "created evt_1_1 o",
		"async:1ms":          "created evt_1_1 o, processing evt_1_2 o, succeeded evt_1_3 o",
		"callback-twice:1ms": "created evt_1_1 o, processing evt_1_2 o, succeeded evt_1_3 o, succeeded evt_1_3 o",
		"async:1ms,code=no":  "created evt_1_1 o, processing evt_1_2 o, payment_failed evt_1_3 o",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			s := start(t, simulator.Config{StripeWebhook: e.URL, StripeWebhookSecret: hookSecret})
			s.faults(fault)
			s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			await(t, func() bool { return len(e.heard()) > 0 }) // events that are told at the same time come in any order
			is := "processing"                                  // those that are told later are not told now
			switch {
			case fault == "decline":
				s.says(confirm, "b", "402 card_error card_declined generic_decline")
			case fault == "approve" || fault == "answer-twice":
				is = "succeeded"
				fallthrough
			default:
				s.says(confirm, "b", "200 pi_1 "+is)
			}
			assert.True(t, fault != "callback-before" || len(e.heard()) == 2, "not told before", e.heard())
			await(t, func() bool { return len(e.heard()) > strings.Count(want, ",") })
			if err := s.Close(); err != nil { // waits for what is still to be told
				t.Error(err)
			}
			assert.Equal(t, strings.Join(e.heard(), ", "), want, "told")
		})
	}
}

func TestStripeEventsOfWhatHappens(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	s := start(t, simulator.Config{StripeWebhook: e.URL, StripeWebhookSecret: hookSecret})
	heard := func(want ...string) {
		t.Helper()
		await(t, func() bool { return len(e.heard()) >= len(want) })
		assert.Equal(t, e.heard(), want, "told")
	}
	s.says(intent("o", "payment_method=pm_card_authenticationRequired", "confirm=true", "capture_method=manual"), "a", "200 pi_1 requires_action")
	heard("requires_action evt_1_1 o")
	assert.NoError(t, s.Happen("pi_1", simulator.Approved, ""))
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o")
	s.says(capture, "b", "200 pi_1 succeeded")
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o", "succeeded evt_1_3 o")
	s.says(refund, "c", "200 re_2 succeeded")
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o", "succeeded evt_1_3 o", "charge.refunded evt_1_4 o")

	e = newEndpoint(t)
	s = start(t, simulator.Config{StripeWebhook: e.URL, StripeWebhookSecret: hookSecret})
	s.says(intent("o", "confirm=true"), "a", "200 pi_1 succeeded")
	heard("succeeded evt_1_1 o")
	assert.NoError(t, s.Happen("pi_1", simulator.Disputed, ""))
	heard("succeeded evt_1_1 o", "charge.dispute.created evt_1_2 dp_1_2 needs_response of pi_1")
	s.says(intent("d", "payment_method=pm_card_createDispute", "confirm=true"), "b", "200 pi_2 succeeded")
	disputed := "charge.dispute.created evt_2_1_dispute dp_2_1 needs_response of pi_2"
	heard("succeeded evt_1_1 o", "charge.dispute.created evt_1_2 dp_1_2 needs_response of pi_1", "succeeded evt_2_1 d", disputed)
	assert.NoError(t, s.Happen("pi_1", simulator.Undispute, "lost"))
	heard("succeeded evt_1_1 o", "charge.dispute.created evt_1_2 dp_1_2 needs_response of pi_1", "succeeded evt_2_1 d", disputed, "charge.dispute.closed evt_1_3 dp_1_2 lost of pi_1")
}

func TestStripeFaults(t *testing.T) {
	t.Parallel()
	for fault, books := range map[string]string{
		"refuse-connection1": "", "cut-after1": "charge a live 1 12.50 EUR", "timeout-before1": "", "timeout-after1": "charge a live 1 12.50 EUR",
		"timeout-after1,code=no": "charge a refused 0 12.50 EUR",
	} {
		t.Run(fault+" is not answered", func(t *testing.T) {
			t.Parallel()
			s := start(t, simulator.Config{})
			s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			s.faults(fault)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			left := make(chan error, 1)
			go func() {
				response, err := s.stripe(ctx, confirm, "b")
				if err == nil {
					defer response.Body.Close()
					_, err = line(response)
				}
				left <- err
			}()
			if strings.HasPrefix(fault, "timeout") {
				s.until("confirm", map[bool]string{true: "none", false: "done"}[books == ""], "refused")
				leave()
			}
			err := <-left
			assert.True(t, err != nil, "answered")
			s.entries("o", books)
		})
	}
	each(t, map[string]func(*provider){
		"a charge that comes after a cancellation is seen": func(p *provider) {
			p.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			p.says(cancel, "b", "200 pi_1 canceled")
			p.says(confirm, "c", "400 invalid_request_error payment_intent_unexpected_state")
			p.entries("o", "charge a voided 0 12.50 EUR")
			p.faults("late-after-void@charge")
			p.says(confirm, "d", "200 pi_1 succeeded")
			p.entries("o", "charge a live 1 12.50 EUR")
			sum := p.Summary()
			assert.Equal(p.t, sum.RefusedAfterUndo, 1, sum)
		},
		"a second charge of an order is counted": func(p *provider) {
			p.says(intent("o", "confirm=true"), "a", "200 pi_1 succeeded")
			p.says(intent("o", "confirm=true"), "b", "200 pi_2 succeeded")
			sum := p.Summary()
			assert.True(p.t, !sum.OK() && sum.DoubleLive == 1 && sum.Overlaps == 1, sum)
		},
		"the item of an order is a fault, and so is the name of a request": func(p *provider) {
			p.says(intent("o", "metadata[pawl_item]=decline:lost_card"), "a", "200 pi_1 requires_confirmation")
			p.says(confirm, "b", "402 card_error card_declined lost_card")
			p.says(intent("p", "metadata[pawl_item]=error1:503@charge/cancel"), "c", "200 pi_2 requires_confirmation")
			p.says("POST /v1/payment_intents/pi_2/cancel", "d", "503 api_error")
			p.says("POST /v1/payment_intents/pi_2/cancel", "d", "200 pi_2 canceled")
			for _, rule := range []string{"async@charge/cancel", "late-after-void@charge/create", "slow@charge/nothing"} {
				_, err := simulator.ParseRule(rule)
				assert.True(p.t, err != nil, rule, "is a rule")
			}
		},
	})
}
