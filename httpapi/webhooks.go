package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/policy"
	"pawl/internal/webhooks"
)

var listWebhookEndpointsOperation = failing(huma.Operation{
	OperationID: "listWebhookEndpoints", Method: http.MethodGet, Path: "/api/webhook-endpoints", Tags: []string{"webhooks"},
	Summary:     "List all webhook endpoints",
	Description: "In the order in which they were made. Their secrets are not shown.",
}, "invalid_parameter", "unavailable", "internal")

type webhookEndpoints struct {
	Endpoints []webhookEndpoint `json:"endpoints" nullable:"false"`
}

func (s *server) listWebhookEndpoints(ctx context.Context, _ *struct{}) (webhookEndpoints, error) {
	rows, err := s.Webhooks.List(ctx)
	return webhookEndpoints{each(rows, webhookEndpointOf)}, err
}

var getWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "getWebhookEndpoint", Method: http.MethodGet, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary:     "Read a webhook endpoint",
	Description: "Its secret is not shown.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

// endpointRequest names an endpoint.
type endpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
}

type webhookEndpointAnswer struct {
	ETag string `header:"ETag" doc:"The version of the endpoint, in quotes."`
	Body webhookEndpoint
}

func (s *server) getWebhookEndpoint(ctx context.Context, in *endpointRequest) (*webhookEndpointAnswer, error) {
	row, err := s.Webhooks.Get(ctx, in.EndpointID)
	if err != nil {
		return nil, err
	}
	return &webhookEndpointAnswer{ETag: entityTag(row.Version), Body: webhookEndpointOf(&row)}, nil
}

var createWebhookEndpointOperation = withBody(huma.Operation{
	OperationID: "createWebhookEndpoint", Method: http.MethodPost, Path: "/api/webhook-endpoints", Tags: []string{"webhooks"},
	Summary: "Have events sent to an address",
	Description: "Every event from now on that is of one of the types is posted to the URL, those of an order in order, until it answers with 2xx. " +
		"The answer has the secret that deliveries are signed with (Standard Webhooks 1.0.0); it is not shown again, except when this request comes again with the same requestId.",
}, "too_many_endpoints", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")

type webhookEndpointBody struct {
	URL         string      `json:"url" minLength:"1" maxLength:"2000" doc:"Where events are posted to: https, or with --allow-private http, too. Callers with the role read see it, so no secret belongs into it." example:"https://shop.example/pawl"`
	Description string      `json:"description,omitempty" minLength:"1" maxLength:"1000" doc:"What it is for."`
	Types       []eventType `json:"types,omitempty" nullable:"false" minItems:"1" maxItems:"100" doc:"The types of the events that it gets: exact ones, or order.* for all that begin so. All when left out."`
	VerbBody
}

func (s *server) createWebhookEndpoint(ctx context.Context, q *sent[webhookEndpointBody]) (any, error) {
	return q.endpoint(s.Webhooks.Create(ctx, q.body.spec(), q.by))
}

var changeWebhookEndpointOperation = withBody(huma.Operation{
	OperationID: "changeWebhookEndpoint", Method: http.MethodPut, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary: "Change the URL, the description and the types of a webhook endpoint",
	Description: "All three become as they are sent. What was not delivered yet goes to the new URL; the types count for events that no deliveries were made of yet. " +
		"It is changed only if nobody has since the ETag in If-Match, which must be given.",
}, "not_found", "invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "precondition_required", "unavailable", "internal")

// changeWebhookEndpointRequest documents what changeWebhookEndpoint reads.
type changeWebhookEndpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	IfMatch    string `header:"If-Match" doc:"Only if the endpoint is still at this ETag. Must be given; * is any." example:"\"1\""`
	Keyed[webhookEndpointBody]
}

func (s *server) changeWebhookEndpoint(ctx context.Context, q *sent[webhookEndpointBody]) (any, error) {
	if strings.TrimSpace(q.Header.Get("If-Match")) == "" {
		return nil, newProblem("precondition_required", "", missingHeader("If-Match", "must be the ETag of the endpoint, or * to match any version"))
	}
	at, err := endpointAt(q.Request)
	if err != nil {
		return nil, err
	}
	return q.endpoint(s.Webhooks.Change(ctx, at, q.body.spec(), q.by))
}

var deleteWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "deleteWebhookEndpoint", Method: http.MethodDelete, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary:     "Remove a webhook endpoint",
	Description: "Nothing is sent to it any more, and its deliveries are forgotten. It can't be brought back; to stop for a while, disable it.",
}, "cross_origin", "invalid_parameter", "not_found", "precondition_failed", "unavailable", "internal")

