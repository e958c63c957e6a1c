package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/events"
	"pawl/policy"
	"pawl/webhooks"
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
	rows, err := s.webhooks.List(ctx)
	return webhookEndpoints{each(rows, webhookEndpointOf)}, err
}

var getWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "getWebhookEndpoint", Method: http.MethodGet, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary:     "Read a webhook endpoint",
	Description: "Its secret is not shown.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getWebhookEndpointRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
}

type webhookEndpointAnswer struct {
	ETag string `header:"ETag" doc:"The version of the endpoint, in quotes."`
	Body webhookEndpoint
}

func (s *server) getWebhookEndpoint(ctx context.Context, in *getWebhookEndpointRequest) (*webhookEndpointAnswer, error) {
	row, err := s.webhooks.Get(ctx, in.EndpointID)
	if err != nil {
		return nil, err
	}
	return &webhookEndpointAnswer{ETag: entityTag(row.Version), Body: webhookEndpointOf(&row)}, nil
}

var createWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "createWebhookEndpoint", Method: http.MethodPost, Path: "/api/webhook-endpoints", Tags: []string{"webhooks"},
	Summary: "Have events sent to an address",
	Description: "Every event from now on that is of one of the types is posted to the URL, those of an order in order, until it answers with 2xx. " +
		"The answer has the secret that deliveries are signed with (Standard Webhooks 1.0.0); it is not shown again, except when this request comes again with the same requestId.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter",
	"too_many_endpoints", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")

