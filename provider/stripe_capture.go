package provider

import (
	"context"
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v85"
)

// stripeCapture takes the money that the charge authorized. The reference of a call is that
// of the charge.
type stripeCapture struct{ api *stripeAPI }

// Do captures.
func (s *stripeCapture) Do(ctx context.Context, c *Call) Result {
	switch {
	case c.Amount.IsZero():
		return Done{}
	case chargeOf(c) == "":
		return unsent("reference_missing", errors.New("the order has no reference of its charge"))
	}
	captured := s.api.capture(ctx, c, c.Reference)
	switch {
	case captured.failed == nil && !captured.replayed:
		return s.result(&captured)
	case captured.failed == nil || captured.refused() != nil:
		return s.settle(ctx, c, captured.fault)
	}
	return captured.failed
}

// Lookup reads the state of the charge.
func (s *stripeCapture) Lookup(ctx context.Context, c *Call) Result {
	switch {
	case c.Amount.IsZero():
		return Done{}
	case chargeOf(c) == "":
		return Unknown{Code: "reference_missing", Detail: "the order has no reference of its charge"}
	}
	return s.settle(ctx, c, nil)
}

// Undo is never called.
func (s *stripeCapture) Undo(context.Context, *Call) Result {
	return Unknown{Code: "no_undo", Detail: "a capture can't be undone"}
}

func (s *stripeCapture) settle(ctx context.Context, c *Call, fault *stripe.Error) Result {
	now := s.api.read(ctx, c, c.Reference)
	if now.failed != nil {
		return doubt(now.failed)
	}
	now.fault = fault
	return s.result(&now)
}

func (s *stripeCapture) result(r *stripeReply) Result {
	switch intent := r.intent; intent.Status {
	case stripe.PaymentIntentStatusSucceeded:
		if refunded(intent) {
			return Refused{Code: "refunded", Detail: "the charge was refunded"}
		}
		return Done{Reference: intent.ID}
	case stripe.PaymentIntentStatusProcessing:
		return Waiting{Reference: intent.ID}
	case stripe.PaymentIntentStatusCanceled: // by Stripe after some days, or by hand
		return Refused{Code: "authorization_expired", Detail: r.text(string(intent.CancellationReason))}
	case stripe.PaymentIntentStatusRequiresCapture:
		return s.notCaptured(r)
	default:
		return unexpected(intent)
	}
}

// notCaptured says why an authorization is still one.
func (s *stripeCapture) notCaptured(r *stripeReply) Result {
	if r.fault == nil {
		return Retry{Code: "not_seen", Detail: "the payment intent was not captured", Counts: true}
	}
	code := r.fault.Code
	switch {
	case code == stripe.ErrorCodeChargeExpiredForCapture || code == stripe.ErrorCodeCaptureChargeAuthorizationExpired:
		return Refused{Code: "authorization_expired", Detail: r.text(r.fault.Msg)}
	case r.fault.HTTPStatusCode == http.StatusPaymentRequired:
		return r.declined(r.intent, "declined")
	}
	return Unknown{Code: r.text(faultCode(r.fault)), Detail: r.text(r.fault.Msg)}
}
