package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/webhooks"
)

// endpointVerb documents what people do with an endpoint as a whole.
func endpointVerb(id, path, summary, description string) huma.Operation {
	return failing(huma.Operation{
		OperationID: id, Method: http.MethodPost, Path: "/api/webhook-endpoints/{endpointId}/" + path, Tags: []string{"webhooks"},
		Summary: summary, Description: description,
	}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter", "not_found",
		"invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")
}

var (
	rotateSecretOperation = endpointVerb("rotateWebhookSecret", "rotate-secret", "Give a webhook endpoint another secret",
		"The answer has it; it is not shown again, except when this request comes again with the same requestId. For a while deliveries have two signatures, "+
			"one for each secret, so that a receiver can change over when it likes.")
	enableOperation = endpointVerb("enableWebhookEndpoint", "enable", "Send to a disabled webhook endpoint again",
		"From where it stood, beginning at once; or from now on: what is not finished is skipped then. An endpoint that is enabled is not left alone for its failures any more.")
	disableOperation = endpointVerb("disableWebhookEndpoint", "disable", "Send nothing to a webhook endpoint for a while",
		"Events are kept for it as long as the feed keeps them.")
	testOperation = endpointVerb("testWebhookEndpoint", "test", "Send a test event to a webhook endpoint",
		"At once, also to one that is disabled. It is of the type webhook_endpoint.test, and signed like all others. The answer says what came back. Nothing of it is kept, and it is not sent again.")
)

// endpointVerbRequest documents what a verb of an endpoint reads.
type endpointVerbRequest[B any] struct {
	EndpointID     string `path:"endpointId" doc:"The id of the endpoint."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"Another way to give the requestId; in quotes or without."`
	Prefer         string `header:"Prefer" doc:"handling=strict refuses fields that are not known (RFC 7240)."`
	Body           B
}

// day is how long a secret is good beside the one in its place when nothing else is said.
const day = 24 * time.Hour

type rotateSecretBody struct {
	OverlapSeconds *int32 `json:"overlapSeconds,omitempty" minimum:"0" maximum:"2592000" doc:"For how long deliveries are signed with the secret before, too. A day when left out. 0: it is known to others, so not at all."`
	OnBehalfOf     string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept beside the caller, which a token names. Needs the role delegate."`
	Reason         string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the access log."`
	RequestID      string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

type enableBody struct {
	From       string `json:"from,omitempty" enum:"stopped,now" doc:"stopped: it gets everything that the feed still has since it was disabled. now: only what happens from now on. stopped when left out."`
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the access log."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

// askBody is that of a request which says nothing but who asks and why.
type askBody struct {
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the access log."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

var (
	rotateSecretSchema = schemaOf[rotateSecretBody]()
	enableSchema       = schemaOf[enableBody]()
	askSchema          = schemaOf[askBody]()
)

func (s *server) rotateSecret(w http.ResponseWriter, r *http.Request) error {
	by, body, err := readAsked(w, r, rotateSecretSchema, nil)
	if err != nil {
		return err
	}
	overlap := day
	if seconds := body.optionalInteger("overlapSeconds"); seconds != nil {
		overlap = time.Duration(*seconds) * time.Second
	}
	return s.answerEndpoint(w, r, body, func(ctx context.Context) (db.WebhookEndpoint, error) {
		return s.webhooks.RotateSecret(ctx, r.PathValue("endpointId"), overlap, by)
	})
}

func (s *server) enableEndpoint(w http.ResponseWriter, r *http.Request) error {
	by, body, err := readAsked(w, r, enableSchema, nil)
	if err != nil {
		return err
	}
	return s.answerEndpoint(w, r, body, func(ctx context.Context) (db.WebhookEndpoint, error) {
		return s.webhooks.Enable(ctx, r.PathValue("endpointId"), body.text("from") == "now", by)
	})
}

func (s *server) disableEndpoint(w http.ResponseWriter, r *http.Request) error {
	by, body, err := readAsked(w, r, askSchema, nil)
	if err != nil {
		return err
	}
	return s.answerEndpoint(w, r, body, func(ctx context.Context) (db.WebhookEndpoint, error) {
		return s.webhooks.Stop(ctx, webhooks.At{ID: r.PathValue("endpointId")}, webhooks.Disabled, by)
	})
}

// testRequest documents what testEndpoint reads.
type testRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
}

// testOutcome says what came of a test event.
type testOutcome struct {
	Delivered bool   `json:"delivered" doc:"It was answered with 2xx."`
	EventID   string `json:"eventId" doc:"The id of the event, and the webhook-id of the request." example:"evt_test_4xq7m2kd"`

	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty" doc:"HTTP status of the answer. Absent: there was no answer."`
	LatencyMs int64     `json:"latencyMs" minimum:"0" doc:"How long the answer took, in milliseconds."`
	Answer    string    `json:"answer,omitempty" doc:"Its beginning, up to 1 KiB."`
	Error     string    `json:"error,omitempty" doc:"Why there was no answer."`
}

// testLimit is how long a test may take: the time that an attempt has, and some to read the endpoint.
const testLimit = 25 * time.Second

func (s *server) testEndpoint(w http.ResponseWriter, r *http.Request) error {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil { // it says nothing, but to have read it lets the request wait
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), testLimit)
	defer cancel()
	sent, err := s.webhooks.Test(ctx, r.PathValue("endpointId"))
	if err != nil {
		return err
	}
	return answerJSON(w, testOutcome{
		Delivered: sent.Delivered(), EventID: sent.EventID,
		At: sent.At.UTC(), Status: sent.Status, LatencyMs: sent.LatencyMs, Answer: sent.Answer, Error: sent.Error,
	})
}
