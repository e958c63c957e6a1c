package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

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
	AskBody
}

func (s *server) createWebhookEndpoint(ctx context.Context, q *asked) (any, error) {
	return q.endpoint(s.Webhooks.Create(ctx, specOf(q.fields), q.by))
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

func (s *server) changeWebhookEndpoint(ctx context.Context, q *asked) (any, error) {
	if strings.TrimSpace(q.Header.Get("If-Match")) == "" {
		return nil, newProblem("precondition_required", "", missingHeader("If-Match", "must be the ETag of the endpoint, or * to match any version"))
	}
	at, err := endpointAt(q.Request)
	if err != nil {
		return nil, err
	}
	return q.endpoint(s.Webhooks.Change(ctx, at, specOf(q.fields), q.by))
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
	postChange[endpointVerbRequest[*rotateSecretBody], webhookEndpointAnswer](s, rotateSecretOperation, nil, s.rotateSecret)                          // POST   /api/webhook-endpoints/{endpointId}/rotate-secret: sign with another
	postChange[endpointVerbRequest[*enableBody], webhookEndpointAnswer](s, enableOperation, nil, s.enableEndpoint)                                    // POST   /api/webhook-endpoints/{endpointId}/enable: send to it again
	postChange[endpointVerbRequest[*AskBody], webhookEndpointAnswer](s, disableOperation, nil, s.disableEndpoint)                                     // POST   /api/webhook-endpoints/{endpointId}/disable: send nothing
	post[endpointRequest, plainAnswer[testOutcome]](s, testOperation, s.testEndpoint)                                                                 // POST   /api/webhook-endpoints/{endpointId}/test: send a test event
	list(s, listDeliveriesOfOrderOperation, s.listDeliveriesOfOrder)                                                                                  // GET    /api/orders/{orderId}/deliveries: of its newest events
	list(s, listDeliveriesOperation, s.listDeliveries)                                                                                                // GET    /api/webhook-endpoints/{endpointId}/deliveries: newest first
	get(s, getDeliveryOperation, s.getDelivery)                                                                                                       // GET    /api/webhook-endpoints/{endpointId}/deliveries/{delivery}: with its attempts
	postChange[deliveryVerbRequest[*AskBody], plainAnswer[delivery]](s, resendOperation, nil, s.resendDelivery)                                       // POST   /api/webhook-endpoints/{endpointId}/deliveries/{delivery}/resend: once more
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
func (q *asked) endpoint(row db.WebhookEndpoint, err error) (any, error) {
	if refused, ok := errors.AsType[*webhooks.AddressRefused](err); ok {
		return nil, newProblem("invalid_input", "", fieldError{Pointer: "/url", Code: "address_refused", Detail: refused.Reason})
	}
	if err != nil {
		return nil, err
	}
	q.answer.Set("ETag", entityTag(row.Version))
	out := webhookEndpointOf(&row)
	out.IgnoredFields = q.ignored()
	return out, nil
}

// checkWebhookEndpoint looks at what the schema does not say.
func checkWebhookEndpoint(d *decoder, got fields) {
	if address := got.text("url"); address != "" {
		if _, err := policy.ParseURL(address); err != nil {
			d.fault("/url", "not_url", "must be an absolute https URL with a host and without user, password or fragment")
		}
	}
	for i, name := range got.texts("types") {
		if !events.KnownType(name) {
			d.fault("/types/"+decimalText(int64(i)), "unknown_type", "must be an event type, or a prefix followed by .*")
		}
	}
}

func specOf(got fields) webhooks.Spec {
	return webhooks.Spec{URL: got.text("url"), Description: got.text("description"), Types: got.texts("types")}
}
