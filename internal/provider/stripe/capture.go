package stripe

import (
	"context"
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// capture captures the authorized charge, whose reference is in the call.
type capture struct{ api *api }

// known is the result that needs no request, or nil.
func (s *capture) known(c *provider.Call) provider.Result {
	switch {
	case c.Amount.IsZero():
		return provider.Done{}
	case !isIntent(c.Reference):
		return provider.Unsent("reference_missing", errors.New("the order has no reference of its charge"))
	}
	return nil
}

// Do captures the charge.
func (s *capture) Do(ctx context.Context, c *provider.Call) provider.Result {
	if known := s.known(c); known != nil {
		return known
	}
	captured := s.api.capture(ctx, c, c.Reference)
	switch {
	case captured.failed == nil && !captured.replayed:
		return s.result(&captured)
	case captured.failed == nil || captured.refused():
		return s.settle(ctx, c, captured.fault)
	}
	return captured.failed
}

// Lookup reads the state of the charge.
func (s *capture) Lookup(ctx context.Context, c *provider.Call) provider.Result {
	if known := s.known(c); known != nil {
		return provider.InDoubt(known)
	}
	return s.settle(ctx, c, nil)
}

// Undo is never called.
func (s *capture) Undo(context.Context, *provider.Call) provider.Result {
	return provider.Unknown{Code: "no_undo", Detail: "a capture can't be undone"}
}

// Operate is never called.
func (s *capture) Operate(context.Context, *provider.Call) provider.Result {
	return provider.Unknown{Code: "no_charge_operation", Detail: "charge operations are about the charge"}
}

func (s *capture) settle(ctx context.Context, c *provider.Call, fault *stripe.Error) provider.Result {
	now := s.api.read(ctx, c, c.Reference)
	if now.failed != nil {
		return provider.InDoubt(now.failed)
	}
	now.fault = fault
	return s.result(&now)
}

func (s *capture) result(r *reply) provider.Result {
	switch intent := r.intent; intent.Status {
	case stripe.PaymentIntentStatusSucceeded:
		if refunded(intent) {
			return provider.Refused{Code: "refunded", Detail: "the charge was refunded"}
		}
		return provider.Done{Reference: intent.ID}
	case stripe.PaymentIntentStatusProcessing:
		return s.api.processing(intent)
	case stripe.PaymentIntentStatusCanceled: // by Stripe after some days, or by hand
		return provider.Refused{Code: provider.AuthorizationExpired, Detail: r.Text(string(intent.CancellationReason))}
	case stripe.PaymentIntentStatusRequiresCapture:
		return s.notCaptured(r)
	default:
		return unexpected(intent)
	}
}

// notCaptured says why an authorization was not captured.
func (s *capture) notCaptured(r *reply) provider.Result {
	if r.fault == nil {
		return provider.Retry{Code: "not_seen", Detail: "the payment intent was not captured", Counts: true}
	}
	code := r.fault.Code
	switch {
	case code == stripe.ErrorCodeChargeExpiredForCapture || code == stripe.ErrorCodeCaptureChargeAuthorizationExpired:
		return provider.Refused{Code: provider.AuthorizationExpired, Detail: r.Text(r.fault.Msg)}
	case r.fault.HTTPStatusCode == http.StatusPaymentRequired:
		return r.declined(r.intent, "declined")
	}
	return provider.Unknown{Code: r.Text(faultCode(r.fault)), Detail: r.Text(r.fault.Msg)}
}
