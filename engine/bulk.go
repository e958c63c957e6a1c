package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"pawl/db"
	"pawl/internal/orders"
)

// BulkMost is how many orders one bulk request can be about.
const BulkMost = 1000

// bulkAtOnce is how many of them are written at a time: each is a statement of its own,
// and the orders that flow need connections, too.
const bulkAtOnce = 8

// Bulk is one verb for many orders.
type Bulk struct {
	Request                 // without an OrderID; each order keeps its RequestID as its own
	OrderIDs []string       // at most BulkMost; each counts once
	Filter   *orders.Filter // instead of OrderIDs; its Limit counts
}

// BulkResult is what a verb came to for one order.
type BulkResult struct {
	OrderID string
	Order   orders.Order // as it was stored; with an error whatever is known of it
	Err     error        // as Do answers; nil: it was done, or as a dry run would be
}

// DoAll does what a verb asks of each order, and waits for none of them to end. The
// results are in the order of the ids, or of the list. An order that can't be done does not
// keep the others from it. Errors: orders.ErrStopping, orders.ErrUnavailable, and that of ctx when it ends before the
// last one.
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
			results[i] = e.doOne(ctx, b.Request, orderID)
			return nil
		})
	}
	_ = workers.Wait() // each result has an error of its own
	return results, ctx.Err()
}

func (e *Engine) doOne(ctx context.Context, q Request, orderID string) BulkResult {
	q.OrderID, q.Async = orderID, true
	if ctx.Err() != nil {
		return BulkResult{OrderID: orderID, Err: ctx.Err()}
	}
	order, err := e.Do(ctx, q)
	if refusal, ok := errors.AsType[*orders.NotApplicable](err); ok {
		order = refusal.Order
		refusal.Order = lean(order)
	}
	return BulkResult{OrderID: orderID, Order: lean(order), Err: err}
}

// lean is an order without what can be large: a bulk request keeps a thousand of them.
func lean(o orders.Order) orders.Order {
	o.Metadata, o.Action, o.RefundList = nil, nil, nil
	return o
}

// chosen are the ids of the orders that a request with a filter is about: first those to which it was done when it came before. The
// filter may not choose them any more, because it was done to them.
func (e *Engine) chosen(ctx context.Context, b *Bulk) (orderIDs []string, err error) {
	if b.RequestID != "" {
		before, err := orders.Read(ctx, e.Orders, e.query.OrdersOfRequest, db.OrdersOfRequestParams{
			RequestID: b.RequestID, Actor: cmp.Or(b.Actor, orders.ActorAnonymous), Verb: string(b.Verb), Most: b.Filter.Limit})
		if err != nil {
			return nil, orders.Unavailable("read orders of request", err)
		}
		for _, order := range before {
			orderIDs = append(orderIDs, order.OrderID)
		}
	}
	listed, err := e.listed(ctx, *b.Filter)
	if err != nil {
		return nil, err
	}
	orderIDs = unique(append(orderIDs, listed...))
	return orderIDs[:min(len(orderIDs), int(b.Filter.Limit))], nil
}

// listed are the ids of the orders that a filter chooses, page by page.
func (e *Engine) listed(ctx context.Context, f orders.Filter) (orderIDs []string, err error) {
	for most := f.Limit; f.Limit > 0; f.Limit = most - int32(len(orderIDs)) {
		page, next, err := e.Orders.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for i := range page {
			orderIDs = append(orderIDs, page[i].OrderID)
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
