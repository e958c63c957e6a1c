package stripe_test

import (
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestStripeUndo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		is            string // what the intent is; empty: there is none
		result, books string
		late          string // what a Do is told that comes after it
	}{
		"of nothing stops what comes late": {"", "done", "[canceled:1]", "refused canceled"},
		"of an unconfirmed intent cancels": {"unconfirmed", "done", "[canceled:1]", "refused canceled"},
		"of a waiting customer cancels":    {"waiting", "done", "[canceled:1]", "refused canceled"},
		"of a declined intent cancels":     {"declined", "done", "[canceled:1]", "refused expired_card"},
		"of an authorization cancels":      {"authorized", "done", "[canceled:1]", "refused canceled"},
		"of a charge refunds":              {"charged", "done pi_1", "[refunded:1]", "refused refunded"},
		"of a canceled intent has no work": {"canceled", "done", "[canceled:1]", "refused canceled"},
		"of a bank that can be stopped":    {"stoppable", "done", "[canceled:1]", "refused canceled"},
		"while the bank is at it, unknown": {"processing", "unknown processing", "[processing:1]", "waiting pi_1"},
	} {
		for _, known := range []bool{true, false} {
			title, capture := name, policy.CaptureImmediately
			if known {
				title += " by reference"
			}
			if tt.is == "authorized" {
				capture = policy.CaptureOnConfirm
			}
			atStripe(t, title, capture, func(t trial, f *stripeProvider, shop *stripeShop) {
				shop.becomes(f, tt.is)
				if known && tt.is != "" {
					shop.call.Reference = "pi_1"
				}
				want(t, "undo", shop.undo(), tt.result)
				want(t, "books", f.books(), tt.books)
				want(t, "undo again", shop.undo(), tt.result)
				want(t, "do", shop.do(), tt.late)
				want(t, "lookup", shop.lookup(), tt.late)
				want(t, "books", f.books(), tt.books)
			})
		}
	}
	for fault := range stripeFaults {
		for op, is := range map[string]string{"create": "", "cancel": "waiting", "refund": "charged", "read": "charged"} {
			atStripe(t, fault+" at "+op+" is tried again", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
				shop.becomes(f, is)
				f.fail(op, fault)
				first := shop.undo()
				assert.True(t, strings.HasPrefix(first, "unknown") || strings.HasPrefix(first, "retry"), "undo", first)
				again := shop.undo()
				assert.True(t, strings.HasPrefix(again, "done"), "undo again", again)
				books := f.books()
				if op == "create" && fault == "error_after" { // created, but its ID is never known
					want(t, "books", books, "[requires_confirmation:1]")
				} else if books != "[canceled:1]" && books != "[refunded:1]" {
					t.Errorf("books: %s", books)
				}
			})
		}
	}
	for op, is := range map[string]string{"cancel": "waiting", "refund": "charged"} {
		atStripe(t, "what went wrong inside Stripe at "+op+" is asked for with another key", policy.CaptureImmediately,
			func(t trial, f *stripeProvider, shop *stripeShop) {
				shop.becomes(f, is)
				f.fail(op, "error") // nothing was done, and the answer is kept
				want(t, "undo", shop.undo(), "unknown api_error")
				want(t, "undo again", shop.undo(), map[string]string{"cancel": "done", "refund": "done pi_1"}[op])
				want(t, "undo once more", shop.undo(), map[string]string{"cancel": "done", "refund": "done pi_1"}[op])
			})
	}
	atStripe(t, "of a disputed charge is refused, until it is settled", policy.CaptureImmediately, func(t trial, f *stripeProvider, shop *stripeShop) {
		shop.call.PaymentMethod = "pm_card_createDispute"
		want(t, "do", shop.do(), "done pi_1")
		want(t, "undo", shop.undo(), "refused charge_disputed")
		want(t, "undo again", shop.undo(), "refused charge_disputed")
		f.happens(simulator.Undispute, "")
		want(t, "undo once settled", shop.undo(), "done pi_1")
		want(t, "books", f.books(), "[refunded:1]")
	})
}

