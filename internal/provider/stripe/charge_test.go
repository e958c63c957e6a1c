package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestStripeCharge(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ method, capture, result, sent, books string }{
		"takes the money":          {"pm_card", policy.CaptureImmediately, "done pi_1", "create confirm", "[succeeded:1]"},
		"only authorizes":          {"pm_card", policy.CaptureOnConfirm, "done pi_1", "create confirm", "[requires_capture:1]"},
		"waits for the customer":   {careful, policy.CaptureImmediately, customerHasToAct, "create confirm", "[requires_action:1]"},
		"waits for the bank":       {slowBank, policy.CaptureImmediately, "waiting pi_1", "create confirm", "[processing:1]"},
		"is declined, for good":    {poor, policy.CaptureImmediately, "refused insufficient_funds", "create confirm read cancel", "[canceled:1]"},
		"has nothing to charge to": {"", policy.CaptureImmediately, "refused payment_method_missing", "", "[]"},
	} {
		atStripe(t, name, tt.capture, func(t trial, f *stripeProvider, shop *stripeShop) {
			shop.call.PaymentMethod = tt.method
			want(t, "do", shop.do(), tt.result)
			want(t, "sent", f.sent(), tt.sent)
			want(t, "do again", shop.do(), tt.result)
			want(t, "books", f.books(), tt.books)
		})
	}
	t.Run("at a bank of which no webhook tells is asked about again", func(t *testing.T) {
		t.Parallel()
		f := newStripeProvider(t)
		how := policy.Step{Executor: policy.Stripe, URL: f.URL, Secret: secretOf(t)}
		shop := newStripeShop(t, f.URL, policy.CaptureImmediately)
		shop.charge, shop.call.PaymentMethod = stripe.New(&how, fsm.Charge, local), slowBank
		want(t, "do", shop.do(), "unknown in_progress")
		want(t, "lookup", shop.lookup(), "unknown in_progress")
		f.happens("approve", "")
		want(t, "lookup", shop.lookup(), "done pi_1")
	})
	atStripe(t, "can't be confirmed, for good", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
		f.always["confirm"] = "error:400"
		for range 2 {
			want(t, "do", shop.do(), "refused invalid_request_error")
		}
		want(t, "sent", f.sent(), "create confirm read cancel create confirm read")
		want(t, "books", f.books(), "[canceled:1]")
	})
	atStripe(t, "of zero asks for nothing", policy.CaptureOnConfirm, func(t trial, f *stripeProvider, shop *stripeShop) {
		shop.call.Amount = decimal.MustParse("0.00")
		for _, result := range []string{shop.do(), shop.lookup(), shop.take(), shop.undo()} {
			want(t, "result", result, "done")
		}
		want(t, "sent", f.sent(), "")
	})
	atStripe(t, "that was never made is refused at once", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
		f.always["create"] = "decline:resource_missing"
		want(t, "do", shop.do(), "refused resource_missing")
		want(t, "lookup", shop.lookup(), "retry not_seen after 0s, counts true")
		want(t, "undo", shop.undo(), "done")
		want(t, "books", f.books(), "[]")
	})
	t.Run("waits, and then is what became of it", func(t *testing.T) {
		t.Parallel()
		for happens, result := range map[string]string{
			"nothing": customerHasToAct, simulator.Approved: "done pi_1", "canceled": "refused canceled",
			simulator.Declined: "refused payment_intent_authentication_failure",
		} {
			for _, again := range []func(*stripeShop) string{(*stripeShop).do, (*stripeShop).lookup} {
				f, shop := stripeAt(t, policy.CaptureImmediately)
				shop.call.PaymentMethod = careful
				want(t, "do", shop.do(), customerHasToAct)
				switch happens {
				case "nothing":
				case "canceled":
					f.cancelByHand()
				default:
					f.happens(happens, "")
				}
				want(t, happens, again(shop), result)
				if strings.HasPrefix(result, "refused") {
					want(t, "books", f.books(), "[canceled:1]")
				}
			}
		}
	})
}

