package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var getRequestOperation = failing(huma.Operation{
	OperationID: "getRequest", Method: http.MethodGet, Path: "/api/requests/{requestId}", Tags: []string{"orders"},
	Summary: "Get what a request did",
	Description: "The orders to which requests with this requestId were applied, oldest first, as they are now, and their totals. " +
		"Use it to follow a bulk request, or if its response was lost. What a bulk request was refused is kept for a month. " +
		"With state, a page can have fewer orders than limit, because it examines at most 1,000.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getRequestRequest struct {
	RequestID string `path:"requestId" doc:"The requestId, percent-encoded."`
	State     string `query:"state" enum:"done,failed,in_progress,waiting,held" doc:"Only orders in this state."`
	Limit     int32  `query:"limit" minimum:"1" maximum:"200" default:"100" doc:"Maximum number of orders."`
	Cursor    string `query:"cursor" doc:"nextCursor of the previous page."`
}

type requestPage struct {
	Totals     []requestTotal   `json:"totals" nullable:"false" doc:"All orders of the request, by currency and state."`
	More       bool             `json:"more" doc:"The totals end at 10,000 orders, and there may be others."`
	Results    []requestedOrder `json:"results" nullable:"false" doc:"The orders of this page."`
	Refused    []refusedOrder   `json:"refused,omitempty" nullable:"false" doc:"Orders to which bulk requests with this requestId did not apply. Only on the first page."`
	NotApplied []currencyTotal  `json:"refusedTotals,omitempty" nullable:"false" doc:"The refused orders that exist, by currency."`
	NextCursor string           `json:"nextCursor,omitempty" doc:"Absent on the last page."`
}

type refusedOrder struct {
	OrderID string      `json:"orderId"`
	Verb    string      `json:"verb" doc:"The verb of the last request."`
	At      time.Time   `json:"at" doc:"When it was requested."`
	Actor   string      `json:"actor" doc:"Who requested it."`
	Reason  string      `json:"reason,omitempty"`
	Code    problemCode `json:"code,omitempty"`
	Detail  string      `json:"detail,omitempty" doc:"Why the verb was not applied."`

	Amount   string `json:"amount,omitempty" pattern:"^[0-9]+([.][0-9]+)?$" doc:"Of the order. Absent if there is none."`
	Currency string `json:"currency,omitempty" doc:"ISO 4217."`
}

type requestTotal struct {
	State    string `json:"state" enum:"done,failed,in_progress,waiting,held" doc:"done: what was requested has happened. failed: the order or the refund has failed. waiting: the order is on hold and continues by itself. held: it waits for a person."`
	Currency string `json:"currency" doc:"ISO 4217."`
	Orders   int64  `json:"orders" minimum:"1"`
	Amount   string `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"The sum of the orders, or of the refunds if they were requested."`
}

type requestedOrder struct {
	OrderID    string    `json:"orderId"`
	State      string    `json:"state" enum:"done,failed,in_progress,waiting,held"`
	Status     state     `json:"status"`
	Hold       *string   `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention"`
	Code       string    `json:"code,omitempty" doc:"Why the order or the refund failed, or why the order is held."`
	Detail     string    `json:"detail,omitempty"`
	Amount     string    `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"Of the order, or of the refund."`
	Currency   string    `json:"currency" doc:"ISO 4217."`
	Verb       string    `json:"verb" doc:"The last verb that was applied with this requestId."`
	At         time.Time `json:"at" doc:"When it was applied."`
	Actor      string    `json:"actor" doc:"Who requested it."`
	OnBehalfOf string    `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by the actor."`
	Reason     string    `json:"reason,omitempty"`
}

func (s *server) getRequest(ctx context.Context, in *getRequestRequest) (page requestPage, err error) {
	if !storable(in.RequestID) {
		return page, &orders.NotFound{What: "request"}
	}
	binding, after := []string{"request", in.RequestID, in.State}, int64(0)
	if in.Cursor != "" {
		position, ok := openCursor(binding, in.Cursor)
		if after, _ = parseInteger([]byte(position)); !ok {
			return page, errCursor()
		}
	}
	totals, more, err := s.engine.Orders.RequestTotals(ctx, in.RequestID)
	if err == nil && in.Cursor == "" {
		page.Refused, err = s.refusedBy(ctx, in.RequestID)
	}
	switch {
	case err != nil:
		return page, err
	case len(totals)+len(page.Refused) == 0:
		return page, &orders.NotFound{What: "request", Name: in.RequestID}
	}
	rows, next, err := s.engine.Orders.OfRequest(ctx, in.RequestID, orders.RequestFilter{State: orders.RequestState(in.State), After: after, Limit: in.Limit})
	if next > 0 {
		page.NextCursor = sealCursor(binding, decimalText(next))
	}
	for _, r := range page.Refused {
		if r.Currency != "" {
			page.NotApplied = addAmount(page.NotApplied, currencyTotal{r.Currency, 1, r.Amount})
		}
	}
	page.Totals, page.More, page.Results = each(totals, requestTotalOf), more, each(rows, requestedOrderOf)
	return page, err
}

func (s *server) refusedBy(ctx context.Context, requestID string) ([]refusedOrder, error) {
	refused, err := s.engine.Orders.RefusalsOf(ctx, requestID)
	return each(refused.Orders, func(r *orders.Refusal) refusedOrder {
		return refusedOrder{r.OrderID, string(refused.Verb), refused.At.UTC(), refused.Actor, refused.Reason, problemCode(r.Code), r.Detail, r.Amount, r.Currency}
	}), err
}

func requestTotalOf(t *orders.RequestTotal) requestTotal {
	return requestTotal{State: string(t.State), Currency: t.Currency, Orders: t.Orders, Amount: t.Amount.String()}
}

func requestedOrderOf(r *orders.Requested) requestedOrder {
	out := requestedOrder{
		OrderID: r.Order.OrderID, State: string(r.State), Status: state(r.Order.Status), Hold: r.Order.Hold, Code: r.Code, Detail: r.Detail,
		Amount: r.Order.Amount.String(), Currency: r.Order.Currency,
		Verb: string(r.Verb), At: r.At.UTC(), Actor: r.Actor, OnBehalfOf: r.OnBehalfOf, Reason: r.Reason,
	}
	if r.Refund != nil {
		out.Amount = r.Refund.Amount.String()
	}
	return out
}
