package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

var stripeOperation = failing(huma.Operation{
	OperationID: "takeStripeEvent", Method: http.MethodPost, Path: "/api/webhooks/stripe", Tags: []string{"providers"},
	Summary: "Take an event of Stripe's",
	Description: "The address for a webhook endpoint at Stripe; its secret is the webhookSecret of the policy. " +
		"Nothing of an event is believed: an order that waits for Stripe asks there what happened, at once instead of later. " +
		"Events about anything else, orders that are final among them, are accepted and do nothing. " +
		"So no event finds what Stripe did too late for an order.",
}, "cross_origin", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_parameter", "bad_signature", "stopping", "unavailable", "internal")

// stripeRequest documents what stripe reads.
type stripeRequest struct {
	Signature string `header:"Stripe-Signature" required:"true" doc:"Made by Stripe with the secret of the endpoint."`
	Body      object
}

func (s *server) stripe(w http.ResponseWriter, r *http.Request) error {
	body := newBuffer()
	defer body.free()
	if err := body.read(w, r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	if err := s.engine.StripeEvent(ctx, body.Bytes(), r.Header.Get("Stripe-Signature")); err != nil {
		return err
	}
	return answerJSON(w, receipt{Accepted: true})
}
