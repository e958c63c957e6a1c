package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/access"
	"pawl/internal/orders"
)

var getOrderOperation = failing(huma.Operation{
	OperationID: "getOrder", Method: http.MethodGet, Path: "/api/orders/{orderId}", Tags: []string{"orders"},
	Summary: "Get an order",
	Description: "With wait, the response is sent when the order is final, or, with If-None-Match, when its ETag changes. " +
		"When the time is up, the response is the order as it is, or 304 if its ETag is unchanged. If too many of your requests are waiting, it is sent at once.",
}, "not_found", "order_forgotten", "invalid_parameter", "unavailable", "internal")

type getOrderRequest struct {
	OrderID     string   `path:"orderId" doc:"The id, percent-encoded."`
	Wait        waitTime `query:"wait" doc:"How long to wait for the order to end or change, up to 60 seconds."`
	IfNoneMatch string   `header:"If-None-Match" doc:"The ETag that you have."`
}

func (in *getOrderRequest) limit() time.Duration { return in.Wait.duration() + readLimit }

// enough reports whether this seq ends the wait of the caller.
func (in *getOrderRequest) enough(seq int32, final bool) bool {
	if in.IfNoneMatch != "" {
		return !matches(in.IfNoneMatch, entityTag(seq))
	}
	return final
}

type getOrderAnswer struct {
	Status       int
	ETag         string `header:"ETag" doc:"The order's seq, in quotes."`
	CacheControl string `header:"Cache-Control" doc:"no-cache: revalidate with If-None-Match, which is cheap."`
	Body         order
}

func (s *server) getOrder(ctx context.Context, in *getOrderRequest) (*getOrderAnswer, error) {
	if err := s.readable(ctx, in.OrderID); err != nil { // before the request waits for anything
		return nil, err
	}
	o, err := s.readOrder(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &getOrderAnswer{Status: http.StatusOK, ETag: entityTag(o.Seq), CacheControl: "no-cache", Body: s.orderOf(&o)}
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
	Summary: "List orders, newest first, or find them by a term",
	Description: "Filters can be combined. nextCursor leads to the next page. A page can have fewer orders than limit: " +
		"if orders are large, or if few match, because a page examines at most 10,000 orders. " +
		"With format=csv, or Accept: text/csv, the page is a table, which has the last refund, capture and void of each order, and the header Link leads to the next one." + aboutTerm,
}, "invalid_parameter", "unavailable", "internal")

type listOrdersRequest struct {
	Term        string      `query:"term" maxLength:"255" doc:"What to look for: only orders that have it. Requires the role read."`
	Status      []state     `query:"status" nullable:"false" minItems:"1" maxItems:"9" doc:"Only orders in these statuses, separated by commas."`
	CustomerID  string      `query:"customerId" doc:"Only orders of this customer."`
	Item        string      `query:"item" doc:"Only orders for this item."`
	Hold        string      `query:"hold" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"Only orders that are waiting for this."`
	HoldReason  string      `query:"holdReason" doc:"Only orders with this holdReason, or its part before a colon. Requires hold."`
	FailureStep string      `query:"failureStep" enum:"charge,reserve,confirm,refund,capture,void" doc:"Only orders that failed, or are being undone, because of this step. refund, capture, void: whose last one has failed."`
	FailureCode string      `query:"failureCode" doc:"Only orders that failed, or are being undone, with this code. With refund, capture or void as the step: its code."`
	AmountFrom  amountBound `query:"amountFrom" doc:"Only orders of at least this amount, in any currency."`
	AmountTo    amountBound `query:"amountTo" doc:"Only orders of at most this amount, in any currency."`
	Currency    string      `query:"currency" doc:"Only orders in this currency (ISO 4217)."`
	Charged     bool        `query:"charged" doc:"Only orders that were charged, also if the charge was undone since. It must be known that they were."`
	Refunded    bool        `query:"refunded" doc:"Only orders of which something was refunded, or whose charge was undone."`
	Authorized  bool        `query:"authorized" doc:"Only orders of which something is authorized, and neither captured nor voided."`
	Voided      bool        `query:"voided" doc:"Only orders of whose authorization something was voided or has ended."`
	Refund      string      `query:"refund" enum:"open,done" doc:"open: only orders with a requested refund, capture or void that is neither done nor failed. done: whose last refund is done."`
	Dispute     string      `query:"dispute" enum:"open,won,lost" doc:"Only orders with a dispute that is open, or was won or lost."`
	Route       string      `query:"route" doc:"Only orders whose charge has this route."`
	CreatedFrom time.Time   `query:"createdFrom" doc:"Only orders created at this time or later (RFC 3339)."`
	CreatedTo   time.Time   `query:"createdTo" doc:"Only orders created before this time (RFC 3339)."`
	Sort        string      `query:"sort" enum:"newest,oldest" default:"newest" doc:"Sort order, by creation."`
	Limit       int32       `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of orders."`
	Cursor      string      `query:"cursor" doc:"nextCursor of the previous page, with the same filters."`
	Count       bool        `query:"count" doc:"Also count the orders that match, and say since when each has had its status."`
	Money       bool        `query:"money" doc:"Also say what was charged and refunded of each order, and add it up. CSV always has it of each order."`
	Format      csvFormat   `query:"format" doc:"Format of the response; JSON by default."`
}

