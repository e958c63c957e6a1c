package stripe_test

import (
	"testing"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// refund refunds a part under an id.
func (s *stripeShop) refund(id, amount string) string {
	return words(s.charge.Operate(s.t.Context(), s.refunding(id, amount)))
}

// refunding is the call for a refund.
func (s *stripeShop) refunding(id, amount string) *provider.Call {
	return s.operating(provider.Refund, id, amount)
}

// operating is the call for a charge operation.
func (s *stripeShop) operating(kind provider.Operation, id, amount string) *provider.Call {
	c := s.as(fsm.Charge)
	c.OperationKind, c.OperationID, c.Amount = kind, id, decimal.MustParse(amount)
	return c
}

// A payment without multicapture: Stripe refuses a capture that leaves something, and takes a final one, once.
func TestStripeWithoutMulticapture(t *testing.T) {
	t.Parallel()
	f, shop := stripeAt(t, policy.CaptureLater)
	shop.call.PaymentMethod = "pm_card_oneCapture"
	want(t, "charge", shop.do(), "done pi_1")
	shop.call.Reference = "pi_1"
	want(t, "a part", words(shop.charge.Operate(t.Context(), shop.operating(provider.Capture, "a", "4"))), "refused invalid_request_error")
	want(t, "looked up", words(shop.charge.Lookup(t.Context(), shop.operating(provider.Capture, "a", "4"))), "retry not_seen after 0s, counts true")
	final := shop.operating(provider.Capture, "b", "4")
	final.Final = true
	for _, what := range []string{"a final part", "again"} {
		want(t, what, words(shop.charge.Operate(t.Context(), final)), "done")
	}
	want(t, "another", words(shop.charge.Operate(t.Context(), shop.operating(provider.Capture, "c", "1"))), "refused authorization_expired")
	want(t, "books", f.books(), "[succeeded:1]")
}

// refundLookup asks what became of it, without knowing its name.
func (s *stripeShop) refundLookup(id, amount string) string {
	return words(s.charge.Lookup(s.t.Context(), s.refunding(id, amount)))
}

// given is what the simulator has given back, over how many refunds that were asked for.
func (f *stripeProvider) given() (refunds int, amount string) {
	for _, e := range f.sim.Books("") {
		if e.Step == "refund" {
			refunds += e.Effects
		}
	}
	return refunds, f.sim.Summary().Money[0].Refunded
}

func TestStripeRefund(t *testing.T) {
	t.Parallel()
	charged := func(t *testing.T) (*stripeProvider, *stripeShop) {
		t.Helper()
		f, shop := stripeAt(t, policy.CaptureImmediately)
		want(t, "charge", shop.do(), "done pi_1")
		shop.call.Reference = "pi_1"
		return f, shop
	}
	t.Run("each is done once, and no more than was charged", func(t *testing.T) {
		t.Parallel()
		f, shop := charged(t)
		want(t, "looked up before", shop.refundLookup("a", "4"), "retry not_seen after 0s, counts true")
		want(t, "refund", shop.refund("a", "4"), "done re_2")
		want(t, "again", shop.refund("a", "4"), "done re_2")
		want(t, "another", shop.refund("b", "4"), "done re_3")
		want(t, "too much", shop.refund("c", "4"), "refused invalid_request_error")
		want(t, "not to the cent", shop.refund("d", "0.001"), "refused amount_not_representable")
		want(t, "looked up", shop.refundLookup("b", "4"), "done re_3")
		want(t, "looked up", shop.refundLookup("c", "4"), "retry not_seen after 0s, counts true")
		n, amount := f.given()
		assert.True(t, n == 2 && amount == "8.00", n, "refunds of", amount)
	})
	atStripe(t, "one that is pending is waited for, and one that fails is refused", policy.CaptureImmediately,
		func(t trial, f *stripeProvider, shop *stripeShop) {
			shop.call.PaymentMethod = "pm_card_pendingRefund"
			want(t, "charge", shop.do(), "done pi_1")
			shop.call.Reference = "pi_1"
			want(t, "refund", shop.refund("a", "4"), "waiting re_2")
			want(t, "again", shop.refund("a", "4"), "waiting re_2")
			f.happens("refund-paid", "")
			want(t, "again", shop.refund("a", "4"), "done re_2")
			f.happens("refund-returned", "")
			want(t, "again", shop.refund("a", "4"), "refused refund_failed")
			want(t, "looked up", shop.refundLookup("a", "4"), "refused refund_failed")
		})
	for fault, answer := range stripeFaults {
		t.Run(fault+" is found out", func(t *testing.T) {
			t.Parallel()
			f, shop := charged(t)
			f.fail("refund", fault)
			want(t, "refund", shop.refund("a", "4"), answer)
			assert.Equal(t, shop.refund("a", "4"), "done re_2", "again")
			want(t, "looked up", shop.refundLookup("a", "4"), "done re_2")
			n, amount := f.given()
			assert.True(t, n == 1 && amount == "4.00", n, "refunds of", amount)
		})
	}
	t.Run("a charge without a name is not refunded", func(t *testing.T) {
		t.Parallel()
		_, shop := charged(t)
		shop.call.Reference = ""
		want(t, "refund", shop.refund("a", "4"), "retry reference_missing after 0s, counts true")
	})
}
