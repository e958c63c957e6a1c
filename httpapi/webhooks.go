package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/policy"
	"pawl/internal/spelling"
	"pawl/internal/webhooks"
)

var listWebhookEndpointsOperation = failing(huma.Operation{
	OperationID: "listWebhookEndpoints", Method: http.MethodGet, Path: "/api/webhook-endpoints", Tags: []string{"webhooks"},
	Summary:     "List webhook endpoints",
	Description: "In order of creation. Secrets are not included.",
}, "invalid_parameter", "unavailable", "internal")

type webhookEndpoints struct {
	Endpoints []webhookEndpoint `json:"endpoints" nullable:"false"`
}

func (s *server) listWebhookEndpoints(ctx context.Context, _ *struct{}) (webhookEndpoints, error) {
	rows, err := s.Webhooks.List(ctx)
	if err != nil {
		return webhookEndpoints{}, err
	}
	all, err := s.withUndelivered(ctx, rows...)
	return webhookEndpoints{all}, err
}

// withUndelivered counts what the endpoints have not got yet.
func (s *server) withUndelivered(ctx context.Context, rows ...db.WebhookEndpoint) ([]webhookEndpoint, error) {
	undelivered, err := s.Webhooks.Undelivered(ctx, each(rows, func(e *db.WebhookEndpoint) int32 { return e.EndpointNo })...)
	return each(rows, func(e *db.WebhookEndpoint) webhookEndpoint {
		out, b := webhookEndpointOf(e), undelivered[e.EndpointNo]
		out.Undelivered, out.MoreUndelivered = &b.Events, b.More
		return out
	}), err
}

var getWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "getWebhookEndpoint", Method: http.MethodGet, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary:     "Get a webhook endpoint",
	Description: "The secret is not included.",
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
	out, err := s.withUndelivered(ctx, row)
	return &webhookEndpointAnswer{ETag: entityTag(row.Version), Body: out[0]}, err
}

var createWebhookEndpointOperation = withBody(huma.Operation{
	OperationID: "createWebhookEndpoint", Method: http.MethodPost, Path: "/api/webhook-endpoints", Tags: []string{"webhooks"},
	Summary: "Create a webhook endpoint",
	Description: "Every new event of the given types is posted to the URL until it responds with 2xx; the events of an order are sent in order. " +
		"The response contains the secret that deliveries are signed with (Standard Webhooks 1.0.0). " +
		"It is shown only here, and if the request is repeated with the same requestId.",
}, "too_many_endpoints", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")

type webhookEndpointBody struct {
	URL         string `json:"url" minLength:"1" maxLength:"2000" doc:"The URL to post events to: https, or with --allow-private also http. It is visible with the role read, so it must not contain secrets."`
	Description string `json:"description,omitempty" minLength:"1" maxLength:"1000" doc:"What it is for."`
	Types       []name `json:"types,omitempty" nullable:"false" minItems:"1" maxItems:"100" doc:"The event types to send; order.* matches all that begin with order. Defaults to all. Those about how Pawl drives an order, such as order.awaiting_retry, are sent only if they are named."`
	VerbBody
}

func (s *server) createWebhookEndpoint(ctx context.Context, q *sent[webhookEndpointBody]) (any, error) {
	return q.endpoint(s.Webhooks.Create(ctx, q.body.spec(), q.by))
}

var changeWebhookEndpointOperation = withBody(huma.Operation{
	OperationID: "changeWebhookEndpoint", Method: http.MethodPut, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary: "Update a webhook endpoint",
	Description: "Replaces the URL, description and types. Pending deliveries go to the new URL; the new types apply " +
		"to events without deliveries yet. " +
		"If-Match is required: the endpoint is changed only if it still has that ETag.",
}, "not_found", "invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "precondition_required", "unavailable", "internal")

// changeWebhookEndpointRequest documents what changeWebhookEndpoint reads.
type changeWebhookEndpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	IfMatch    string `header:"If-Match" doc:"Only if the endpoint still has this ETag. Required; * matches any."`
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
	Summary:     "Delete a webhook endpoint",
	Description: "Nothing more is sent to it, and its deliveries are removed. This cannot be undone; to stop for a while, disable it.",
}, "cross_origin", "invalid_parameter", "not_found", "precondition_failed", "unavailable", "internal")

// deleteWebhookEndpointRequest documents what deleteWebhookEndpoint reads.
type deleteWebhookEndpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	IfMatch    string `header:"If-Match" doc:"Only if the endpoint still has this ETag."`
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

