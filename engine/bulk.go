package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// BulkMost is the maximum number of orders in a bulk request.
const BulkMost = 1000

// bulkAtOnce is how many orders are written concurrently, each by its own statement. Other orders need connections, too.
const bulkAtOnce = 8

// Bulk is one verb for many orders.
type Bulk struct {
	Request                 // without an OrderID; each order keeps its RequestID as its own
	OrderIDs []string       // at most BulkMost; duplicates are ignored
	Filter   *orders.Filter // instead of OrderIDs, with a Limit

	Refunds map[string]*ChargeOperation // by order, instead of the ChargeOperation of the request
}

// BulkResult is the result of a verb for one order.
type BulkResult struct {
	OrderID string
	Order   orders.Order // as stored; after an error, as far as known
	Err     error        // as of Do; nil: applied, or applicable in a dry run
	Refund  *orders.ChargeOperation
}

// DoAll applies a verb to many orders, and does not wait for them to end. The results are in the order of the ids, or
// of the list. An error of one order does not affect the others. Errors: orders.ErrStopping, orders.ErrUnavailable, and
// that of ctx if it ends before the last order.
func (e *Engine) DoAll(ctx context.Context, b Bulk) ([]BulkResult, error) {
	if e.stopping.Load() {
		return nil, orders.ErrStopping
	}
	orderIDs := unique(b.OrderIDs)
	if b.Filter != nil {
		chosen, err := e.chosen(ctx, &b)
		if err != nil {
			return nil, err
		}
		orderIDs = chosen
	}
	results := make([]BulkResult, len(orderIDs))
	var workers errgroup.Group
	workers.SetLimit(bulkAtOnce)
	for i, orderID := range orderIDs {
		workers.Go(func() error {
			results[i] = e.doOne(ctx, b.forOrder(orderID))
			return nil
		})
	}
	_ = workers.Wait() // each result has an error of its own
	return results, ctx.Err()
}

// KeepRefusals stores what a bulk request was refused, so that it can be read later by the id of the request. Errors:
// orders.ErrUnavailable.
func (e *Engine) KeepRefusals(ctx context.Context, q *Request, refused []orders.Refusal) error {
	if q.RequestID == "" || len(refused) == 0 {
		return nil
	}
	params := db.BulkRefusalsKeepParams{
		RequestID: q.RequestID, Verb: string(q.Verb), Actor: cmp.Or(q.Actor, orders.ActorAnonymous), Reason: db.Optional(q.Reason),
	}
	for _, r := range refused {
		params.OrderIds, params.Codes, params.Details = append(params.OrderIds, r.OrderID), append(params.Codes, r.Code), append(params.Details, r.Detail)
	}
	_, err := pg.Repeat(ctx, ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, e.query.BulkRefusalsKeep(ctx, params) })
	return orders.Unavailable("store refusals", err)
}

// forOrder is the request for one of the orders.
func (b *Bulk) forOrder(orderID string) Request {
	q := b.Request
	q.OrderID, q.Async = orderID, true
	if own := b.Refunds[orderID]; own != nil {
		q.ChargeOperation = own
	}
	return q
}

func (e *Engine) doOne(ctx context.Context, q Request) BulkResult {
	if ctx.Err() != nil {
		return BulkResult{OrderID: q.OrderID, Err: ctx.Err()}
	}
	order, err := e.Do(ctx, q)
	if refusal, ok := errors.AsType[*orders.NotApplicable](err); ok {
		order = refusal.Order
		refusal.Order = lean(order)
	}
	return BulkResult{OrderID: q.OrderID, Order: lean(order), Err: err, Refund: q.refundIn(&order)}
}

// refundIn is the refund that the request has made, or would make, or nil.
func (q *Request) refundIn(o *orders.Order) *orders.ChargeOperation {
	for _, r := range orders.ChargeOperations(o) {
		if q.ChargeOperation != nil && r.RequestID == q.RequestID {
			return &r
		}
	}
	return nil
}

// lean is an order without its large fields, because a bulk request keeps a thousand of them.
func lean(o orders.Order) orders.Order {
	o.Metadata, o.Action, o.ChargeOperationList, o.DisputeList = nil, nil, nil, nil
	return o
}

// chosen are the ids of the orders of a request with a filter. First come those that an earlier execution of the same
// request has changed, because the filter may no longer match them.
func (e *Engine) chosen(ctx context.Context, b *Bulk) (orderIDs []string, err error) {
	if b.RequestID != "" {
		before, err := orders.Read(ctx, e.Orders, e.query.OrdersOfRequest, db.OrdersOfRequestParams{
			RequestID: b.RequestID, Actor: cmp.Or(b.Actor, orders.ActorAnonymous), Verb: string(b.Verb), Most: b.Filter.Limit})
		if err != nil {
			return nil, orders.Unavailable("read orders of request", err)
		}
		for _, order := range before {
			if e.cfg.Cell.Has(order.OrderID) {
				orderIDs = append(orderIDs, order.OrderID)
			}
		}
	}
	listed, err := e.listed(ctx, b)
	if err != nil {
		return nil, err
	}
	orderIDs = unique(append(orderIDs, listed...))
	return orderIDs[:min(len(orderIDs), int(b.Filter.Limit))], nil
}

// listed are the ids of the orders that match the filter of a request, read page by page. A refund leaves the status as it
// is, so orders that have nothing left are passed over: otherwise the next request would find the same ones. A divided
// database still has orders of the other cell.
func (e *Engine) listed(ctx context.Context, b *Bulk) (orderIDs []string, err error) {
	f := *b.Filter
	for most := f.Limit; f.Limit > 0; f.Limit = most - int32(len(orderIDs)) {
		page, next, err := e.Orders.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if e.cfg.Cell.Has(page[i].OrderID) && (b.Verb != orders.Refund || b.Verb.Applies(&page[i])) {
				orderIDs = append(orderIDs, page[i].OrderID)
			}
		}
		if f.After = next; next == 0 {
			break
		}
	}
	return orderIDs, nil
}

func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}
