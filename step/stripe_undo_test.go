package step_test

import (
	"strings"
	"testing"

	"pawl/policy"
)

func TestStripeUndo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status        string // what the intent is; empty: there is none
		lastError     string
		result, books string
		late          string // what a Do is told that comes after it
	}{
		"of nothing stops what comes late":   {"", "", "done pi_1", "[canceled:1]", "refused canceled"},
		"of an unconfirmed intent cancels":   {"requires_confirmation", "", "done pi_1", "[canceled:1]", "refused canceled"},
		"of a waiting customer cancels":      {"requires_action", "", "done pi_1", "[canceled:1]", "refused canceled"},
		"of a declined intent cancels":       {"requires_payment_method", "expired_card", "done pi_1", "[canceled:1]", "refused expired_card"},
		"of an authorization cancels":        {"requires_capture", "", "done pi_1", "[canceled:1]", "refused canceled"},
		"of a charge refunds":                {"succeeded", "", "done pi_1", "[refunded:1]", "refused refunded"},
		"of a canceled intent has no work":   {"canceled", "", "done pi_1", "[canceled:1]", "refused canceled"},
		"while the bank is at it is unknown": {"processing", "", "unknown processing", "[processing:1]", "waiting pi_1"},
	} {
		for _, known := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " by reference", false: ""}[known], func(t *testing.T) {
				t.Parallel()
				f := newStripeFake(t)
				shop := newStripeShop(t, f.URL, policy.CaptureImmediately)
				if tt.status != "" {
					shop.call.PaymentMethod = "pm_3ds"
					want(t, "do", shop.do(), customerHasToAct)
					f.set(tt.status, tt.lastError)
				}
				if known && tt.status != "" {
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
	for _, fault := range []string{"cut", "lost", "500", "503", "429", "401"} {
		for op, status := range map[string]string{"create": "", "cancel": "requires_action", "refund": "succeeded", "read": "succeeded"} {
			t.Run(fault+" at "+op+" is tried again", func(t *testing.T) {
				t.Parallel()
				f := newStripeFake(t)
				shop := newStripeShop(t, f.URL, policy.CaptureImmediately)
				if status != "" {
					shop.call.PaymentMethod = "pm_3ds"
					want(t, "do", shop.do(), customerHasToAct)
					f.set(status, "")
				}
				f.fail(op, fault)
				if first := shop.undo(); !strings.HasPrefix(first, "unknown") && !strings.HasPrefix(first, "retry") && op+fault != "read500" {
					t.Errorf("undo: %s", first)
				}
				if again := shop.undo(); !strings.HasPrefix(again, "done") {
					t.Errorf("undo again: %s", again)
				}
				books := f.books()
				if op+fault == "create500" { // made, but nobody will ever learn its name
					want(t, "books", books, "[requires_confirmation:1]")
				} else if books != "[canceled:1]" && books != "[refunded:1]" {
					t.Errorf("books: %s", books)
				}
			})
		}
	}
	t.Run("of a disputed charge is refused, until it is settled", func(t *testing.T) {
		t.Parallel()
		f := newStripeFake(t)
		shop := newStripeShop(t, f.URL, policy.CaptureImmediately)
		shop.call.PaymentMethod = "pm_disputed"
		want(t, "do", shop.do(), "done pi_1")
		want(t, "undo", shop.undo(), "refused charge_disputed")
		want(t, "undo again", shop.undo(), "refused charge_disputed")
		f.mu.Lock()
		f.intents["pi_1"].method = "pm_card"
		f.mu.Unlock()
		want(t, "undo once settled", shop.undo(), "done pi_1")
		want(t, "books", f.books(), "[refunded:1]")
	})
}

func TestStripeCapture(t *testing.T) {
	t.Parallel()
	authorized := func(t *testing.T, method string) (*stripeFake, *stripeShop) {
		t.Helper()
		f := newStripeFake(t)
		shop := newStripeShop(t, f.URL, policy.CaptureOnConfirm)
		shop.call.PaymentMethod = method
		want(t, "do", shop.do(), "done pi_1")
		shop.call.Reference = "pi_1"
		return f, shop
	}
	t.Run("takes what was authorized, once", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t, "pm_card")
		want(t, "capture", shop.take(), "done pi_1")
		want(t, "again", shop.take(), "done pi_1")
		want(t, "books", f.books(), "[succeeded:1]")
		want(t, "undo of the charge", shop.undo(), "done pi_1")
		want(t, "late", shop.take(), "refused refunded")
		want(t, "books", f.books(), "[refunded:1]")
	})
	t.Run("is refused when the authorization is gone", func(t *testing.T) {
		t.Parallel()
		f, shop := authorized(t, "pm_card")
		f.set("canceled", "")
		want(t, "capture", shop.take(), "refused authorization_expired")
		_, shop = authorized(t, "pm_expired")
		want(t, "capture", shop.take(), "refused authorization_expired")
		want(t, "undo of the charge", shop.undo(), "done pi_1")
	})
	t.Run("is not there before it was seen", func(t *testing.T) {
		t.Parallel()
		_, shop := authorized(t, "pm_card")
		want(t, "lookup", words(shop.confirm.Lookup(t.Context(), shop.as("confirm"))), "retry not_seen after 0s, counts true")
		want(t, "capture", shop.take(), "done pi_1")
		want(t, "lookup", words(shop.confirm.Lookup(t.Context(), shop.as("confirm"))), "done pi_1")
		shop.call.Reference = ""
		want(t, "without a charge", shop.take(), "retry reference_missing after 0s, counts true")
	})
	for fault, result := range map[string]string{
		"cut": "unknown connection_lost", "lost": "unknown connection_lost", "500": "unknown api_error",
		"503": "unknown api_error after 7s", "429": "retry rate_limit after 7s, counts false", "401": "retry unauthorized after 0s, counts true",
	} {
		t.Run(fault+" is tried again", func(t *testing.T) {
			t.Parallel()
			f, shop := authorized(t, "pm_card")
			f.fail("capture", fault)
			want(t, "capture", shop.take(), result)
			want(t, "again", shop.take(), "done pi_1")
			want(t, "books", f.books(), "[succeeded:1]")
		})
	}
}