// webhookRoutes registers the routes of webhook endpoints and their deliveries.
func (s *server) webhookRoutes() {
	list(s, listWebhookEndpointsOperation, s.listWebhookEndpoints)
	postChange[Keyed[webhookEndpointBody], webhookEndpointAnswer](s, createWebhookEndpointOperation, checkWebhookEndpoint, s.createWebhookEndpoint)
	getWithin(s, getWebhookEndpointOperation, readWithin, s.getWebhookEndpoint)
	postChange[changeWebhookEndpointRequest, webhookEndpointAnswer](s, changeWebhookEndpointOperation, checkWebhookEndpoint, s.changeWebhookEndpoint)
	postChange[endpointVerbRequest[rotateSecretBody], webhookEndpointAnswer](s, rotateSecretOperation, nil, s.rotateSecret)
	postChange[endpointVerbRequest[VerbBody], webhookEndpointAnswer](s, disableOperation, nil, s.disableEndpoint)
	postChange[endpointVerbRequest[enableBody], webhookEndpointAnswer](s, enableOperation, nil, s.enableEndpoint)
	post[endpointRequest, plainAnswer[testOutcome]](s, testOperation, s.testEndpoint)
	list(s, listDeliveriesOfOrderOperation, s.listDeliveriesOfOrder)
	list(s, listDeliveriesOperation, s.listDeliveries)
	get(s, getDeliveryOperation, s.getDelivery)
	postChange[deliveryVerbRequest[VerbBody], plainAnswer[delivery]](s, resendOperation, nil, s.resendDelivery)
	postChange[deliveryVerbRequest[skipBody], plainAnswer[delivery]](s, skipOperation, nil, s.skipDelivery)
	postChange[endpointVerbRequest[recoverBody], plainAnswer[recovery]](s, recoverOperation, nil, s.recoverDeliveries)
	post[deleteWebhookEndpointRequest, struct{}](s, deleteWebhookEndpointOperation, s.deleteWebhookEndpoint)
}

// endpointAt returns the endpoint of a request, at the version of If-Match.
func endpointAt(r *http.Request) (at webhooks.At, err error) {
	at = webhooks.At{ID: r.PathValue("endpointId")}
	at.Version, err = ifMatch[int32](r.Header.Get("If-Match"))
	return at, err
}

// endpoint answers with a changed endpoint.
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

// checkWebhookEndpoint checks what the type does not express.
func checkWebhookEndpoint(d *decoder, body *webhookEndpointBody) {
	if body.URL != "" {
		if _, err := policy.ParseURL(body.URL); err != nil {
			d.fault("/url", "not_url", "must be an absolute https URL (http only to this machine), with a host and without user, password or fragment")
		}
	}
	for i, name := range body.Types {
		if !events.KnownType(string(name)) {
			d.fault("/types/"+decimalText(int64(i)), "unknown_type",
				fmt.Sprintf("%q is not an event type, order.* or stock.*", name)+spelling.Suggestion(string(name), events.Types()))
		}
	}
}

func (b *webhookEndpointBody) spec() webhooks.Spec {
	return webhooks.Spec{URL: b.URL, Description: b.Description, Types: textsOf(b.Types)}
}