// createWebhookEndpointRequest documents what createWebhookEndpoint reads.
type createWebhookEndpointRequest struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"Another way to give the requestId; in quotes or without."`
	Prefer         string `header:"Prefer" doc:"handling=strict refuses fields that are not known (RFC 7240)."`
	Body           webhookEndpointBody
}

type webhookEndpointBody struct {
	URL         string      `json:"url" minLength:"1" maxLength:"2000" doc:"Where events are posted to: https, or with --allow-private http, too. Callers with the role read see it, so no secret belongs into it." example:"https://shop.example/pawl"`
	Description string      `json:"description,omitempty" minLength:"1" maxLength:"1000" doc:"What it is for."`
	Types       []eventType `json:"types,omitempty" nullable:"false" minItems:"1" maxItems:"100" doc:"The types of the events that it gets: exact ones, or order.* for all that begin so. All when left out."`
	OnBehalfOf  string      `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept beside the caller, which a token names. Needs the role delegate."`
	Reason      string      `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the access log."`
	RequestID   string      `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

var webhookEndpointSchema = schemaOf[webhookEndpointBody]()

func (s *server) createWebhookEndpoint(w http.ResponseWriter, r *http.Request) error {
	by, body, err := readAsked(w, r, webhookEndpointSchema, checkWebhookEndpoint)
	if err != nil {
		return err
	}
	return s.answerEndpoint(w, r, body, func(ctx context.Context) (db.WebhookEndpoint, error) {
		return s.webhooks.Create(ctx, specOf(body), by)
	})
}

var changeWebhookEndpointOperation = failing(huma.Operation{
	OperationID: "changeWebhookEndpoint", Method: http.MethodPut, Path: "/api/webhook-endpoints/{endpointId}", Tags: []string{"webhooks"},
	Summary: "Change the URL, the description and the types of a webhook endpoint",
	Description: "All three become as they are sent. What was not delivered yet goes to the new URL; the types count for events that no deliveries were made of yet. " +
		"It is changed only if nobody has since the ETag in If-Match, which must be given.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter", "not_found",
	"invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "precondition_required", "unavailable", "internal")

// changeWebhookEndpointRequest documents what changeWebhookEndpoint reads.
type changeWebhookEndpointRequest struct {
	EndpointID     string `path:"endpointId" doc:"The id of the endpoint."`
	IfMatch        string `header:"If-Match" doc:"Only if the endpoint is still at this ETag. Must be given; * is any."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"Another way to give the requestId; in quotes or without."`
	Prefer         string `header:"Prefer" doc:"handling=strict refuses fields that are not known (RFC 7240)."`
	Body           webhookEndpointBody
}

func (s *server) changeWebhookEndpoint(w http.ResponseWriter, r *http.Request) error {
	by, body, err := readAsked(w, r, webhookEndpointSchema, checkWebhookEndpoint)
	if err != nil {
		return err
	}
	if strings.TrimSpace(r.Header.Get("If-Match")) == "" {
		return newProblem("precondition_required", "")
	}
	at, err := endpointAt(r)
	if err != nil {
		return err
	}
	return s.answerEndpoint(w, r, body, func(ctx context.Context) (db.WebhookEndpoint, error) {
		return s.webhooks.Change(ctx, at, specOf(body), by)
	})
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
	if _, err = s.webhooks.Stop(ctx, at, webhooks.Deleted, webhooks.By{Actor: principalOf(w).Name}); err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// webhookRoutes are those of webhook endpoints and their deliveries.
func (s *server) webhookRoutes() {
	list(s, listWebhookEndpointsOperation, s.listWebhookEndpoints)                                                        // GET    /api/webhook-endpoints: all
	post[createWebhookEndpointRequest, webhookEndpointAnswer](s, createWebhookEndpointOperation, s.createWebhookEndpoint) // POST   /api/webhook-endpoints: make one
	getWithin(s, getWebhookEndpointOperation, readWithin, s.getWebhookEndpoint)                                           // GET    /api/webhook-endpoints/{endpointId}: one
	post[changeWebhookEndpointRequest, webhookEndpointAnswer](s, changeWebhookEndpointOperation, s.changeWebhookEndpoint) // PUT    /api/webhook-endpoints/{endpointId}: change it
	post[endpointVerbRequest[*rotateSecretBody], webhookEndpointAnswer](s, rotateSecretOperation, s.rotateSecret)         // POST   /api/webhook-endpoints/{endpointId}/rotate-secret: sign with another
	post[endpointVerbRequest[*enableBody], webhookEndpointAnswer](s, enableOperation, s.enableEndpoint)                   // POST   /api/webhook-endpoints/{endpointId}/enable: send to it again
	post[endpointVerbRequest[*askBody], webhookEndpointAnswer](s, disableOperation, s.disableEndpoint)                    // POST   /api/webhook-endpoints/{endpointId}/disable: send nothing
	post[testRequest, plainAnswer[testOutcome]](s, testOperation, s.testEndpoint)                                         // POST   /api/webhook-endpoints/{endpointId}/test: send a test event
	list(s, listDeliveriesOfOrderOperation, s.listDeliveriesOfOrder)                                                      // GET    /api/orders/{orderId}/deliveries: of its newest events
	list(s, listDeliveriesOperation, s.listDeliveries)                                                                    // GET    /api/webhook-endpoints/{endpointId}/deliveries: newest first
	get(s, getDeliveryOperation, s.getDelivery)                                                                           // GET    /api/webhook-endpoints/{endpointId}/deliveries/{delivery}: with its attempts
	post[deliveryVerbRequest[*askBody], plainAnswer[delivery]](s, resendOperation, s.resendDelivery)                      // POST   /api/webhook-endpoints/{endpointId}/deliveries/{delivery}/resend: once more
	post[deliveryVerbRequest[skipBody], plainAnswer[delivery]](s, skipOperation, s.skipDelivery)                          // POST   /api/webhook-endpoints/{endpointId}/deliveries/{delivery}/skip: give it up
	post[endpointVerbRequest[recoverBody], plainAnswer[recovery]](s, recoverOperation, s.recoverDeliveries)               // POST   /api/webhook-endpoints/{endpointId}/recover: what was given up
	post[deleteWebhookEndpointRequest, struct{}](s, deleteWebhookEndpointOperation, s.deleteWebhookEndpoint)              // DELETE /api/webhook-endpoints/{endpointId}: remove it
}

// endpointAt is the endpoint that a request names, at the version that If-Match wants.
func endpointAt(r *http.Request) (webhooks.At, error) {
	at := webhooks.At{ID: r.PathValue("endpointId")}
	version, err := ifMatch(r.Header.Get("If-Match"), 32)
	if version != nil {
		at.Version = new(int32(*version))
	}
	return at, err
}

// readAsked reads the body of a request about endpoints, which may be empty where nothing is required, and who asks.
func readAsked(w http.ResponseWriter, r *http.Request, schema *huma.Schema, check func(*decoder, fields)) (by webhooks.By, got fields, err error) {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil {
		return by, nil, err
	}
	if text.Len() == 0 && len(schema.Required) == 0 {
		text.WriteString("{}")
	}
	got, err = readFields(text.Bytes(), schema, check)
	if err = preferenceOf(r.Header["Prefer"], 0).judge(got.ignored(), err); err != nil {
		return by, nil, err
	}
	by = webhooks.By{OnBehalfOf: got.text("onBehalfOf"), Reason: got.text("reason")}
	if by.Actor, err = actorOf(w, by.OnBehalfOf); err == nil {
		by.RequestID, err = requestIDOf(r, got.text("requestId"))
	}
	return by, got, err
}

// answerEndpoint makes a change and answers with the endpoint.
func (s *server) answerEndpoint(w http.ResponseWriter, r *http.Request, body fields, change func(context.Context) (db.WebhookEndpoint, error)) error {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	row, err := change(ctx)
	var refused *webhooks.AddressRefused
	switch {
	case errors.As(err, &refused):
		return newProblem("invalid_input", "", fieldError{Pointer: "/url", Code: "address_refused", Detail: refused.Reason})
	case err != nil:
		return err
	}
	w.Header().Set("ETag", entityTag(row.Version))
	out := webhookEndpointOf(&row)
	out.IgnoredFields = body.ignored()
	return answerJSON(w, out)
}

// checkWebhookEndpoint looks at what the schema does not say.
func checkWebhookEndpoint(d *decoder, got fields) {
	if address := got.text("url"); address != "" {
		if _, err := policy.ParseURL(address); err != nil {
			d.fault("/url", "not_url", "must be an absolute URL with https and a host, without a user, a password or a fragment")
		}
	}
	for i, name := range got.texts("types") {
		if !events.KnownType(name) {
			d.fault("/types/"+decimalText(int64(i)), "unknown_type", "must be a type of events, or the beginning of some and .*")
		}
	}
}

func specOf(got fields) webhooks.Spec {
	return webhooks.Spec{URL: got.text("url"), Description: got.text("description"), Types: got.texts("types")}
}