type orderPage struct {
	Orders     []order `json:"orders" nullable:"false"`
	NextCursor string  `json:"nextCursor,omitempty" doc:"Absent on the last page. It does not expire."`
	Total      *int64  `json:"total,omitempty" doc:"With count: how many orders match on all pages, up to 1,000 among the first 10,000 that are examined. Absent if a term was looked for inside orders."`
	More       bool    `json:"more,omitempty" doc:"With count: more orders may match. With term, but without total: more have it than this page."`

	Amounts []currencyTotal `json:"amounts,omitempty" nullable:"false" doc:"With count and hold, but without money or term: the amounts of the orders of total, by currency."`

	Totals []moneyTotal `json:"totals,omitempty" nullable:"false" doc:"With money, but without term: the sums by currency of the orders that match on all pages, among the first 10,000 that are examined, which total counts and more is about, too. Absent if none of them was charged."`

	OrderSearch
}

// moneyTotal is the money of orders in one currency.
type moneyTotal struct {
	Currency string `json:"currency"`
	Money
}

func (s *server) listOrders(ctx context.Context, in *listOrdersRequest) (page orderPage, err error) {
	filter, err := in.filter()
	var rows []orders.Order
	switch {
	case err != nil:
		return page, err
	case in.Term != "":
		page, rows, err = s.search(ctx, in, filter)
	default:
		page, rows, err = s.listed(ctx, in, filter)
	}
	if err == nil && in.Count {
		err = s.addStatusSince(ctx, page.Orders, rows)
	}
	if err != nil || !in.Money && !wantsCSV(httpRequestOf(ctx)) {
		return page, err
	}
	return page, s.addMoney(ctx, page.Orders, rows)
}

// listed is listOrders without a term.
func (s *server) listed(ctx context.Context, in *listOrdersRequest, filter orders.Filter) (page orderPage, rows []orders.Order, err error) {
	if p := principalOf(writerOf(ctx)); !p.Has(access.Read) {
		filter.SubmittedBy = p.Name
	}
	var counting sync.WaitGroup
	var total int64
	var totals []orders.Money
	var uncounted error
	if in.Money || in.Count { // meanwhile: it can take longer than the page
		counting.Go(func() {
			if in.Money {
				totals, total, page.More, uncounted = s.engine.Orders.Totals(ctx, filter)
			} else {
				var amounts []orders.AmountSum
				amounts, total, page.More, uncounted = s.engine.Orders.Count(ctx, filter)
				page.Amounts = each(amounts, func(a *orders.AmountSum) currencyTotal {
					return currencyTotal{Currency: a.Currency, Orders: int(a.Orders), Amount: a.Amount}
				})
			}
		})
		page.Total = &total
	}
	var next int64
	rows, next, err = s.engine.Orders.List(ctx, filter)
	counting.Wait()
	if next > 0 {
		page.NextCursor = sealCursor(in.binding(), decimalText(next))
	}
	page.Orders = each(rows, s.orderOf)
	for _, m := range totals {
		page.Totals = append(page.Totals, moneyTotal{m.Currency, moneyOf(&m)})
	}
	return page, rows, cmp.Or(err, uncounted)
}

