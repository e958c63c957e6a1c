package stripe

import (
	"context"
	"fmt"
	"strings"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/policy"
	"pawl/internal/provider"
)

// charge charges with two requests, each with its own key: create an intent, which takes nothing, and confirm it. In
// between there is something to cancel: a canceled intent stops a confirmation that comes late.
//
// Stripe repeats the first answer to a key, whatever became of the intent since. So a replayed answer only names the
// intent, and its state is read.
type charge struct {
	api     *api
	capture string // when the money is taken, as in the policy; empty: immediately
}

// authorizes reports whether the charge does not take the money.
func (s *charge) authorizes() bool {
	return s.capture == policy.CaptureOnConfirm || s.capture == policy.CaptureLater
}

// intentToCreate returns the intent to create, or the result if no request is needed. It depends only on what does not
// change between calls, because Stripe compares requests. Without redirects, an intent needs no return URL.
func (s *charge) intentToCreate(c *provider.Call) (*stripe.PaymentIntentCreateParams, provider.Result) {
	if c.Amount.IsZero() {
		return nil, provider.Done{} // Stripe does not charge zero
	}
	units, ok := minorUnits(c.Amount, c.Currency)
	switch {
	case !ok:
		return nil, notRepresentable("charge", c)
	case c.PaymentMethod == "":
		return nil, provider.Refused{Code: "payment_method_missing", Detail: "the order has no payment method"}
	}
	order := &stripe.PaymentIntentCreateParams{
		Params:        stripe.Params{IdempotencyKey: stripe.String(c.Key(opCreate))},
		Amount:        stripe.Int64(units),
		Currency:      stripe.String(strings.ToLower(c.Currency)),
		PaymentMethod: stripe.String(c.PaymentMethod),
		CaptureMethod: stripe.String(stripe.PaymentIntentCaptureMethodAutomatic),
		Metadata:      metadataOf(c),
		AutomaticPaymentMethods: &stripe.PaymentIntentCreateAutomaticPaymentMethodsParams{
			Enabled: stripe.Bool(true), AllowRedirects: stripe.String("never"),
		},
	}
	if s.authorizes() {
		order.CaptureMethod = stripe.String(stripe.PaymentIntentCaptureMethodManual)
	}
	if s.capture == policy.CaptureLater {
		order.PaymentMethodOptions = &stripe.PaymentIntentCreatePaymentMethodOptionsParams{
			Card: &stripe.PaymentIntentCreatePaymentMethodOptionsCardParams{RequestMulticapture: stripe.String("if_available")}}
	}
	if strings.HasPrefix(c.CustomerID, "cus_") { // the shop may have other IDs of customers
		order.Customer = stripe.String(c.CustomerID)
	}
	return order, nil
}

// notRepresentable refuses an amount that Stripe could only charge or refund rounded.
func notRepresentable(verb string, c *provider.Call) provider.Result {
	detail := fmt.Sprintf("Stripe can't %s %s %s", verb, c.Amount, provider.Text(c.Currency))
	return provider.Refused{Code: "amount_not_representable", Detail: detail}
}

// intentOf is the known intent of a call, or empty.
func intentOf(c *provider.Call) string {
	if !isIntent(c.Reference) {
		return ""
	}
	return c.Reference
}

// Do creates and confirms an intent. A known reference saves the first request, and keeps to one intent even if Stripe
// has forgotten the key.
func (s *charge) Do(ctx context.Context, c *provider.Call) provider.Result {
	order, known := s.intentToCreate(c)
	if known != nil {
		return known
	}
	id := intentOf(c)
	if id == "" {
		created := s.api.create(ctx, c, order)
		if created.failed != nil {
			return created.failed // there is nothing to confirm
		}
		id = created.intent.ID
	}
	confirmed := s.api.confirm(ctx, c, id)
	switch {
	case confirmed.failed == nil && !confirmed.replayed:
		return s.result(ctx, c, &confirmed)
	case confirmed.failed == nil || confirmed.refused():
		return s.settle(ctx, c, id, confirmed.fault)
	}
	return confirmed.failed
}

// settle reads what became of an intent; fault is why Stripe did not confirm it.
func (s *charge) settle(ctx context.Context, c *provider.Call, id string, fault *stripe.Error) provider.Result {
	now := s.api.read(ctx, c, id)
	if now.failed != nil {
		return provider.InDoubt(now.failed)
	}
	now.fault = fault
	return s.result(ctx, c, &now)
}

