package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/webhooks"
)

// endpointVerb documents what people do with an endpoint as a whole.
func endpointVerb(id, path, summary, description string) huma.Operation {
	return withBody(huma.Operation{
		OperationID: id, Method: http.MethodPost, Path: "/api/webhook-endpoints/{endpointId}/" + path, Tags: []string{"webhooks"},
		Summary: summary, Description: description,
	}, "not_found", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")
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
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	Keyed[B]
}

// day is how long a secret is good beside the one in its place when nothing else is said.
const day = 24 * time.Hour

type rotateSecretBody struct {
	OverlapSeconds *int32 `json:"overlapSeconds,omitempty" minimum:"0" maximum:"2592000" doc:"For how long deliveries are signed with the secret before, too. A day when left out. 0: it is known to others, so not at all."`
	AskBody
}

type enableBody struct {
	From string `json:"from,omitempty" enum:"stopped,now" doc:"stopped: it gets everything that the feed still has since it was disabled. now: only what happens from now on. stopped when left out."`
	AskBody
}

// AskBody is that of a request which says nothing but who asks and why. It is exported because huma passes over embedded
// types that are not.
type AskBody struct {
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the access log."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

func (s *server) rotateSecret(ctx context.Context, q *asked) (any, error) {
	overlap := day
	if seconds := q.optionalInteger("overlapSeconds"); seconds != nil {
		overlap = time.Duration(*seconds) * time.Second
	}
	return q.endpoint(s.Webhooks.RotateSecret(ctx, q.PathValue("endpointId"), overlap, q.by))
}

func (s *server) enableEndpoint(ctx context.Context, q *asked) (any, error) {
	return q.endpoint(s.Webhooks.Enable(ctx, q.PathValue("endpointId"), q.text("from") == "now", q.by))
}

func (s *server) disableEndpoint(ctx context.Context, q *asked) (any, error) {
	return q.endpoint(s.Webhooks.Stop(ctx, webhooks.At{ID: q.PathValue("endpointId")}, webhooks.Disabled, q.by))
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
	sent, err := s.Webhooks.Test(ctx, r.PathValue("endpointId"))
	if err != nil {
		return err
	}
	return answerJSON(w, testOutcome{
		Delivered: sent.Delivered(), EventID: sent.EventID,
		At: sent.At.UTC(), Status: sent.Status, LatencyMs: sent.LatencyMs, Answer: sent.Answer, Error: sent.Error,
	})
}
