package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
)

var callbackOperation = withBody(huma.Operation{
	OperationID: "answerStep", Method: http.MethodPost, Path: "/api/callbacks/{token}", Tags: []string{"providers"},
	Summary: "Report the result of a step",
	Description: "For providers that answered a call with 202: the callbackUrl of the call is such a path. The token is a credential. " +
		"If the policy sets signedCallbacks, a Standard Webhooks signature is also required, with the Idempotency-Key of the call as the webhook-id. " +
		"A result may arrive before that 202 was recorded, late, or more than once. The first one counts; a different one gets accepted: false. " +
		"An effect that is reported too late for the order is undone. An unknown token stores nothing.",
}, "not_found", "bad_signature", "stopping", "unavailable", "internal")

// callbackRequest documents what callback reads.
type callbackRequest struct {
	Token  string `path:"token" doc:"The last segment of the callbackUrl."`
	Prefer string `header:"Prefer" doc:"handling=strict rejects unknown fields (RFC 7240)."`
	Body   callbackBody
}

type callbackBody struct {
	Outcome   string `json:"outcome" enum:"done,refused,not_done" doc:"done: it has taken effect. refused: it has not, and never will under this key. not_done: it has not, and may be called again."`
	Reference string `json:"reference,omitempty" maxLength:"255" doc:"Your name for the effect; stored with the order."`
	Code      string `json:"code,omitempty" doc:"Why it was refused or not done, for programs."`
	Detail    string `json:"detail,omitempty" doc:"Why, for people. Truncated to 200 characters, like code."`
	Data      object `json:"data,omitempty" doc:"Data to store with the effect: an object of up to 16 KiB."`
}

// receipt says whether an answer was accepted.
type receipt struct {
	Accepted bool   `json:"accepted" doc:"Whether this is the result of the step."`
	Reason   string `json:"reason,omitempty" doc:"Why it was not accepted."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// callback is authenticated only by the token, and by a signature if the policy requires one.
func (s *server) callback(w http.ResponseWriter, r *http.Request) error {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil {
		return err
	}
	q, err := decodeBody[callbackBody](r, text.Bytes(), nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	result := engine.CallbackResult{Outcome: q.body.Outcome, Header: r.Header, Body: text.Bytes()}
	result.Reference, result.Code, result.Detail, result.Data = q.body.Reference, q.body.Code, q.body.Detail, json.RawMessage(q.body.Data)
	got, err := s.engine.Answer(ctx, r.PathValue("token"), result)
	if invalid, ok := errors.AsType[*engine.InvalidCallback](err); ok {
		return newProblem("invalid_input", invalid.Error()+".")
	}
	if err != nil {
		return err
	}
	return answerJSON(w, receipt{Accepted: got.Accepted, Reason: got.Reason, IgnoredFields: q.ignored})
}

var stripeOperation = failing(huma.Operation{
	OperationID: "takeStripeEvent", Method: http.MethodPost, Path: "/api/webhooks/stripe", Tags: []string{"providers"},
	Summary: "Receive a Stripe event",
	Description: "The URL for a webhook endpoint at Stripe; its secret is the webhookSecret of the policy. " +
		"An event is only a hint: Pawl asks Stripe for the state of the order that waits for it. " +
		"Other events, and events about finished orders, are accepted and ignored. " +
		"Effects that come too late for an order are not discovered this way.",
}, "cross_origin", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_parameter", "bad_signature",
	"stopping", "unavailable", "internal")

// stripeRequest documents what stripe reads.
type stripeRequest struct {
	Signature string `header:"Stripe-Signature" required:"true" doc:"Signature made by Stripe with the secret of the endpoint."`
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
