package stripe

import (
	"context"
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// refundPart refunds a part of a charge, always under its own key: unlike an undo, an intent can have several. A refund
// with a known reference is only read.
func (s *charge) refundPart(ctx context.Context, c *provider.Call) provider.Result {
	units, ok := minorUnits(c.Amount, c.Currency)
	switch {
	case !ok:
		return notRepresentable("refund", c)
	case intentOf(c) == "":
		return provider.Unsent("reference_missing", errors.New("the order has no reference of its charge"))
	case c.OperationReference != "":
		return s.lookupRefund(ctx, c)
	}
	made := s.api.refund(ctx, c, units)
	switch {
	case made.failed == nil && !made.replayed:
		return refundResult(made.refund)
	case made.failed == nil || made.refused() && made.Status >= http.StatusInternalServerError:
		// The stored answer may be outdated, or the request failed halfway.
		found := s.lookupRefund(ctx, c)
		if _, unseen := found.(provider.Retry); unseen {
			return provider.InDoubt(found)
		}
		return found
	}
	return made.failed
}

// lookupRefund reads the refund by its reference, or finds it among those of the intent by the ID in its metadata,
// which, unlike a key, never expires.
func (s *charge) lookupRefund(ctx context.Context, c *provider.Call) provider.Result {
	now := s.api.readRefund(ctx, c)
	switch {
	case now.failed != nil:
		return provider.InDoubt(now.failed)
	case now.refund == nil:
		return provider.Retry{Code: "not_seen", Detail: "the payment intent has no such refund", Counts: true}
	}
	return refundResult(now.refund)
}

// refundResult is the result of a refund by its state. Stripe sends an event when a pending one ends.
func refundResult(refund *stripe.Refund) provider.Result {
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

func (a *api) refund(ctx context.Context, c *provider.Call, units int64) reply {
	metadata := metadataOf(c)
	metadata[refundID] = c.OperationID
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		return r.tookRefund(client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
			Params: stripe.Params{IdempotencyKey: stripe.String(c.Key(opRefund))}, PaymentIntent: stripe.String(c.Reference),
			Amount: stripe.Int64(units), Metadata: metadata}))
	})
}

// refundID is the metadata with the ID of a refund.
const refundID = "pawl_refund"

// readRefund reads the refund of a call, if there is one.
func (a *api) readRefund(ctx context.Context, c *provider.Call) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		if c.OperationReference != "" {
			return r.tookRefund(client.V1Refunds.Retrieve(ctx, c.OperationReference, nil))
		}
		of := &stripe.RefundListParams{PaymentIntent: stripe.String(c.Reference)}
		of.Limit = stripe.Int64(100) // a page
		for refund, err := range client.V1Refunds.List(ctx, of).All(ctx) {
			if err != nil {
				return err
			}
			if refund.Metadata[refundID] == c.OperationID && refund.Metadata["pawl_installation"] == c.Installation.String() {
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