func (s *server) addStatusSince(ctx context.Context, page []order, rows []orders.Order) error {
	found, err := s.engine.Orders.StatusSince(ctx, rows)
	for i := range page {
		if at, ok := found[rows[i].OrderNo]; ok {
			page[i].StatusSince = utc(&at)
		}
	}
	return err
}

// addMoney adds to orders what was charged and refunded of them.
func (s *server) addMoney(ctx context.Context, page []order, rows []orders.Order) error {
	found, err := s.engine.Orders.MoneyOf(ctx, rows)
	for i := range page {
		if m, charged := found[rows[i].OrderNo]; charged {
			page[i].Money = new(moneyOf(&m))
		}
	}
	return err
}

func (in *listOrdersRequest) filter() (orders.Filter, error) {
	f := orders.Filter{
		Statuses: statesOf(in.Status), CustomerID: in.CustomerID, Item: in.Item, Hold: in.Hold, HoldReason: in.HoldReason,
		FailureStep: in.FailureStep, FailureCode: in.FailureCode, AmountFrom: in.AmountFrom.decimal(), AmountTo: in.AmountTo.decimal(),
		CreatedFrom: in.CreatedFrom, CreatedTo: in.CreatedTo, Oldest: in.Sort == oldestFirst, Limit: in.Limit,
		Currency: in.Currency, Charged: in.Charged, Refunded: in.Refunded, Authorized: in.Authorized, Voided: in.Voided, Refund: in.Refund, Dispute: in.Dispute, Route: in.Route,
	}
	if err := in.check(); err != nil {
		return f, err
	}
	if in.Term != "" {
		return f, nil
	}
	after, err := openNumber(in.binding(), in.Cursor)
	f.After = after
	return f, err
}