// endpointVerb documents the verbs of an endpoint and of its deliveries.
func endpointVerb(op huma.Operation, more ...problemCode) huma.Operation {
	op.Method, op.Path, op.Tags = http.MethodPost, "/api/webhook-endpoints/{endpointId}/"+op.Path, []string{"webhooks"}
	return withBody(op, append(more, "not_found", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")...)
}

var (
	rotateSecretOperation = endpointVerb(huma.Operation{OperationID: "rotateWebhookSecret", Path: "rotate-secret", Summary: "Rotate the secret of a webhook endpoint",
		Description: "The response contains the new secret. It is shown only here, and if the request is repeated with the same " +
			"requestId. For a while, deliveries have two signatures, " +
			"one for each secret, so that the receiver can switch in the meantime."})
	enableOperation = endpointVerb(huma.Operation{OperationID: "enableWebhookEndpoint", Path: "enable", Summary: "Enable a webhook endpoint",
		Description: "Deliveries continue where they stopped, at once; or from now on, and unfinished ones are skipped. Earlier failures no longer delay them."})
	disableOperation = endpointVerb(huma.Operation{OperationID: "disableWebhookEndpoint", Path: "disable", Summary: "Disable a webhook endpoint",
		Description: "Nothing is sent to it. Its events are kept as long as the feed keeps them."})
	testOperation = endpointVerb(huma.Operation{OperationID: "testWebhookEndpoint", Path: "test", Summary: "Send a test event to a webhook endpoint",
		Description: "Sends an event of type webhook_endpoint.test at once, even to a disabled endpoint, signed like any other, and " +
			"returns the result. It is not stored or retried."})
)

// endpointVerbRequest documents what a verb of an endpoint reads.
type endpointVerbRequest[B any] struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	Keyed[B]
}

// overlapSeconds is how long a replaced secret also signs by default: a day.
const overlapSeconds = 24 * 60 * 60

type rotateSecretBody struct {
	OverlapSeconds *int32 `json:"overlapSeconds,omitempty" minimum:"0" maximum:"2592000" doc:"How long deliveries are also signed with the previous secret. Defaults to a day. Use 0 if the secret leaked."`
	VerbBody
}

type enableBody struct {
	From string `json:"from,omitempty" enum:"stopped,now" doc:"stopped (the default): send everything since it was disabled that the feed still has. now: only new events."`
	VerbBody
}

func (s *server) rotateSecret(ctx context.Context, q *sent[rotateSecretBody]) (any, error) {
	overlap := time.Duration(or(q.body.OverlapSeconds, overlapSeconds)) * time.Second
	return q.endpoint(s.Webhooks.RotateSecret(ctx, q.PathValue("endpointId"), overlap, q.by))
}

func (s *server) enableEndpoint(ctx context.Context, q *sent[enableBody]) (any, error) {
	return q.endpoint(s.Webhooks.Enable(ctx, q.PathValue("endpointId"), q.body.From == "now", q.by))
}

func (s *server) disableEndpoint(ctx context.Context, q *sent[VerbBody]) (any, error) {
	return q.endpoint(s.Webhooks.Stop(ctx, webhooks.At{ID: q.PathValue("endpointId")}, webhooks.Disabled, q.by))
}

// testOutcome is the result of a test event.
type testOutcome struct {
	Delivered bool   `json:"delivered" doc:"Whether the response was 2xx."`
	EventID   string `json:"eventId" doc:"The id of the event, and the webhook-id of the request."`
	Attempt
}

// testLimit is the timeout of a test: the timeout of an attempt, and some time to read the endpoint.
const testLimit = 25 * time.Second

func (s *server) testEndpoint(w http.ResponseWriter, r *http.Request) error {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil { // the body has no fields, but reading it removes the read deadline
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), testLimit)
	defer cancel()
	sent, err := s.Webhooks.Test(ctx, r.PathValue("endpointId"))
	if err != nil {
		return err
	}
	return answerJSON(w, testOutcome{sent.Delivered(), sent.EventID, attemptOf(&sent.Entry)})
}

// webhookEndpoint is an endpoint as the API shows it.
type webhookEndpoint struct {
	ID             string     `json:"id"`
	URL            string     `json:"url" maxLength:"2000" doc:"The URL that events are posted to."`
	Description    string     `json:"description,omitempty"`
	Types          []string   `json:"types" nullable:"false" doc:"The event types that are sent; order.* matches all that begin with order. Empty means all. Those about how Pawl drives orders are sent only if they are named."`
	State          string     `json:"state" enum:"enabled,disabled"`
	DisabledAt     *time.Time `json:"disabledAt,omitempty"`
	DisabledReason string     `json:"disabledReason,omitempty" doc:"Why it is disabled."`
	Failures       int32      `json:"failures" minimum:"0" doc:"Failed attempts since the last success."`
	FailingSince   *time.Time `json:"failingSince,omitempty" doc:"When the first of them was."`
	DisablesAt     *time.Time `json:"disablesAt,omitempty" doc:"When the endpoint is disabled if nothing succeeds until then: five days after failingSince."`
	LastFailure    *Attempt   `json:"lastFailure,omitempty" doc:"The last failed attempt. Absent if the last one succeeded."`
	PausedUntil    *time.Time `json:"pausedUntil,omitempty" doc:"Nothing is sent until then, because attempts failed or the endpoint asked to wait."`
	EventNo        int64      `json:"eventNo" minimum:"0" doc:"Events of the feed up to this number have deliveries."`
	Undelivered    *int64     `json:"undelivered,omitempty" minimum:"0" doc:"Events that are not delivered yet: up to 10000 deliveries, and those that will be sent of the next 10000 events of the feed. Absent in responses to changes."`
	Version        int32      `json:"version" minimum:"1" doc:"Raised by every change; also its ETag."`
	CreatedAt      time.Time  `json:"createdAt"`
	CreatedBy      string     `json:"createdBy" doc:"Who created it, as in the history of an order."`
	Secret         string     `json:"secret,omitempty" doc:"The secret that deliveries are signed with. Only in the response to the request that created it."`

	MoreUndelivered     bool       `json:"moreUndelivered,omitempty" doc:"There may be more of these."`
	PreviousSecretUntil *time.Time `json:"previousSecretUntil,omitempty" doc:"Until then, deliveries are also signed with the previous secret."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// delivery is the delivery of an event to an endpoint.
type delivery struct {
	EndpointID  string     `json:"endpointId" doc:"The endpoint."`
	Delivery    int64      `json:"delivery" minimum:"1" doc:"Its number at this endpoint."`
	EventID     string     `json:"eventId" doc:"The id of the event, and the webhook-id of every attempt."`
	Type        string     `json:"type"`
	OrderID     string     `json:"orderId,omitempty" doc:"The order of the event."`
	Item        string     `json:"item,omitempty" doc:"The item of the event."`
	State       string     `json:"state" enum:"pending,delivered,exhausted,skipped" doc:"exhausted: all attempts failed. Later deliveries of the order at this endpoint wait until it is resent or skipped."`
	EventAt     *time.Time `json:"eventAt,omitempty" doc:"When the event happened. Absent if it is not one of the feed."`
	CreatedAt   time.Time  `json:"createdAt" doc:"When the delivery was created."`
	DueAt       *time.Time `json:"dueAt,omitempty" doc:"When it is sent next. Absent if it is finished, or waits for an earlier delivery of its order."`
	AttemptedAt *time.Time `json:"attemptedAt,omitempty" doc:"When it was last sent."`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	Attempts    int16      `json:"attempts" minimum:"0" doc:"Attempts since it was created or resent."`
	Status      int32      `json:"status,omitempty" doc:"HTTP status of the last response. Absent if there was none."`
	Error       string     `json:"error,omitempty" doc:"Why the last attempt had no response."`

	Log     []Attempt        `json:"log,omitempty" nullable:"false" doc:"The last 20 attempts, oldest first. Not in lists."`
	Changes []deliveryChange `json:"changes,omitempty" nullable:"false" doc:"Changes that people made, oldest first. Not in lists."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// Attempt is one attempt to send a delivery, or a test event. It is exported because huma skips unexported embedded types.
type Attempt struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty" doc:"HTTP status of the response. Absent if there was none."`
	LatencyMs int64     `json:"latencyMs" minimum:"0" doc:"Time until the response, in milliseconds."`
	Answer    string    `json:"answer,omitempty" doc:"The beginning of the response, up to 1 KiB."`
	Error     string    `json:"error,omitempty" doc:"Why there was no response."`
}

