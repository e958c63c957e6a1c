package provider

import (
	"context"

	"github.com/stripe/stripe-go/v85"
)

// Undo finds the intent, or makes one so that there is something to cancel, and cancels or
// refunds it. A canceled intent can't be confirmed: that is what a Do which comes late will
// be told.
func (s *stripeCharge) Undo(ctx context.Context, c *Call) Result {
	order, known := s.order(c)
	if known != nil {
		return Done{} // Do asks nothing of Stripe
	}
	id := chargeOf(c)
	if id == "" {
		created := s.api.create(ctx, c, order)
		switch {
		case created.refused() != nil:
			return Done{} // the same request of a Do gets the same answer
		case created.failed != nil:
			return created.failed
		}
		id = created.intent.ID
	}
	var last Result
	for range 2 { // what is to be done may have changed since it was read: confirmed just now, refunded by hand
		now := s.api.read(ctx, c, id)
		switch {
		case now.refused() != nil:
			return doubt(now.failed)
		case now.failed != nil:
			return now.failed
		}
		last = s.undo(ctx, c, now.intent)
		if _, refused := last.(Refused); !refused {
			return last
		}
		if now.intent.Status != stripe.PaymentIntentStatusSucceeded { // not to be canceled is not to be undone yet
			last = doubt(last)
		}
	}
	return last
}

// undo takes one step towards nothing. Refused means that the state has to be looked at
// again.
func (s *stripeCharge) undo(ctx context.Context, c *Call, intent *stripe.PaymentIntent) Result {
	switch {
	case intent.Status == stripe.PaymentIntentStatusCanceled, refunded(intent):
		return Done{Reference: intent.ID}
	case intent.Status == stripe.PaymentIntentStatusSucceeded:
		given := s.api.giveBack(ctx, c, intent.ID)
		if given.failed != nil {
			return given.failed
		}
		return refundResult(intent.ID, given.refund)
	}
	canceled := s.api.cancel(ctx, c, intent.ID)
	switch {
	case canceled.refused() != nil && intent.Status == stripe.PaymentIntentStatusProcessing: // as mostly
		return Unknown{Code: "processing", Detail: "the payment is being processed"}
	case canceled.failed != nil:
		return canceled.failed
	}
	return Done{Reference: intent.ID}
}

// refundResult says what the state of a refund means. A pending one has been taken on by
// Stripe, which pays it without being asked again.
func refundResult(id string, refund *stripe.Refund) Result {
	switch refund.Status {
	case stripe.RefundStatusSucceeded, stripe.RefundStatusPending:
		return Done{Reference: id}
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		return Refused{Code: "refund_" + string(refund.Status), Detail: clean(string(refund.FailureReason))}
	default:
		return Unknown{Code: "unexpected_state", Detail: clean("the refund is " + string(refund.Status))}
	}
}