// becomes charges, and has done to the intent what makes it what it is to be.
func (s *stripeShop) becomes(f *stripeProvider, is string) {
	s.t.Helper()
	switch is {
	case "":
		return
	case "unconfirmed":
		f.fail("confirm", "cut")
		want(s.t, "do", s.do(), "unknown connection_lost")
		return
	case "processing":
		f.fail("confirm", "async:1h")
		want(s.t, "do", s.do(), "waiting pi_1")
		return
	case "stoppable":
		s.call.PaymentMethod = slowBank
		want(s.t, "do", s.do(), "waiting pi_1")
		return
	}
	s.call.PaymentMethod = careful
	want(s.t, "do", s.do(), customerHasToAct)
	switch is {
	case "declined":
		f.happens(simulator.Declined, "expired_card")
	case "authorized", "charged":
		f.happens(simulator.Approved, "")
	case "canceled":
		f.cancelByHand()
	}
}

func TestStripeCapture(t *testing.T) {
	t.Parallel()
	authorized := func(t *testing.T) (*stripeProvider, *stripeShop) {
		t.Helper()
		f, shop := stripeAt(t, policy.CaptureOnConfirm)
		want(t, "do", shop.do(), "done pi_1")
		shop.call.Reference = "pi_1"
		return f, shop
	}
	t.Run("takes what was authorized, once", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t)
		want(t, "capture", shop.take(), "done pi_1")
		want(t, "again", shop.take(), "done pi_1")
		want(t, "books", f.books(), "[succeeded:1]")
		want(t, "undo of the charge", shop.undo(), "done pi_1")
		want(t, "late", shop.take(), "refused refunded")
		want(t, "books", f.books(), "[refunded:1]")
	})
	t.Run("is refused when the authorization is gone", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t)
		f.happens(simulator.Expired, "")
		want(t, "capture", shop.take(), "refused authorization_expired")
		f, shop = authorized(t)
		f.fail("capture", "decline")
		want(t, "capture", shop.take(), "refused authorization_expired")
		want(t, "undo of the charge", shop.undo(), "done")
	})
	t.Run("is not there before it was seen", func(t *testing.T) {
		t.Parallel()
		_, shop := authorized(t)
		want(t, "lookup", words(shop.confirm.Lookup(t.Context(), shop.as("confirm"))), "retry not_seen after 0s, counts true")
		want(t, "capture", shop.take(), "done pi_1")
		want(t, "lookup", words(shop.confirm.Lookup(t.Context(), shop.as("confirm"))), "done pi_1")
		shop.call.Reference = ""
		want(t, "without a charge", shop.take(), "retry reference_missing after 0s, counts true")
	})
	for fault, result := range stripeFaults {
		t.Run(fault+" is tried again", func(t *testing.T) {
			t.Parallel()
			f, shop := authorized(t)
			f.fail("capture", fault)
			want(t, "capture", shop.take(), result)
			want(t, "again", shop.take(), "done pi_1")
			want(t, "books", f.books(), "[succeeded:1]")
		})
	}
	t.Run("waits for the bank", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t)
		f.fail("capture", "async:1h")
		want(t, "capture", shop.take(), "waiting pi_1")
		f.happens(simulator.Approved, "")
		want(t, "again", shop.take(), "done pi_1")
	})
	t.Run("that went wrong inside Stripe is asked for with another key", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t)
		f.fail("capture", "error") // nothing was done, and the answer is kept
		want(t, "capture", shop.take(), "unknown api_error")
		want(t, "again", shop.take(), "done pi_1")
		want(t, "books", f.books(), "[succeeded:1]")
		captures := f.sim.Books(shop.call.OrderID)
		assert.Equal(t, captures[len(captures)-1].Key, shop.as(fsm.Confirm).Key("capture"), "the provider knows the capture as")
	})
}
