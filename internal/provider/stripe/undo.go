package stripe

import (
	"context"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// Undo finds the intent, or makes one so that there is something to cancel, and cancels or
// refunds it. A canceled intent can't be confirmed: that is what a Do which comes late will
// be told.
func (s *charge) Undo(ctx context.Context, c *provider.Call) provider.Result {
	order, known := s.intentToCreate(c)
	if known != nil {
		return provider.Done{} // Do asks nothing of Stripe
	}
	id := intentOf(c)
	if id == "" {
		created := s.api.create(ctx, c, order)
		switch {
		case created.refused():
			return provider.Done{} // the same request of a Do gets the same answer
		case created.failed != nil:
			return created.failed
		}
		id = created.intent.ID
	}
	var last provider.Result
	for range 2 { // what is to be done may have changed since it was read: confirmed just now, refunded by hand
		now := s.api.read(ctx, c, id)
		switch {
		case now.refused():
			return provider.InDoubt(now.failed)
		case now.failed != nil:
			return now.failed
		}
		last = s.undo(ctx, c, now.intent)
		if _, refused := last.(provider.Refused); !refused {
			return last
		}
		if now.intent.Status != stripe.PaymentIntentStatusSucceeded { // not to be canceled is not to be undone yet
			last = provider.InDoubt(last)
		}
	}
	return last
}

// undo takes one step towards nothing. Refused means that the state has to be looked at
// again.
func (s *charge) undo(ctx context.Context, c *provider.Call, intent *stripe.PaymentIntent) provider.Result {
	switch {
	case intent.Status == stripe.PaymentIntentStatusCanceled, refunded(intent):
		return provider.Done{Reference: intent.ID}
	case intent.Status == stripe.PaymentIntentStatusSucceeded:
		given := s.api.giveBack(ctx, c, intent.ID)
		if given.failed != nil {
			return given.failed
		}
		return refundResult(intent.ID, given.refund)
	}
	canceled := s.api.cancel(ctx, c, intent.ID)
	switch {
	case canceled.refused() && intent.Status == stripe.PaymentIntentStatusProcessing: // as mostly
		return provider.Unknown{Code: "processing", Detail: "the payment is being processed"}
	case canceled.failed != nil:
		return canceled.failed
	}
	return provider.Done{Reference: intent.ID}
}

// refundResult says what the state of a refund means. A pending one has been taken on by
// Stripe, which pays it without being asked again.
func refundResult(id string, refund *stripe.Refund) provider.Result {
	switch refund.Status {
	case stripe.RefundStatusSucceeded, stripe.RefundStatusPending:
		return provider.Done{Reference: id}
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		return provider.Refused{Code: "refund_" + string(refund.Status), Detail: provider.Text(string(refund.FailureReason))}
	default:
		return provider.Unknown{Code: "unexpected_state", Detail: provider.Text("the refund is " + string(refund.Status))}
	}
}