// Whatever happens to one request, and in which order it is tried again, at most one charge
// is made, and it is known.
func TestStripeFaults(t *testing.T) {
	t.Parallel()
	for fault, result := range stripeFaults {
		for op, method := range map[string]string{"create": "pm_card", "confirm": "pm_card", "cancel": poor} {
			atStripe(t, fault+" at "+op, policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
				shop.call.PaymentMethod = method
				f.fail(op, fault)
				first := result
				if op == "cancel" { // the decline is known, but it is not settled
					first = strings.Replace(strings.Replace(first, "retry", "unknown", 1), ", counts false", "", 1)
					first = strings.Replace(first, " after 0s, counts true", "", 1)
				}
				want(t, "do", shop.do(), first)
				switch {
				case op == "cancel":
					want(t, "again", shop.do(), "refused insufficient_funds")
					want(t, "books", f.books(), "[canceled:1]")
				case fault == "error_after" && op == "create": // this key will never be answered with an intent
					want(t, "again", shop.do(), "refused api_error")
					want(t, "undo", shop.undo(), "done")
				default:
					want(t, "again", shop.do(), "done pi_1")
					want(t, "lookup", shop.lookup(), "done pi_1")
					want(t, "books", f.books(), "[succeeded:1]")
				}
			})
		}
	}
	atStripe(t, "what went wrong inside Stripe is asked for with another key", policy.CaptureImmediately,
		func(t trial, f *stripeProvider, shop *stripeShop) {
			f.fail("confirm", "error", "", "error") // nothing was done, and the answer is kept
			want(t, "do", shop.do(), "unknown api_error")
			want(t, "again", shop.do(), "unknown api_error") // with another key, the same
			want(t, "once more", shop.do(), "done pi_1")
			want(t, "and again", shop.do(), "done pi_1")
			want(t, "books", f.books(), "[succeeded:1]")
			want(t, "undo", shop.undo(), "done pi_1")
			want(t, "late", shop.do(), "refused refunded")
		})
	t.Run("a kept connection that was cut is not trusted with the answer of the next", func(t *testing.T) {
		t.Parallel()
		f := newStripeProvider(t)
		f.Config.SetKeepAlivesEnabled(true)
		shop := newStripeShop(t, f.URL, policy.CaptureImmediately)
		f.fail("confirm", "lost", "rate_limit:7s") // sent twice, with one key
		want(t, "do", shop.do(), "unknown rate_limit after 7s")
		want(t, "sent", f.sent(), "create confirm confirm")
		want(t, "books", f.books(), "[succeeded:1]")
		want(t, "again", shop.do(), "done pi_1")
	})
	atStripe(t, "no server", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
		f.Close()
		want(t, "do", shop.do(), "retry connection_failed after 0s, counts false")
		want(t, "undo", shop.undo(), "retry connection_failed after 0s, counts false")
		want(t, "lookup", shop.lookup(), "unknown connection_failed")
		shop.call.Reference = "pi_1"
		want(t, "capture", shop.take(), "retry connection_failed after 0s, counts false")
	})
}

func TestStripeAnswersOfOthers(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"an answer of another server": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"an empty object":             func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") },
		"an endless answer": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"object":"payment_intent","id":"pi_1","status":"`+strings.Repeat("x", 1<<20)+`"}`)
		},
		"an error of a proxy": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name+" says nothing", func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(handler)
			t.Cleanup(server.Close)
			shop := newStripeShop(t, server.URL, policy.CaptureImmediately)
			for _, result := range []string{shop.do(), shop.lookup(), shop.undo()} {
				want(t, "result", result, "unknown answer_unreadable")
			}
		})
	}
	t.Run("what is said keeps the payment method and the secret to itself", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"type":"invalid_request_error","message":"no pm_card for sk_test_123"}}`)
		}))
		t.Cleanup(server.Close)
		shop := newStripeShop(t, server.URL, policy.CaptureImmediately)
		refused := shop.charge.Do(t.Context(), shop.as(fsm.Charge)).(provider.Refused)
		want(t, "detail", refused.Detail, "no *** for ***")
	})
}

func TestStripeKeyOfOtherParameters(t *testing.T) {
	t.Parallel()
	f, shop := stripeAt(t, policy.CaptureImmediately)
	want(t, "do", shop.do(), "done pi_1")
	shop.call.Amount = decimal.MustParse("11")
	for _, result := range []string{shop.do(), shop.undo(), shop.lookup()} {
		want(t, "result", result, "unknown idempotency_error")
	}
	want(t, "books", f.books(), "[succeeded:1]")
}

// hangs begins a charge that hangs at an operation: its key is in use until leave is called, and some time after.
func (s *stripeShop) hangs(f *stripeProvider, op string) (result <-chan string, leave func()) {
	s.t.Helper()
	f.fail(op, "hang")
	ctx, cancel := context.WithCancel(s.t.Context())
	first := make(chan string, 1)
	go func() { first <- words(s.charge.Do(ctx, s.as(fsm.Charge))) }()
	f.until(op, "running")
	return first, cancel
}