// result is the result for an intent by its state. An intent that was declined, or that Stripe will not confirm, is
// canceled before it is reported as refused: its client secret, or a request on its way, could still confirm it.
func (s *charge) result(ctx context.Context, c *provider.Call, r *reply) provider.Result {
	switch intent := r.intent; intent.Status {
	case stripe.PaymentIntentStatusSucceeded:
		if refunded(intent) {
			return provider.Refused{Code: "refunded", Detail: "the charge was refunded"}
		}
		return provider.Done{Reference: intent.ID}
	case stripe.PaymentIntentStatusRequiresCapture:
		if s.authorizes() {
			return provider.Done{Reference: intent.ID}
		}
	case stripe.PaymentIntentStatusRequiresAction:
		return provider.Waiting{Reference: intent.ID, Action: actionOf(intent)}
	case stripe.PaymentIntentStatusProcessing:
		return s.api.processing(intent)
	case stripe.PaymentIntentStatusCanceled:
		return r.declined(intent, "canceled")
	case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusRequiresConfirmation:
		if r.fault == nil && intent.LastPaymentError == nil {
			return provider.Retry{Code: "not_seen", Detail: "the payment intent was not confirmed", Counts: true}
		}
		return s.refuse(ctx, c, intent.ID, r.declined(intent, "declined"))
	}
	return unexpected(r.intent)
}

// refuse cancels an intent before it is reported as refused.
func (s *charge) refuse(ctx context.Context, c *provider.Call, id string, why provider.Refused) provider.Result {
	canceled := s.api.cancel(ctx, c, id)
	if canceled.failed != nil {
		return provider.InDoubt(canceled.failed)
	}
	return why
}

// Lookup reads the state of the intent. Without a reference, it finds the intent by creating it again with the key,
// because Stripe's search finds only objects that are about a minute old. At worst this creates an unconfirmed intent,
// which a Do on its way will find and confirm. A declined intent is canceled, as by Do.
func (s *charge) Lookup(ctx context.Context, c *provider.Call) provider.Result {
	if c.OperationKind != "" {
		return s.lookupOperation(ctx, c)
	}
	order, known := s.intentToCreate(c)
	if known != nil {
		return known
	}
	if id := intentOf(c); id != "" {
		return s.settle(ctx, c, id, nil)
	}
	created := s.api.create(ctx, c, order)
	switch {
	case created.failed == nil:
		return s.settle(ctx, c, created.intent.ID, nil)
	case created.refused(): // a Do would be refused, too
		return provider.Retry{Code: "not_seen", Detail: "there is no payment intent", Counts: true}
	}
	return provider.InDoubt(created.failed)
}

// Undo finds the intent, or creates one so that there is something to cancel, and cancels or refunds it. A canceled
// intent stops a Do that comes late.
func (s *charge) Undo(ctx context.Context, c *provider.Call) provider.Result {
	order, known := s.intentToCreate(c)
	if known != nil {
		return provider.Done{} // Do sends nothing either
	}
	id := intentOf(c)
	if id == "" {
		created := s.api.create(ctx, c, order)
		switch {
		case created.refused():
			return provider.Done{} // Do gets the same answer to the same request
		case created.failed != nil:
			return created.failed
		}
		id = created.intent.ID
	}
	var last provider.Result
	for range 2 { // the state may change after it was read, by a confirmation or a refund by hand
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
		if now.intent.Status != stripe.PaymentIntentStatusSucceeded { // it can be undone later
			last = provider.InDoubt(last)
		}
	}
	return last
}

// undo cancels or refunds an intent. Refused means that its state must be read again. Only a refund has a reference: what is
// canceled took no money.
func (s *charge) undo(ctx context.Context, c *provider.Call, intent *stripe.PaymentIntent) provider.Result {
	switch {
	case intent.Status == stripe.PaymentIntentStatusCanceled:
		return provider.Done{}
	case refunded(intent):
		return provider.Done{Reference: intent.ID}
	case intent.Status == stripe.PaymentIntentStatusSucceeded:
		given := s.api.giveBack(ctx, c, intent.ID)
		if given.failed != nil {
			return given.failed
		}
		return undoResult(intent.ID, given.refund)
	}
	canceled := s.api.cancel(ctx, c, intent.ID)
	switch {
	case canceled.refused() && intent.Status == stripe.PaymentIntentStatusProcessing: // the usual reason
		return provider.Unknown{Code: "processing", Detail: "the payment is being processed"}
	case canceled.failed != nil:
		return canceled.failed
	}
	return provider.Done{}
}

// undoResult is the result of a refund that undoes a charge. Stripe completes a pending one by itself.
func undoResult(id string, refund *stripe.Refund) provider.Result {
	switch refund.Status {
	case stripe.RefundStatusSucceeded, stripe.RefundStatusPending:
		return provider.Done{Reference: id}
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		return provider.Refused{Code: "refund_" + string(refund.Status), Detail: provider.Text(string(refund.FailureReason))}
	default:
		return provider.Unknown{Code: "unexpected_state", Detail: provider.Text("the refund is " + string(refund.Status))}
	}
}