// deleteWebhookEndpointRequest documents what deleteWebhookEndpoint reads.
type deleteWebhookEndpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	IfMatch    string `header:"If-Match" doc:"Only if the endpoint is still at this ETag."`
}

func (s *server) deleteWebhookEndpoint(w http.ResponseWriter, r *http.Request) error {
	at, err := endpointAt(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	if _, err = s.Webhooks.Stop(ctx, at, webhooks.Deleted, webhooks.By{Actor: principalOf(w).Name}); err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// webhookRoutes are those of webhook endpoints and their deliveries.
func (s *server) webhookRoutes() {
	list(s, listWebhookEndpointsOperation, s.listWebhookEndpoints)                                                                                    // GET    /api/webhook-endpoints: all
	postChange[Keyed[webhookEndpointBody], webhookEndpointAnswer](s, createWebhookEndpointOperation, checkWebhookEndpoint, s.createWebhookEndpoint)   // POST   /api/webhook-endpoints: make one
	getWithin(s, getWebhookEndpointOperation, readWithin, s.getWebhookEndpoint)                                                                       // GET    /api/webhook-endpoints/{endpointId}: one
	postChange[changeWebhookEndpointRequest, webhookEndpointAnswer](s, changeWebhookEndpointOperation, checkWebhookEndpoint, s.changeWebhookEndpoint) // PUT    /api/webhook-endpoints/{endpointId}: change it
	postChange[endpointVerbRequest[rotateSecretBody], webhookEndpointAnswer](s, rotateSecretOperation, nil, s.rotateSecret)                           // POST   /api/webhook-endpoints/{endpointId}/rotate-secret: sign with another
	postChange[endpointVerbRequest[enableBody], webhookEndpointAnswer](s, enableOperation, nil, s.enableEndpoint)                                     // POST   /api/webhook-endpoints/{endpointId}/enable: send to it again
	postChange[endpointVerbRequest[VerbBody], webhookEndpointAnswer](s, disableOperation, nil, s.disableEndpoint)                                     // POST   /api/webhook-endpoints/{endpointId}/disable: send nothing
	post[endpointRequest, plainAnswer[testOutcome]](s, testOperation, s.testEndpoint)                                                                 // POST   /api/webhook-endpoints/{endpointId}/test: send a test event
	list(s, listDeliveriesOfOrderOperation, s.listDeliveriesOfOrder)                                                                                  // GET    /api/orders/{orderId}/deliveries: of its newest events
	list(s, listDeliveriesOperation, s.listDeliveries)                                                                                                // GET    /api/webhook-endpoints/{endpointId}/deliveries: newest first
	get(s, getDeliveryOperation, s.getDelivery)                                                                                                       // GET    /api/webhook-endpoints/{endpointId}/deliveries/{delivery}: with its attempts
	postChange[deliveryVerbRequest[VerbBody], plainAnswer[delivery]](s, resendOperation, nil, s.resendDelivery)                                       // POST   /api/webhook-endpoints/{endpointId}/deliveries/{delivery}/resend: once more
	postChange[deliveryVerbRequest[skipBody], plainAnswer[delivery]](s, skipOperation, nil, s.skipDelivery)                                           // POST   /api/webhook-endpoints/{endpointId}/deliveries/{delivery}/skip: give it up
	postChange[endpointVerbRequest[recoverBody], plainAnswer[recovery]](s, recoverOperation, nil, s.recoverDeliveries)                                // POST   /api/webhook-endpoints/{endpointId}/recover: what was given up
	post[deleteWebhookEndpointRequest, struct{}](s, deleteWebhookEndpointOperation, s.deleteWebhookEndpoint)                                          // DELETE /api/webhook-endpoints/{endpointId}: remove it
}

// endpointAt is the endpoint that a request names, at the version that If-Match wants.
func endpointAt(r *http.Request) (at webhooks.At, err error) {
	at = webhooks.At{ID: r.PathValue("endpointId")}
	at.Version, err = ifMatch[int32](r.Header.Get("If-Match"))
	return at, err
}

// endpoint answers with an endpoint that was to be changed.
func (q *sent[B]) endpoint(row db.WebhookEndpoint, err error) (any, error) {
	if refused, ok := errors.AsType[*webhooks.AddressRefused](err); ok {
		return nil, newProblem("invalid_input", "", fieldError{Pointer: "/url", Code: "address_refused", Detail: refused.Reason})
	}
	if err != nil {
		return nil, err
	}
	q.answer.Set("ETag", entityTag(row.Version))
	out := webhookEndpointOf(&row)
	out.IgnoredFields = q.ignored
	return out, nil
}

// checkWebhookEndpoint looks at what the type does not say.
func checkWebhookEndpoint(d *decoder, body *webhookEndpointBody) {
	if body.URL != "" {
		if _, err := policy.ParseURL(body.URL); err != nil {
			d.fault("/url", "not_url", "must be an absolute https URL with a host and without user, password or fragment")
		}
	}
	for i, name := range body.Types {
		if !events.KnownType(string(name)) {
			d.fault("/types/"+decimalText(int64(i)), "unknown_type", "must be an event type, or a prefix followed by .*")
		}
	}
}

func (b *webhookEndpointBody) spec() webhooks.Spec {
	spec := webhooks.Spec{URL: b.URL, Description: b.Description}
	for _, name := range b.Types {
		spec.Types = append(spec.Types, string(name))
	}
	return spec
}

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
	VerbBody
}

type enableBody struct {
	From string `json:"from,omitempty" enum:"stopped,now" doc:"stopped: it gets everything that the feed still has since it was disabled. now: only what happens from now on. stopped when left out."`
	VerbBody
}

func (s *server) rotateSecret(ctx context.Context, q *sent[rotateSecretBody]) (any, error) {
	overlap := day
	if seconds := q.body.OverlapSeconds; seconds != nil {
		overlap = time.Duration(*seconds) * time.Second
	}
	return q.endpoint(s.Webhooks.RotateSecret(ctx, q.PathValue("endpointId"), overlap, q.by))
}

func (s *server) enableEndpoint(ctx context.Context, q *sent[enableBody]) (any, error) {
	return q.endpoint(s.Webhooks.Enable(ctx, q.PathValue("endpointId"), q.body.From == "now", q.by))
}

func (s *server) disableEndpoint(ctx context.Context, q *sent[VerbBody]) (any, error) {
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

// webhookEndpoint is an endpoint as the API shows it.
type webhookEndpoint struct {
	ID             string     `json:"id" example:"whe_1"`
	URL            string     `json:"url" maxLength:"2000" doc:"Where events are posted to." example:"https://shop.example/pawl"`
	Description    string     `json:"description,omitempty"`
	Types          []string   `json:"types" nullable:"false" doc:"The types of the events that it gets: exact ones, or order.* for all that begin so. Empty: all." example:"[\"order.*\"]"`
	State          string     `json:"state" enum:"enabled,disabled"`
	DisabledAt     *time.Time `json:"disabledAt,omitempty"`
	DisabledReason string     `json:"disabledReason,omitempty" doc:"Why it is disabled."`
	Failures       int32      `json:"failures" minimum:"0" doc:"Attempts that failed since the last one that succeeded."`
	FailingSince   *time.Time `json:"failingSince,omitempty" doc:"When the first of them was. After five days without a success it is disabled."`
	PausedUntil    *time.Time `json:"pausedUntil,omitempty" doc:"Nothing is sent before, because it fails or has asked for it."`
	EventNo        int64      `json:"eventNo" minimum:"0" doc:"Up to this number of the feed its deliveries were made."`
	Version        int32      `json:"version" minimum:"1" doc:"Raised by every change of it; also its ETag."`
	CreatedAt      time.Time  `json:"createdAt"`
	CreatedBy      string     `json:"createdBy" doc:"Who made it, as in the history of an order." example:"token:operations"`
	Secret         string     `json:"secret,omitempty" doc:"What its deliveries are signed with. Only in the answer to the request that made it, also when that comes again." example:"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"`

	PreviousSecretUntil *time.Time `json:"previousSecretUntil,omitempty" doc:"Until then its deliveries are signed with the secret before, too."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// delivery is an event for an endpoint.
type delivery struct {
	EndpointID  string     `json:"endpointId" doc:"The endpoint that it is for." example:"whe_1"`
	Delivery    int64      `json:"delivery" minimum:"1" doc:"Its number at this endpoint."`
	EventID     string     `json:"eventId" doc:"The id of the event, and the webhook-id of every attempt." example:"evt_1042_5_660e29dbaab52"`
	Type        string     `json:"type" example:"order.completed"`
	OrderID     string     `json:"orderId,omitempty" doc:"The order that the event is about."`
	Item        string     `json:"item,omitempty" doc:"The item whose stock the event is about."`
	State       string     `json:"state" enum:"pending,delivered,exhausted,skipped" doc:"exhausted: all attempts failed. It holds back what follows of its order at this endpoint until somebody has it sent again or skips it."`
	CreatedAt   time.Time  `json:"createdAt"`
	DueAt       *time.Time `json:"dueAt,omitempty" doc:"When it is sent next. Absent where it is finished, and where one before it of its order is not."`
	AttemptedAt *time.Time `json:"attemptedAt,omitempty" doc:"When it was sent last."`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	Attempts    int16      `json:"attempts" minimum:"0" doc:"How often it was sent, since it was stored or somebody had it sent again."`
	Status      int32      `json:"status,omitempty" doc:"HTTP status of the last answer. Absent: there was none."`

	Log     []attempt        `json:"log,omitempty" nullable:"false" doc:"The last 20 attempts, the oldest first. Not in lists."`
	Changes []deliveryChange `json:"changes,omitempty" nullable:"false" doc:"What people have asked of it, the oldest first. Not in lists."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// attempt is one time that a delivery was sent.
type attempt struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty" doc:"HTTP status of the answer. 200 to 299 is a success. Absent: there was no answer."`
	LatencyMs int64     `json:"latencyMs" minimum:"0" doc:"How long the answer took, in milliseconds."`
	Answer    string    `json:"answer,omitempty" doc:"Its beginning, up to 1 KiB."`
	Error     string    `json:"error,omitempty" doc:"Why there was no answer."`
}

// deliveryChange is what somebody has asked of a delivery.
type deliveryChange struct {
	At         time.Time `json:"at"`
	Verb       string    `json:"verb" enum:"resent,skipped"`
	Actor      string    `json:"actor" doc:"Who asked, as in the history of an order." example:"token:operations"`
	OnBehalfOf string    `json:"onBehalfOf,omitempty" doc:"For whom the actor says that it asked."`
	Reason     string    `json:"reason,omitempty"`
}

func webhookEndpointOf(e *db.WebhookEndpoint) webhookEndpoint {
	return webhookEndpoint{
		ID: webhooks.EndpointID(e.EndpointNo), URL: e.Url, Description: or(e.Description, ""), Types: e.Types, State: e.State,
		DisabledAt: utc(e.DisabledAt), DisabledReason: or(e.DisabledReason, ""), Failures: e.Failures, FailingSince: utc(e.FailingSince),
		PausedUntil: utc(e.PausedUntil), EventNo: e.EventNo, Version: e.Version, CreatedAt: e.CreatedAt.UTC(), CreatedBy: e.CreatedBy,
		Secret: e.Secret, PreviousSecretUntil: utc(e.PreviousSecretUntil),
	}
}

func deliveryOf(d *webhooks.Delivery) delivery {
	return delivery{
		EndpointID: webhooks.EndpointID(d.EndpointNo), Delivery: d.DeliveryNo, EventID: d.EventID, Type: d.Type, OrderID: d.OrderID, Item: d.Item(), State: d.State,
		CreatedAt: d.CreatedAt.UTC(), DueAt: utc(d.DueAt), AttemptedAt: utc(d.AttemptedAt), FinishedAt: utc(d.FinishedAt),
		Attempts: d.Attempts, Status: d.Status,
		Log: each(d.Log, attemptOf), Changes: each(d.Changes, deliveryChangeOf),
	}
}

func attemptOf(a *webhooks.Entry) attempt {
	return attempt{At: a.At.UTC(), Status: a.Status, LatencyMs: a.LatencyMs, Answer: a.Answer, Error: a.Error}
}

func deliveryChangeOf(c *db.WebhookChangesOfDeliveryRow) deliveryChange {
	return deliveryChange{At: c.At.UTC(), Verb: c.Verb, Actor: c.Actor, OnBehalfOf: or(c.OnBehalfOf, ""), Reason: or(c.Reason, "")}
}

// eventType is a type of events, or the beginning of several.
type eventType string

// Schema is that of a short text.
func (eventType) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxText), Examples: []any{"order.completed"}}
}