// deliveryChange is a change of a delivery that a person made.
type deliveryChange struct {
	At         time.Time `json:"at"`
	Verb       string    `json:"verb" enum:"resent,skipped"`
	Actor      string    `json:"actor" doc:"Who requested it, as in the history of an order."`
	OnBehalfOf string    `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by the actor."`
	Reason     string    `json:"reason,omitempty"`
}

func webhookEndpointOf(e *db.WebhookEndpoint) webhookEndpoint {
	var last *Attempt
	if failure := webhooks.LastFailure(e); failure != nil {
		last = new(attemptOf(failure))
	}
	var disables *time.Time
	if e.FailingSince != nil && e.State == webhooks.Enabled {
		disables = new(e.FailingSince.Add(webhooks.DisabledAfter).UTC())
	}
	return webhookEndpoint{
		ID: webhooks.EndpointID(e.EndpointNo), URL: e.Url, Description: or(e.Description, ""), Types: e.Types, State: e.State,
		DisabledAt: utc(e.DisabledAt), DisabledReason: or(e.DisabledReason, ""), Failures: e.Failures, FailingSince: utc(e.FailingSince), DisablesAt: disables,
		LastFailure: last, PausedUntil: utc(e.PausedUntil), EventNo: e.EventNo, Version: e.Version, CreatedAt: e.CreatedAt.UTC(), CreatedBy: e.CreatedBy,
		Secret: e.Secret, PreviousSecretUntil: utc(e.PreviousSecretUntil),
	}
}

func deliveryOf(d *webhooks.Delivery) delivery {
	return delivery{
		EndpointID: webhooks.EndpointID(d.EndpointNo), Delivery: d.DeliveryNo, EventID: d.EventID, Type: d.Type,
		OrderID: d.OrderID, Item: d.Item(), State: d.State,
		EventAt: events.At(d.EventID), CreatedAt: d.CreatedAt.UTC(), DueAt: utc(d.DueAt), AttemptedAt: utc(d.AttemptedAt), FinishedAt: utc(d.FinishedAt),
		Attempts: d.Attempts, Status: d.Status, Error: d.Error,
		Log: each(d.Log, attemptOf), Changes: each(d.Changes, deliveryChangeOf),
	}
}

func attemptOf(a *webhooks.Entry) Attempt {
	return Attempt{At: a.At.UTC(), Status: a.Status, LatencyMs: a.LatencyMs, Answer: a.Answer, Error: a.Error}
}

func deliveryChangeOf(c *db.WebhookChangesOfDeliveryRow) deliveryChange {
	return deliveryChange{At: c.At.UTC(), Verb: c.Verb, Actor: c.Actor, OnBehalfOf: or(c.OnBehalfOf, ""), Reason: or(c.Reason, "")}
}
