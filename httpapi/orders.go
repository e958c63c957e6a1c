package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/fsm"
	"pawl/orders"
)

var getOrderOperation = failing(huma.Operation{
	OperationID: "getOrder", Method: http.MethodGet, Path: "/api/orders/{orderId}", Tags: []string{"orders"},
	Summary:     "Read an order",
	Description: "The order as it is now. With If-None-Match it is sent only if it has changed.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getOrderRequest struct {
	OrderID     string `path:"orderId" doc:"The id, percent-encoded."`
	IfNoneMatch string `header:"If-None-Match" doc:"The ETag of the order as the caller knows it."`
}

type getOrderAnswer struct {
	Status       int
	ETag         string `header:"ETag" doc:"The order's seq, in quotes."`
	CacheControl string `header:"Cache-Control" doc:"Ask again each time; it is cheap with If-None-Match."`
	Body         order
}

func (s *server) getOrder(ctx context.Context, in *getOrderRequest) (*getOrderAnswer, error) {
	if !possible(in.OrderID) {
		return nil, orders.ErrNotFound
	}
	o, err := s.engine.Orders.Get(ctx, in.OrderID)
	if err != nil {
		return nil, err
	}
	out := &getOrderAnswer{Status: http.StatusOK, ETag: entityTag(o.Seq), CacheControl: "no-cache", Body: orderOf(&o)}
	if matches(in.IfNoneMatch, out.ETag) {
		out.Status = http.StatusNotModified
	}
	return out, nil
}

var listOrdersOperation = failing(huma.Operation{
	OperationID: "listOrders", Method: http.MethodGet, Path: "/api/orders", Tags: []string{"orders"},
	Summary:                      "List orders, newest first",
	Description:                  "Filters can be combined. A page ends with the cursor of the next one, as long as there is one.",
	RejectUnknownQueryParameters: true, // a misspelled filter would list everything
}, "invalid_parameter", "unavailable", "internal")

type listOrdersRequest struct {
	Status      state     `query:"status" doc:"Only orders in this status."`
	Item        string    `query:"item" doc:"Only orders for this item."`
	Hold        string    `query:"hold" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"Only orders that wait for this."`
	CreatedFrom time.Time `query:"createdFrom" doc:"Only orders created at this time or later (RFC 3339)."`
	CreatedTo   time.Time `query:"createdTo" doc:"Only orders created before this time (RFC 3339)."`
	Limit       int32     `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many orders to answer with at most."`
	Cursor      string    `query:"cursor" doc:"nextCursor of the page before, with the same filters."`
}

type listOrdersAnswer struct {
	Body struct {
		Orders     []order `json:"orders" nullable:"false"`
		NextCursor string  `json:"nextCursor,omitempty" doc:"Absent on the last page. Opaque; it does not expire."`
	} `nameHint:"OrderPage"`
}

func (s *server) listOrders(ctx context.Context, in *listOrdersRequest) (*listOrdersAnswer, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	rows, err := s.engine.Orders.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	out := &listOrdersAnswer{}
	if page := int(in.Limit); len(rows) > page {
		rows = rows[:page]
		out.Body.NextCursor = sealCursor(in.binding(), decimalText(rows[page-1].OrderNo))
	}
	out.Body.Orders = each(rows, orderOf)
	return out, nil
}

// filter asks for one order more than the page holds: it says whether there is a
// next page.
func (in *listOrdersRequest) filter() (orders.Filter, error) {
	f := orders.Filter{
		Status: fsm.State(in.Status), Item: in.Item, Hold: in.Hold,
		CreatedFrom: in.CreatedFrom, CreatedTo: in.CreatedTo, Limit: in.Limit + 1,
	}
	if in.Item != "" && !possible(in.Item) {
		return f, invalidParameter("item", "invalid", "must be the name of an item")
	}
	if in.Cursor == "" {
		return f, nil
	}
	position, ok := openCursor(in.binding(), in.Cursor)
	var number bool
	if f.Before, number = parseInteger([]byte(position)); !ok || !number || f.Before <= 0 {
		return f, errCursor()
	}
	return f, nil
}

// binding ties a cursor to the filters it was made with.
func (in *listOrdersRequest) binding() []string {
	return []string{"orders", string(in.Status), in.Item, in.Hold, in.CreatedFrom.UTC().String(), in.CreatedTo.UTC().String()}
}