// check checks what the document does not express.
func (in *listOrdersRequest) check() error {
	switch {
	case in.Item != "" && !possible(in.Item):
		return invalidParameter("item", "invalid", "must be an item name")
	case in.CustomerID != "" && !possible(in.CustomerID):
		return invalidParameter("customerId", "invalid", "must be the id of a customer")
	case in.Currency != "" && !storable(in.Currency):
		return invalidParameter("currency", "invalid", "must be an ISO 4217 code")
	case in.Route != "" && !storable(in.Route):
		return invalidParameter("route", "invalid", "must be the name of a route")
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
	return []string{"orders", in.Term, fmt.Sprint(in.Status), in.CustomerID, in.Item, in.Hold, in.HoldReason,
		in.CreatedFrom.UTC().String(), in.CreatedTo.UTC().String(),
		in.FailureStep, in.FailureCode, string(in.AmountFrom), string(in.AmountTo), in.Sort, in.Currency, fmt.Sprint(in.Charged, in.Refunded, in.Authorized, in.Voided), in.Refund, in.Dispute, in.Route}
}

// oldestFirst is the value of sort that is not the default.
const oldestFirst = "oldest"

var listTransitionsOperation = failing(huma.Operation{
	OperationID: "listTransitions", Method: http.MethodGet, Path: "/api/orders/{orderId}/transitions", Tags: []string{"orders"},
	Summary:     "List the history of an order",
	Description: "One row for each write to the order, oldest first, without gaps. To page backward, use sort=newest and before.",
}, "not_found", "order_forgotten", "invalid_parameter", "unavailable", "internal")

type listTransitionsRequest struct {
	OrderID string `path:"orderId" doc:"The id, percent-encoded."`
	After   int32  `query:"after" minimum:"0" maximum:"2147483647" doc:"Only rows with a larger seq."`
	Before  int32  `query:"before" minimum:"0" maximum:"2147483647" default:"2147483647" doc:"Only rows with a smaller seq."`
	Sort    string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"Which row comes first."`
	Limit   int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"Maximum number of rows."`
}

type history struct {
	Transitions []transition `json:"transitions" nullable:"false"`
}

func (s *server) listTransitions(ctx context.Context, in *listTransitionsRequest) (history, error) {
	if err := s.readable(ctx, in.OrderID); err != nil {
		return history{}, err
	}
	rows, err := s.engine.Orders.Transitions(ctx, in.OrderID,
		orders.Span{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return history{each(rows, transitionOf)}, err
}

var listCallsOperation = failing(huma.Operation{
	OperationID: "listCalls", Method: http.MethodGet, Path: "/api/orders/{orderId}/calls", Tags: []string{"orders"},
	Summary: "List the provider calls of an order",
	Description: "One row for each call to a provider, by number, stored before the call is made. " +
		"Steps that run in the database make no calls.",
}, "not_found", "order_forgotten", "invalid_parameter", "unavailable", "internal")

type listCallsRequest struct {
	OrderID string `path:"orderId" doc:"The id, percent-encoded."`
	After   int32  `query:"after" minimum:"-2147483648" maximum:"2147483647" default:"-2147483648" doc:"Only calls with a larger number."`
	Before  int32  `query:"before" minimum:"-2147483648" maximum:"2147483647" default:"2147483647" doc:"Only calls with a smaller number."`
	Sort    string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"newest: largest number first. Negative numbers fall with time."`
	Limit   int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"Maximum number of rows."`
}

type calls struct {
	Calls []call `json:"calls" nullable:"false"`
}

func (s *server) listCalls(ctx context.Context, in *listCallsRequest) (calls, error) {
	if err := s.readable(ctx, in.OrderID); err != nil {
		return calls{}, err
	}
	rows, err := s.engine.Orders.Calls(ctx, in.OrderID,
		orders.Span{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return calls{each(rows, callOf)}, err
}

// mayRead reports whether a principal may read an order. With the role submit alone, it may read the orders that it
// submitted, and those without a submitter, which were submitted while the service was open.
func mayRead(p *access.Principal, o *orders.Order) bool {
	return p.Has(access.Read) || p.Has(access.Submit) && (o.SubmittedBy == nil || *o.SubmittedBy == p.Name)
}

// readable returns nil if the caller may read an order. Errors: orders.ErrNotFound, both for an order that does not
// exist and for one of another submitter, or those of reading it.
func (s *server) readable(ctx context.Context, orderID string) error {
	if !possible(orderID) {
		return &orders.NotFound{What: "order"}
	}
	p := principalOf(writerOf(ctx))
	if p.Has(access.Read) {
		return nil
	}
	o, err := s.engine.Orders.Get(ctx, orderID)
	if errors.Is(err, orders.ErrForgotten) || err == nil && !mayRead(p, &o) { // of a forgotten order, the submitter is not known
		return &orders.NotFound{What: "order", Name: orderID}
	}
	return err
}

// followable returns nil if the caller may follow the events of an order, or with an empty id all events. Errors:
// *forbidden, and those of readable.
func (s *server) followable(ctx context.Context, orderID string) error {
	p := principalOf(writerOf(ctx))
	switch {
	case p.Has(access.Read):
		return nil
	case orderID == "":
		return &forbidden{principal: p, roles: access.Roles{access.Read}}
	}
	return s.readable(ctx, orderID)
}

// withheld replaces an answer that would show an order of another submitter by an error, even if the input matches.
// Otherwise it returns err.
func withheld(p *access.Principal, o *orders.Order, err error) error {
	if forgotten, ok := errors.AsType[*orders.Forgotten](err); ok && (forgotten.Own || p.Has(access.Read)) {
		return err
	} else if conflict, ok := errors.AsType[*orders.Conflict](err); ok {
		o = &conflict.Order
	} else if err != nil {
		return err
	}
	if mayRead(p, o) {
		return err
	}
	return newProblem("order_conflict", "An order with this id was submitted by another caller.")
}
