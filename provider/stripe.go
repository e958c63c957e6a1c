package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/stripe/stripe-go/v85"

	"pawl/fsm"
	"pawl/policy"
)

// newStripe makes an executor of a step by Stripe's payment intents: of the charge, or of
// the confirm step that captures what the charge authorized.
func newStripe(s *policy.Step, of fsm.Step) (Executor, error) {
	api, err := newStripeAPI(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("stripe of %s: %w", of, err)
	case s.Secret == "":
		return nil, fmt.Errorf("stripe of %s: no secret is named", of)
	}
	switch of {
	case fsm.Charge:
		return &stripeCharge{api, s.Capture == policy.CaptureOnConfirm}, nil
	case fsm.Confirm:
		return &stripeCapture{api}, nil
	default:
		return nil, fmt.Errorf("stripe does not %s", of)
	}
}

// stripeCharge charges with two requests: create an intent, which takes nothing, and
// confirm it. Each has a key of its own. In between there is something to cancel: an
// intent that was made and canceled is what stops a confirmation that comes late.
//
// Stripe answers a key it knows with what it said at first, whatever became of the intent
// since. So a replayed answer only names the intent; its state is read.
type stripeCharge struct {
	api       *stripeAPI
	onConfirm bool // authorize only
}

// stripeOrder is what of a call is money, in Stripe's terms.
type stripeOrder struct {
	units         int64
	currency      string
	captureMethod string
}

// order returns what to charge, or what is known of a call without asking Stripe. It
// depends on nothing that changes between attempts.
func (s *stripeCharge) order(c *Call) (stripeOrder, Result) {
	if c.Amount.IsZero() {
		return stripeOrder{}, Done{} // Stripe charges no zero
	}
	units, ok := minorUnits(c.Amount, c.Currency)
	switch {
	case !ok:
		return stripeOrder{}, Refused{Code: "amount_not_representable", Detail: "Stripe can't charge " + c.Amount.String() + " " + clean(c.Currency)}
	case c.PaymentMethod == "":
		return stripeOrder{}, Refused{Code: "payment_method_missing", Detail: "the order names no payment method"}
	}
	o := stripeOrder{units, strings.ToLower(c.Currency), string(stripe.PaymentIntentCaptureMethodAutomatic)}
	if s.onConfirm {
		o.captureMethod = string(stripe.PaymentIntentCaptureMethodManual)
	}
	return o, nil
}

// chargeOf is the intent of a call as far as it is known. A reference may also be what a
// person wrote down; only an intent is one here.
func chargeOf(c *Call) string {
	if !strings.HasPrefix(c.Reference, "pi_") {
		return ""
	}
	return c.Reference
}

// Do creates and confirms. A reference that is known spares the first request, and keeps
// to one intent should Stripe have forgotten the key.
func (s *stripeCharge) Do(ctx context.Context, c *Call) Result {
	order, known := s.order(c)
	if known != nil {
		return known
	}
	id := chargeOf(c)
	if id == "" {
		created := s.api.create(ctx, c, order)
		if created.failed != nil {
			return created.failed // nothing was made that anybody could confirm
		}
		id = created.intent.ID
	}
	confirmed := s.api.confirm(ctx, c, id)
	switch {
	case confirmed.failed == nil && !confirmed.replayed:
		return s.result(ctx, c, &confirmed)
	case confirmed.failed == nil || confirmed.refused() != nil:
		return s.settle(ctx, c, id, confirmed.fault)
	}
	return confirmed.failed
}

// settle says what became of an intent; fault is why Stripe would not confirm it.
func (s *stripeCharge) settle(ctx context.Context, c *Call, id string, fault *stripe.Error) Result {
	now := s.api.read(ctx, c, id)
	if now.failed != nil {
		return doubt(now.failed)
	}
	now.fault = fault
	return s.result(ctx, c, &now)
}

// result says what the state of an intent means. An intent that was declined, or that
// Stripe won't confirm, is canceled before it is called refused: with its client secret, or
// by a request that is on its way, it could still be confirmed.
func (s *stripeCharge) result(ctx context.Context, c *Call, r *stripeReply) Result {
	switch intent := r.intent; intent.Status {
	case stripe.PaymentIntentStatusSucceeded:
		if refunded(intent) {
			return Refused{Code: "refunded", Detail: "the charge was refunded"}
		}
		return Done{Reference: intent.ID}
	case stripe.PaymentIntentStatusRequiresCapture:
		if s.onConfirm {
			return Done{Reference: intent.ID}
		}
	case stripe.PaymentIntentStatusRequiresAction:
		return Waiting{Reference: intent.ID, Action: stripeAction(intent)}
	case stripe.PaymentIntentStatusProcessing:
		return Waiting{Reference: intent.ID}
	case stripe.PaymentIntentStatusCanceled:
		return r.declined(intent, "canceled")
	case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusRequiresConfirmation:
		if r.fault == nil && intent.LastPaymentError == nil {
			return Retry{Code: "not_seen", Detail: "the payment intent was not confirmed", Counts: true}
		}
		return s.refuse(ctx, c, intent.ID, r.declined(intent, "declined"))
	}
	return unexpected(r.intent)
}

// refuse makes a refusal true.
func (s *stripeCharge) refuse(ctx context.Context, c *Call, id string, why Refused) Result {
	canceled := s.api.cancel(ctx, c, id)
	if canceled.failed != nil {
		return doubt(canceled.failed)
	}
	return why
}

// Lookup reads the state of the intent. Without a reference it finds the intent by
// creating it again with the key: Stripe's search finds what was made a minute ago, the key
// finds what was made just now. At most that makes an intent nobody has confirmed, which a
// Do that is on its way will find and confirm. A declined intent is canceled as by Do.
func (s *stripeCharge) Lookup(ctx context.Context, c *Call) Result {
	order, known := s.order(c)
	if known != nil {
		return known
	}
	if id := chargeOf(c); id != "" {
		return s.settle(ctx, c, id, nil)
	}
	created := s.api.create(ctx, c, order)
	switch {
	case created.failed == nil:
		return s.settle(ctx, c, created.intent.ID, nil)
	case created.refused() != nil: // a Do would be told the same
		return Retry{Code: "not_seen", Detail: "there is no payment intent", Counts: true}
	}
	return doubt(created.failed)
}
