package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/fsm"
	"pawl/internal/orders"
)

var getOrderOperation = failing(huma.Operation{
	OperationID: "getOrder", Method: http.MethodGet, Path: "/api/orders/{orderId}", Tags: []string{"orders"},
	Summary: "Read an order",
	Description: "With wait the answer comes when the order is final; together with If-None-Match, when the order has another ETag. " +
		"When the time is up, it is the order as it is then, or 304 if that has the ETag still. While too many requests of the caller wait, the time is up at once.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getOrderRequest struct {
	OrderID     string   `path:"orderId" doc:"The id, percent-encoded."`
	Wait        waitTime `query:"wait" doc:"How long to wait for the order to end, or to change. Up to 60 seconds."`
	IfNoneMatch string   `header:"If-None-Match" doc:"The ETag of the order as the caller knows it."`
}

func (in *getOrderRequest) limit() time.Duration { return in.Wait.duration() + readLimit }

// enough reports whether the caller waits no longer for an order at this seq.
func (in *getOrderRequest) enough(seq int32, final bool) bool {
	if in.IfNoneMatch != "" {
		return !matches(in.IfNoneMatch, entityTag(seq))
	}
	return final
}

type getOrderAnswer struct {
	Status       int
	ETag         string `header:"ETag" doc:"The order's seq, in quotes."`
	CacheControl string `header:"Cache-Control" doc:"Ask again each time; it is cheap with If-None-Match."`
	Body         order
}

func (s *server) getOrder(ctx context.Context, in *getOrderRequest) (*getOrderAnswer, error) {
	if err := s.readable(ctx, in.OrderID); err != nil { // before the answer waits for anything
		return nil, err
	}
	o, err := s.readOrder(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &getOrderAnswer{Status: http.StatusOK, ETag: entityTag(o.Seq), CacheControl: "no-cache", Body: orderOf(&o)}
	if matches(in.IfNoneMatch, out.ETag) {
		out.Status = http.StatusNotModified
	}
	return out, nil
}

func (s *server) readOrder(ctx context.Context, in *getOrderRequest) (orders.Order, error) {
	atMost, place := mayWait(writerOf(ctx), httpRequestOf(ctx), in.Wait.duration())
	defer place.leave()
	if atMost == 0 {
		return s.engine.Orders.Get(ctx, in.OrderID)
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	return s.engine.Await(ctx, in.OrderID, in.enough)
}

var listOrdersOperation = failing(huma.Operation{
	OperationID: "listOrders", Method: http.MethodGet, Path: "/api/orders", Tags: []string{"orders"},
	Summary: "List orders, newest first",
	Description: "Filters can be combined. A page ends with the cursor of the next one, as long as there is one. A page of large orders may have fewer than limit. " +
		"So may one whose filter leaves out much: at most 10,000 orders are looked at for a page, and the next page goes on behind them.",
}, "invalid_parameter", "unavailable", "internal")

type listOrdersRequest struct {
	Status      []state     `query:"status" nullable:"false" minItems:"1" maxItems:"9" doc:"Only orders in one of these statuses, with commas between them."`
	CustomerID  string      `query:"customerId" doc:"Only orders of this customer."`
	Item        string      `query:"item" doc:"Only orders for this item."`
	Hold        string      `query:"hold" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"Only orders that wait for this." example:"attention"`
	HoldReason  string      `query:"holdReason" doc:"Only orders with this holdReason: all of it, or what is before a colon in it. Together with hold."`
	FailureStep string      `query:"failureStep" enum:"charge,reserve,confirm" doc:"Only orders that failed, or are being undone, because of this step."`
	FailureCode string      `query:"failureCode" doc:"Only orders that failed, or are being undone, with this code."`
	AmountFrom  amountBound `query:"amountFrom" doc:"Only orders of this amount or more, in whatever currency."`
	AmountTo    amountBound `query:"amountTo" doc:"Only orders of this amount or less, in whatever currency."`
	CreatedFrom time.Time   `query:"createdFrom" doc:"Only orders created at this time or later (RFC 3339)."`
	CreatedTo   time.Time   `query:"createdTo" doc:"Only orders created before this time (RFC 3339)."`
	Sort        string      `query:"sort" enum:"newest,oldest" default:"newest" doc:"Which orders come first: those that were made last, or first."`
	Limit       int32       `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many orders to answer with at most."`
	Cursor      string      `query:"cursor" doc:"nextCursor of the page before, with the same filters."`
}

type orderPage struct {
	Orders     []order `json:"orders" nullable:"false"`
	NextCursor string  `json:"nextCursor,omitempty" doc:"Absent on the last page. Opaque; it does not expire."`
}

func (s *server) listOrders(ctx context.Context, in *listOrdersRequest) (page orderPage, err error) {
	filter, err := in.filter()
	if err != nil {
		return page, err
	}
	rows, next, err := s.engine.Orders.List(ctx, filter)
	if next > 0 {
		page.NextCursor = sealCursor(in.binding(), decimalText(next))
	}
	page.Orders = each(rows, orderOf)
	return page, err
}

func (in *listOrdersRequest) filter() (orders.Filter, error) {
	f := orders.Filter{
		CustomerID: in.CustomerID, Item: in.Item, Hold: in.Hold, HoldReason: in.HoldReason,
		FailureStep: in.FailureStep, FailureCode: in.FailureCode, AmountFrom: in.AmountFrom.decimal(), AmountTo: in.AmountTo.decimal(),
		CreatedFrom: in.CreatedFrom, CreatedTo: in.CreatedTo, Oldest: in.Sort == oldestFirst, Limit: in.Limit,
	}
	for _, status := range in.Status {
		f.Statuses = append(f.Statuses, fsm.State(status))
	}
	if err := in.check(); err != nil || in.Cursor == "" {
		return f, err
	}
	position, ok := openCursor(in.binding(), in.Cursor)
	var number bool
	if f.After, number = parseInteger([]byte(position)); !ok || !number || f.After <= 0 {
		return f, errCursor()
	}
	return f, nil
}

// check looks at what the document does not say.
func (in *listOrdersRequest) check() error {
	switch {
	case in.Item != "" && !possible(in.Item):
		return invalidParameter("item", "invalid", "must be an item name")
	case in.CustomerID != "" && !possible(in.CustomerID):
		return invalidParameter("customerId", "invalid", "must be the id of a customer")
	case in.HoldReason != "" && !storable(in.HoldReason):
		return invalidParameter("holdReason", "invalid", "must have up to 255 characters, without control characters")
	case in.FailureCode != "" && !storable(in.FailureCode):
		return invalidParameter("failureCode", "invalid", "must have up to 255 characters, without control characters")
	case in.HoldReason != "" && in.Hold == "":
		return invalidParameter("hold", "required", "is required with holdReason")
	}
	return nil
}

// binding ties a cursor to the filters it was made with.
func (in *listOrdersRequest) binding() []string {
	return []string{"orders", fmt.Sprint(in.Status), in.CustomerID, in.Item, in.Hold, in.HoldReason, in.CreatedFrom.UTC().String(), in.CreatedTo.UTC().String(),
		in.FailureStep, in.FailureCode, string(in.AmountFrom), string(in.AmountTo), in.Sort}
}

// oldestFirst is the order of a list that is not the usual one.
const oldestFirst = "oldest"
