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
	Summary: "Answer a step that was called for",
	Description: "For providers that answered a call with 202: the callbackUrl of the call is such a path. The token is a credential; a policy with signedCallbacks wants a Standard Webhooks signature, too, with the Idempotency-Key of the call as the webhook-id. " +
		"An answer may come before that 202 was recorded, late, and more than once. The first one counts: another one than that is answered with accepted: false. " +
		"An effect that is reported too late for the order is undone. An unknown token stores nothing.",
}, "not_found", "bad_signature", "stopping", "unavailable", "internal")

// callbackRequest documents what callback reads.
type callbackRequest struct {
	Token  string `path:"token" doc:"The last segment of the callbackUrl."`
	Prefer string `header:"Prefer" doc:"handling=strict refuses fields that are not known (RFC 7240)."`
	Body   callbackBody
}

type callbackBody struct {
	Outcome   string `json:"outcome" enum:"done,refused,not_done" doc:"done: the effect is there. refused: it is not, and never will be under this key. not_done: nothing was done, and the step may be called for again."`
	Reference string `json:"reference,omitempty" maxLength:"255" doc:"Your name for the effect, kept on the order."`
	Code      string `json:"code,omitempty" doc:"Why it was refused or not done, for programs."`
	Detail    string `json:"detail,omitempty" doc:"The same for people. Cut after 200 characters, like code."`
	Data      object `json:"data,omitempty" doc:"What to keep with the effect: an object of up to 16 KiB."`
}

// receipt says what became of an answer.
type receipt struct {
	Accepted bool   `json:"accepted" doc:"It is the answer of the step."`
	Reason   string `json:"reason,omitempty" doc:"Why it is not."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// callback takes no authentication but the token, and a signature where the policy wants one.
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
