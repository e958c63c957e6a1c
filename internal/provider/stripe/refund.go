package stripe

import (
	"context"
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// Refund gives back a part of what was charged, by its key alone: unlike an undo it may come several times for one
// intent, so it must not be sent with another key. Once it has a name it is only read.
func (s *charge) Refund(ctx context.Context, c *provider.Call) provider.Result {
	units, ok := minorUnits(c.Amount, c.Currency)
	switch {
	case !ok:
		return provider.Refused{Code: "amount_not_representable", Detail: "Stripe can't refund " + c.Amount.String() + " " + provider.Text(c.Currency)}
	case intentOf(c) == "":
		return provider.Unsent("reference_missing", errors.New("the order has no reference of its charge"))
	case c.RefundReference != "":
		return s.lookupRefund(ctx, c)
	}
	made := s.api.refund(ctx, c, units)
	switch {
	case made.failed == nil && !made.replayed:
		return resultOfRefund(made.refund)
	case made.failed == nil || made.refused() && made.Status >= http.StatusInternalServerError: // it may have changed, or gone wrong in the middle
		found := s.lookupRefund(ctx, c)
		if _, unseen := found.(provider.Retry); unseen {
			return provider.InDoubt(found)
		}
		return found
	}
	return made.failed
}

// lookupRefund reads the refund by its name or finds it among those of the intent, by the id in its metadata. That
// knows no age, as a key does.
func (s *charge) lookupRefund(ctx context.Context, c *provider.Call) provider.Result {
	now := s.api.readRefund(ctx, c)
	switch {
	case now.failed != nil:
		return provider.InDoubt(now.failed)
	case now.refund == nil:
		return provider.Retry{Code: "not_seen", Detail: "there is no such refund of the payment intent", Counts: true}
	}
	return resultOfRefund(now.refund)
}

// resultOfRefund says what the state of a refund means. Of a pending one Stripe tells the end.
func resultOfRefund(refund *stripe.Refund) provider.Result {
	switch refund.Status {
	case stripe.RefundStatusSucceeded:
		return provider.Done{Reference: refund.ID}
	case stripe.RefundStatusPending, stripe.RefundStatusRequiresAction:
		return provider.Waiting{Reference: refund.ID}
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		return provider.Refused{Code: "refund_" + string(refund.Status), Detail: provider.Text(string(refund.FailureReason))}
	}
	return provider.Unknown{Code: "unexpected_state", Detail: provider.Text("the refund is " + string(refund.Status))}
}

// refund asks for a refund of so many units.
func (a *api) refund(ctx context.Context, c *provider.Call, units int64) reply {
	metadata := metadataOf(c)
	metadata[refundID] = c.RefundID
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		return r.tookRefund(client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
			Params: stripe.Params{IdempotencyKey: stripe.String(c.Key(opRefund))}, PaymentIntent: stripe.String(c.Reference),
			Amount: stripe.Int64(units), Metadata: metadata}))
	})
}

// refundID is the metadata by which a refund is found again.
const refundID = "pawl_refund"

// readRefund reads the refund of a call. There may be none.
func (a *api) readRefund(ctx context.Context, c *provider.Call) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		if c.RefundReference != "" {
			return r.tookRefund(client.V1Refunds.Retrieve(ctx, c.RefundReference, nil))
		}
		of := &stripe.RefundListParams{PaymentIntent: stripe.String(c.Reference)}
		of.Limit = stripe.Int64(100) // a page
		for refund, err := range client.V1Refunds.List(ctx, of).All(ctx) {
			if err != nil {
				return err
			}
			if refund.Metadata[refundID] == c.RefundID && refund.Metadata["pawl_installation"] == c.Installation.String() {
				return r.tookRefund(refund, nil)
			}
		}
		return nil
	})
}

func (r *reply) tookRefund(refund *stripe.Refund, err error) error {
	if err != nil {
		return err
	}
	r.took(refund.LastResponse)
	if refund.ID == "" || refund.Object != "refund" {
		return errors.New("the answer is not a refund")
	}
	r.refund = refund
	return nil
}
