package httpapi

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
	"pawl/internal/webhooks"
)

var listDeliveriesOperation = failing(huma.Operation{
	OperationID: "listDeliveries", Method: http.MethodGet, Path: "/api/webhook-endpoints/{endpointId}/deliveries", Tags: []string{"webhooks"},
	Summary:     "List the deliveries of a webhook endpoint, newest first",
	Description: "Filters can be combined. nextCursor leads to the next page. Finished deliveries are removed with their events.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type listDeliveriesRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	State      string `query:"state" enum:"pending,failing,delivered,exhausted,skipped" doc:"Only deliveries in this state. failing: pending, after at least one attempt."`
	OrderID    string `query:"orderId" doc:"Only deliveries about this order."`
	Item       string `query:"item" doc:"Only deliveries about the stock of this item. Cannot be combined with orderId."`
	Limit      int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of deliveries."`
	Cursor     string `query:"cursor" doc:"nextCursor of the previous page, with the same filters."`
}

type deliveryPage struct {
	Deliveries []delivery `json:"deliveries" nullable:"false"`
	NextCursor string     `json:"nextCursor,omitempty" doc:"Absent on the last page. It does not expire."`
}

func (s *server) listDeliveries(ctx context.Context, in *listDeliveriesRequest) (page deliveryPage, err error) {
	filter, err := in.filter()
	if err != nil {
		return page, err
	}
	rows, err := s.Webhooks.Deliveries(ctx, in.EndpointID, filter)
	if limit := int(in.Limit); len(rows) > limit {
		rows = rows[:limit]
		page.NextCursor = sealCursor(in.binding(), decimalText(rows[limit-1].DeliveryNo))
	}
	page.Deliveries = each(rows, deliveryOf)
	return page, err
}

func (in *listDeliveriesRequest) filter() (f webhooks.Filter, err error) {
	f = webhooks.Filter{State: in.State, OrderID: in.OrderID, Item: in.Item, Before: math.MaxInt64, Limit: in.Limit + 1}
	switch {
	case in.OrderID != "" && !possible(in.OrderID):
		return f, invalidParameter("orderId", "invalid", "must be an order id")
	case in.Item != "" && !possible(in.Item):
		return f, invalidParameter("item", "invalid", "must be an item name")
	case in.OrderID != "" && in.Item != "":
		return f, invalidParameter("item", "invalid", "cannot be combined with orderId")
	case in.Cursor != "":
		f.Before, err = openNumber(in.binding(), in.Cursor)
	}
	return f, err
}

// binding ties a cursor to the filters it was made with.
func (in *listDeliveriesRequest) binding() []string {
	return []string{"deliveries", in.EndpointID, in.State, in.OrderID, in.Item}
}

var listDeliveriesOfOrderOperation = failing(huma.Operation{
	OperationID: "listDeliveriesOfOrder", Method: http.MethodGet, Path: "/api/orders/{orderId}/deliveries", Tags: []string{"webhooks"},
	Summary: "List the deliveries of an order, at all webhook endpoints",
	Description: "Newest events first. The first unfinished delivery of each endpoint is always included, regardless " +
		"of the limit: the order's other deliveries wait for it. " +
		"For older ones, list the deliveries of an endpoint with this orderId.",
}, "not_found", "order_forgotten", "invalid_parameter", "unavailable", "internal")

type listDeliveriesOfOrderRequest struct {
	OrderID string `path:"orderId" doc:"The id, percent-encoded."`
	Limit   int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of deliveries, not counting those that others wait for."`
}

type deliveriesOfOrder struct {
	Deliveries []delivery `json:"deliveries" nullable:"false"`
}

func (s *server) listDeliveriesOfOrder(ctx context.Context, in *listDeliveriesOfOrderRequest) (deliveriesOfOrder, error) {
	if !possible(in.OrderID) {
		return deliveriesOfOrder{}, &orders.NotFound{What: "order"}
	}
	rows, err := s.Webhooks.DeliveriesOf(ctx, in.OrderID, in.Limit)
	return deliveriesOfOrder{each(rows, deliveryOf)}, err
}

var getDeliveryOperation = failing(huma.Operation{
	OperationID: "getDelivery", Method: http.MethodGet, Path: "/api/webhook-endpoints/{endpointId}/deliveries/{delivery}", Tags: []string{"webhooks"},
	Summary:     "Get a delivery",
	Description: "Includes its attempts with their responses, and the changes that people made.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getDeliveryRequest struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	Delivery   int64  `path:"delivery" minimum:"1" doc:"The number of the delivery."`
}

func (s *server) getDelivery(ctx context.Context, in *getDeliveryRequest) (delivery, error) {
	d, err := s.Webhooks.Delivery(ctx, in.EndpointID, in.Delivery)
	return deliveryOf(&d), err
}

const repeatedDelivery = " A repeated request with the same requestId has no further effect."

var (
	resendOperation = endpointVerb(huma.Operation{OperationID: "resendDelivery", Path: "deliveries/{delivery}/resend", Summary: "Send a delivery again",
		Description: "Sends it as if it were new, in any state, with the same webhook-id. Earlier unfinished " +
			"deliveries of the order go first; later ones wait for it again." + repeatedDelivery})
	skipOperation = endpointVerb(huma.Operation{OperationID: "skipDelivery", Path: "deliveries/{delivery}/skip", Summary: "Skip a delivery",
		Description: "It is not sent again, and later deliveries of the same order continue. The receiver misses an event, so a reason is required." +
			repeatedDelivery}, "delivery_finished")
	recoverOperation = endpointVerb(huma.Operation{OperationID: "recoverDeliveries", Path: "recover", Summary: "Resend exhausted deliveries",
		Description: "Sends all exhausted deliveries of the endpoint that were last attempted at or after a time as if " +
			"they were new: up to 10,000, oldest first." + repeatedDelivery})
)

// deliveryVerbRequest documents what a verb of a delivery reads.
type deliveryVerbRequest[B any] struct {
	EndpointID string `path:"endpointId" doc:"The id of the endpoint."`
	Delivery   int64  `path:"delivery" minimum:"1" doc:"The number of the delivery."`
	Keyed[B]
}

type skipBody struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; recorded with the delivery."`
	VerbBody
}

func (b skipBody) asks() VerbBody { b.VerbBody.Reason = b.Reason; return b.VerbBody }

type recoverBody struct {
	Since time.Time `json:"since" doc:"Only deliveries last attempted at or after this time (RFC 3339)."`
	VerbBody
}

// recovery selects the deliveries that are sent again.
type recovery struct {
	Recovered int  `json:"recovered" minimum:"0" doc:"Number of deliveries that are sent again."`
	More      bool `json:"more" doc:"There may be more: repeat the request with another requestId."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

func (s *server) resendDelivery(ctx context.Context, q *sent[VerbBody]) (any, error) {
	return q.delivery(ctx, s.Webhooks.Resend)
}

func (s *server) skipDelivery(ctx context.Context, q *sent[skipBody]) (any, error) {
	return q.delivery(ctx, s.Webhooks.Skip)
}

// delivery changes a delivery and answers with it.
func (q *sent[B]) delivery(ctx context.Context, change func(ctx context.Context, endpointID string, deliveryNo int64,
	by webhooks.By) (webhooks.Delivery, error)) (any, error) {
	no, err := strconv.ParseInt(q.PathValue("delivery"), 10, 64)
	if err != nil {
		return nil, &orders.NotFound{What: "delivery"}
	}
	d, err := change(ctx, q.PathValue("endpointId"), no, q.by)
	out := deliveryOf(&d)
	out.IgnoredFields = q.ignored
	return out, err
}

func (s *server) recoverDeliveries(ctx context.Context, q *sent[recoverBody]) (any, error) {
	n, err := s.Webhooks.Recover(ctx, q.PathValue("endpointId"), q.body.Since, q.by)
	return recovery{Recovered: n, More: n == webhooks.RecoverMost, IgnoredFields: q.ignored}, err
}
