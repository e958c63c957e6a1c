package stripe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// Operate does a charge operation: a refund, or a capture or void of an authorization.
func (s *charge) Operate(ctx context.Context, c *provider.Call) provider.Result {
	switch {
	case c.OperationKind == provider.Refund:
		return s.refundPart(ctx, c)
	case intentOf(c) == "":
		return noIntent()
	case c.OperationKind == provider.Capture:
		return s.capturePart(ctx, c)
	}
	return s.voidRest(ctx, c)
}

// lookupOperation reads what became of a charge operation, or of the authorization itself.
func (s *charge) lookupOperation(ctx context.Context, c *provider.Call) provider.Result {
	switch {
	case c.OperationKind == provider.Refund:
		return s.lookupRefund(ctx, c)
	case intentOf(c) == "":
		return provider.InDoubt(noIntent())
	}
	now := s.api.read(ctx, c, c.Reference)
	switch {
	case now.failed != nil:
		return provider.InDoubt(now.failed)
	case c.OperationID == "":
		return now.authorization()
	case c.OperationKind == provider.Capture:
		return now.captured(c)
	}
	return now.voided(c)
}

func noIntent() provider.Result {
	return provider.Unsent("reference_missing", errors.New("the order has no reference of its charge"))
}

// capturePart captures a part of an intent, always under its own key: an intent can have several captures, if the
// account has multicapture. Otherwise Stripe refuses every capture but a final one.
func (s *charge) capturePart(ctx context.Context, c *provider.Call) provider.Result {
	units, ok := minorUnits(c.Amount, c.Currency)
	if !ok {
		return notRepresentable("capture", c)
	}
	made := s.api.capturePart(ctx, c, units)
	switch {
	case made.failed == nil && !made.replayed:
		return made.captured(c)
	case made.failed != nil && !made.refused():
		return made.failed
	}
	found := s.lookupOperation(ctx, c) // an earlier request may have captured, or the stored answer may be outdated
	_, unseen := found.(provider.Retry)
	switch {
	case unseen && made.refused() && made.Status < http.StatusInternalServerError:
		return made.failed
	case unseen: // the request failed halfway
		return provider.InDoubt(found)
	}
	return found
}

// captured is the result of a capture by its mark in the metadata of the intent, which, unlike a key, never expires. An
// intent that was captured or canceled as a whole takes no late capture.
func (r *reply) captured(c *provider.Call) provider.Result {
	switch intent := r.intent; {
	case intent.Metadata[captureMark(c)] == c.OperationID:
		return provider.Done{}
	case intent.Status == stripe.PaymentIntentStatusProcessing:
		return provider.Unknown{Code: provider.InProgress, Detail: "the payment is being processed"}
	case intent.Status == stripe.PaymentIntentStatusRequiresCapture:
		return provider.Retry{Code: "not_seen", Detail: "the payment intent has no such capture", Counts: true}
	}
	return r.authorization()
}

// captureMark is the name under which a capture leaves its ID in the metadata. Names have up to 40 characters.
func captureMark(c *provider.Call) string {
	sum := sha256.Sum256([]byte(c.Key(opCapture)))
	return "pawl_capture_" + hex.EncodeToString(sum[:12])
}

func (a *api) capturePart(ctx context.Context, c *provider.Call, units int64) reply {
	params := &stripe.PaymentIntentCaptureParams{
		Params:          stripe.Params{IdempotencyKey: stripe.String(c.Key(opCapture))},
		AmountToCapture: stripe.Int64(units), Metadata: map[string]string{captureMark(c): c.OperationID},
	}
	if !c.Final { // accounts without multicapture don't know the parameter
		params.FinalCapture = stripe.Bool(false)
	}
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		return r.tookIntent(client.V1PaymentIntents.Capture(ctx, c.Reference, params))
	})
}

// voidRest cancels an intent: what is not captured is released.
func (s *charge) voidRest(ctx context.Context, c *provider.Call) provider.Result {
	if canceled := s.api.cancel(ctx, c, c.Reference); canceled.failed != nil && !canceled.refused() {
		return canceled.failed
	}
	found := s.lookupOperation(ctx, c)
	if _, unseen := found.(provider.Retry); unseen {
		return provider.InDoubt(found)
	}
	return found
}

// voided is the result of a void by the state of the intent.
func (r *reply) voided(c *provider.Call) provider.Result {
	switch status := r.intent.Status; {
	case status == stripe.PaymentIntentStatusRequiresCapture:
		return provider.Retry{Code: "not_seen", Detail: "the payment intent was not canceled", Counts: true}
	case status == stripe.PaymentIntentStatusCanceled, status == stripe.PaymentIntentStatusSucceeded:
		if units, ok := minorUnits(c.Amount, c.Currency); !ok || r.intent.Amount-r.intent.AmountReceived < units {
			return provider.Refused{Code: "captured", Detail: "more was captured than these captures"}
		}
		if r.intent.CancellationReason == stripe.PaymentIntentCancellationReasonAbandoned { // by this void
			return provider.Done{}
		}
		return r.authorization()
	}
	return provider.Unknown{Code: provider.InProgress, Detail: provider.Text("the payment intent is " + string(r.intent.Status))}
}

// authorization is the result of a look-up of an authorization: it is done while something can be captured.
func (r *reply) authorization() provider.Result {
	switch intent := r.intent; {
	case intent.Status == stripe.PaymentIntentStatusRequiresCapture && intent.AmountCapturable > 0:
		return provider.Done{Reference: intent.ID}
	case intent.Status == stripe.PaymentIntentStatusCanceled, intent.Status == stripe.PaymentIntentStatusSucceeded:
		return provider.Refused{Code: provider.AuthorizationExpired, Detail: r.Text(string(intent.CancellationReason))}
	}
	return unexpected(r.intent)
}