func TestStripeTwoAtATime(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"create", "confirm"} {
		atStripe(t, "the second is in doubt while the first is at "+op, policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
			first, leave := shop.hangs(f, op)
			want(t, "second", shop.do(), "unknown idempotency_key_in_use")
			if op == "confirm" { // the intent is locked
				want(t, "undo", shop.undo(), "retry lock_timeout after 0s, counts false")
			}
			leave()
			want(t, "first", <-first, "unknown canceled")
			f.until(op, "none")
			want(t, "third", shop.do(), "done pi_1")
			want(t, "books", f.books(), "[succeeded:1]")
		})
	}
	atStripe(t, "an undo that comes between create and confirm wins", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
		release := f.block("confirm")
		defer release()
		first := make(chan string, 1)
		go func() { first <- shop.do() }()
		<-f.entered
		want(t, "undo", shop.undo(), "done")
		release()
		want(t, "do", <-first, "refused canceled")
		want(t, "books", f.books(), "[canceled:1]")
	})
	atStripe(t, "a confirmation that comes between reading and canceling is refunded", policy.CaptureImmediately,
		func(t trial, f *stripeProvider, shop *stripeShop) {
			shop.call.PaymentMethod = careful
			want(t, "do", shop.do(), customerHasToAct)
			release := f.block("cancel")
			defer release()
			undone := make(chan string, 1)
			go func() { undone <- shop.undo() }()
			<-f.entered
			f.happens(simulator.Approved, "")
			release()
			want(t, "undo", <-undone, "done pi_1")
			want(t, "books", f.books(), "[refunded:1]")
		})
}

func TestStripeRequests(t *testing.T) {
	t.Parallel()
	f, shop := stripeAt(t, policy.CaptureImmediately)
	shop.call.CustomerID, shop.call.Item = "cus_1", "boat"
	want(t, "do", shop.do(), "done pi_1")
	shop.call.Fence, shop.call.Number = 7, 3
	want(t, "do again", shop.do(), "done pi_1")
	want(t, "sent", f.sent(), "create confirm create confirm read")
	first, again := f.requests[0], f.requests[2]
	want(t, "form", first.form.Encode(), again.form.Encode())
	want(t, "form", first.form.Encode(), "amount=1050&automatic_payment_methods%5Ballow_redirects%5D=never&automatic_payment_methods%5Benabled%5D=true"+
		"&capture_method=automatic&currency=usd&customer=cus_1&metadata%5Bpawl_generation%5D=2"+
		"&metadata%5Bpawl_installation%5D=8c5b0d5e-5f0a-4f5c-9a54-2f1d1c7c9d11&metadata%5Bpawl_item%5D=boat&metadata%5Bpawl_order%5D=o%27rder+%221%22&payment_method=pm_card")
	want(t, "key", first.key, shop.as(fsm.Charge).Key("create"))
	want(t, "key", again.key, first.key)
	want(t, "key", f.requests[1].key, shop.as(fsm.Charge).Key("confirm"))
	want(t, "authorization", first.header.Get("Authorization"), "Bearer sk_test_123")
	assert.True(t, first.length > 0, "the length of the body is not given")
	want(t, "telemetry", first.header.Get("X-Stripe-Client-Telemetry"), "")
}

func TestStripeAmountsThatStripeRefuses(t *testing.T) {
	t.Parallel()
	for amount, code := range map[string]string{"0.49": "amount_too_small", "1000000": "amount_too_large"} {
		f, shop := stripeAt(t, policy.CaptureImmediately)
		shop.call.Amount = decimal.MustParse(amount)
		want(t, "do", shop.do(), "refused "+code)
		want(t, "undo", shop.undo(), "done")
		want(t, "books", f.books(), "[]")
	}
}

func TestStripeAmounts(t *testing.T) {
	t.Parallel()
	for amount, units := range map[string]string{
		"0.50 USD": "50", "10.5 USD": "1050", "10.500 USD": "1050", "10.505 USD": "", "0.01 EUR": "1", "10.5 HUF": "1050", "1 TWD": "100",
		"500 JPY": "500", "500.00 JPY": "500", "500.5 JPY": "", "7 MGA": "7", "7.2 MGA": "", "1 KRW": "1",
		"5.12 KWD": "5120", "5.124 KWD": "", "5.1 BHD": "5100", "0.001 TND": "",
		"5 ISK": "500", "5.5 ISK": "", "5.00 UGX": "500", "5.01 UGX": "",
		"5 LYD": "", "-1 USD": "", "999999.99 USD": "99999999", "999999999999999.99 EUR": "99999999999999999", "99999999999999999.99 USD": "9999999999999999999",
	} {
		atStripe(t, amount, policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
			number, currency, _ := strings.Cut(amount, " ")
			shop.call.Amount, shop.call.Currency = decimal.MustParse(number), currency
			if units == "" || len(units) > 18 {
				want(t, "do", shop.do(), "refused amount_not_representable")
				want(t, "undo", shop.undo(), "done")
				want(t, "sent", f.sent(), "")
				return
			}
			want(t, "do", shop.do(), "done pi_1")
			want(t, "amount", f.requests[0].form.Get("amount"), units)
			want(t, "currency", f.requests[0].form.Get("currency"), strings.ToLower(currency))
		})
	}
}
