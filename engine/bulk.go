package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// BulkMost is the maximum number of orders in a bulk request.
const BulkMost = 1000

// bulkAtOnce is how many orders are written concurrently, each by its own statement. Other orders need connections, too.
const bulkAtOnce = 8

// A dry run reads as many orders at once, and judges them beside so many others.
const (
	foreseenAtOnce = 100
	foreseers      = 2
)

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
	Order   orders.Order // as stored; after an error, as far as known; in a dry run, as it would be, with the failure that it has
	Err     error        // as of Do; nil: applied, or applicable in a dry run
	Refund  *orders.ChargeOperation
	SoldOut *db.InventoryLookRow // in a dry run of a retry: the item that is too short for the order and those before it
}

// DoAll applies a verb to many orders, and does not wait for them to end. The results are in the order of the ids, or with a
// filter the oldest order first. An error of one order does not affect the others. Errors: orders.ErrStopping, orders.ErrUnavailable, and
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
	if b.DryRun {
		workers.SetLimit(foreseers)
		for from := 0; from < len(orderIDs); from += foreseenAtOnce {
			to := min(from+foreseenAtOnce, len(orderIDs))
			workers.Go(func() error {
				e.foresee(ctx, &b, orderIDs[from:to], results[from:to])
				return nil
			})
		}
	} else {
		workers.SetLimit(bulkAtOnce)
		for i, orderID := range orderIDs {
			workers.Go(func() error {
				results[i] = e.doOne(ctx, b.forOrder(orderID))
				return nil
			})
		}
	}
	_ = workers.Wait() // each result has an error of its own
	if b.DryRun && b.Verb == orders.Retry {
		if err := e.lookForStock(ctx, results); err != nil {
			return nil, orders.Unavailable("look at the stock", err)
		}
	}
	return results, ctx.Err()
}

// lookForStock finds the orders that would fail, because what is left of an item is not enough for them and for
// those before them. Only the ledger's stock is known, and no order that has come further needs it.
func (e *Engine) lookForStock(ctx context.Context, results []BulkResult) error {
	judged, wanted, items := []int(nil), make([]map[string]int64, len(results)), map[string]bool{}
	for i := range results {
		o := &results[i].Order
		p, known := e.policies.byVersion(o.Policy)
		reserves := o.Status == fsm.Pending || o.Status == fsm.Charging || o.Status == fsm.Reserving
		if results[i].Err != nil || !known || !reserves || p != nil && p.Reserve.Executor.Remote() {
			continue
		}
		judged, wanted[i] = append(judged, i), orders.UnitsOf(o.Item, o.Quantity, o.Lines)
		for item := range wanted[i] {
			items[item] = true
		}
	}
	if len(items) == 0 {
		return nil
	}
	rows, err := orders.Read(ctx, e.Orders, e.query.InventoryLook, slices.Collect(maps.Keys(items)))
	taken := map[string]int64{}
	for _, i := range judged {
		units := wanted[i]
		short := slices.IndexFunc(rows, func(is db.InventoryLookRow) bool { return is.Available < taken[is.Item]+units[is.Item] })
		if short >= 0 {
			results[i].SoldOut = &rows[short]
			continue
		}
		for item, n := range units {
			taken[item] += n
		}
	}
	return err
}

// known is what was read of many orders at once. Nil: it is read of each.
type known struct {
	orders   map[string]orders.Order
	requests map[int64][]byte // fingerprints of the request, by order
	facts    map[int64]db.OrderFactsRow
}

// foresee judges a dry run of some orders. What most verbs need is read of all of them at once. A refusal may mix facts
// from before and after a change of its order.
func (e *Engine) foresee(ctx context.Context, b *Bulk, orderIDs []string, results []BulkResult) {
	found, err := e.knownOf(ctx, b, orderIDs)
	for i, orderID := range orderIDs {
		q := b.forOrder(orderID)
		is, there := found.orders[orderID]
		if there {
			q.known = found
		}
		if results[i] = (BulkResult{OrderID: orderID, Err: err}); err == nil {
			results[i] = e.doOne(ctx, q)
			if would := &results[i].Order; would.FailureCode == nil {
				would.FailureStep, would.FailureCode, would.FailureDetail = is.FailureStep, is.FailureCode, is.FailureDetail
			}
			if results[i].Err == nil && q.Verb == orders.Cancel && orders.Canceling(&is) {
				results[i].Err = &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedState, Order: lean(is)}
			}
		}
	}
}

// knownOf reads what the dry run of a verb needs of orders.
func (e *Engine) knownOf(ctx context.Context, b *Bulk, orderIDs []string) (found known, err error) {
	if found.orders, err = e.Orders.GetAll(ctx, orderIDs); err != nil || len(found.orders) == 0 {
		return found, err
	}
	if q := b.forOrder(""); q.RequestID != "" {
		var numbers []int64
		for _, o := range found.orders {
			numbers = append(numbers, o.OrderNo)
		}
		q.Actor = cmp.Or(q.Actor, orders.ActorAnonymous)
		if found.requests, err = e.applied(ctx, &q, numbers...); err != nil {
			return found, err
		}
	}
	if b.Verb == orders.Retry || b.Verb == orders.StepResult {
		found.facts, err = e.facts(ctx, slices.Collect(maps.Values(found.orders))...)
	}
	return found, err
}

// applied are the fingerprints of the request, by the orders that it was applied to before.
func (e *Engine) applied(ctx context.Context, q *Request, orderNos ...int64) (map[int64][]byte, error) {
	rows, err := orders.Read(ctx, e.Orders, e.query.TransitionsByRequest, db.TransitionsByRequestParams{
		OrderNos: orderNos, RequestID: q.RequestID, Actor: q.Actor, Verb: string(q.Verb), Durable: !q.DryRun})
	found := make(map[int64][]byte, len(rows))
	for _, row := range rows {
		found[row.OrderNo] = row.Fingerprint
	}
	return found, orders.Unavailable("read history", err)
}

// facts are what the rows of orders do not show.
func (e *Engine) facts(ctx context.Context, of ...orders.Order) (map[int64]db.OrderFactsRow, error) {
	var p db.OrderFactsParams
	for _, o := range of {
		p.OrderNos, p.Generations = append(p.OrderNos, o.OrderNo), append(p.Generations, o.Generation)
		p.Steps = append(p.Steps, string(cmp.Or(o.Status.Step(), fsm.Charge)))
		p.Operations = append(p.Operations, string(operationIn(o.Status)))
	}
	rows, err := orders.Read(ctx, e.Orders, e.query.OrderFacts, p)
	found := make(map[int64]db.OrderFactsRow, len(rows))
	for _, row := range rows {
		found[row.OrderNo] = row
	}
	return found, orders.Unavailable("read effects", err)
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
	before := len(orderIDs)
	orderIDs = unique(append(orderIDs, listed...))
	orderIDs = orderIDs[:min(len(orderIDs), int(b.Filter.Limit))]
	if !b.Filter.Oldest {
		slices.Reverse(orderIDs[before:])
	}
	return orderIDs, nil
}

// listed are the ids of the orders that match the filter of a request, read page by page. A divided database still has
// orders of the other cell.
func (e *Engine) listed(ctx context.Context, b *Bulk) (orderIDs []string, err error) {
	list := e.Orders.ListIDs
	if b.Verb == orders.Refund {
		list = e.refundable
	}
	f := *b.Filter
	for most := f.Limit; f.Limit > 0; f.Limit = most - int32(len(orderIDs)) {
		page, next, err := list(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, orderID := range page {
			if e.cfg.Cell.Has(orderID) {
				orderIDs = append(orderIDs, orderID)
			}
		}
		if f.After = next; next == 0 {
			break
		}
	}
	return orderIDs, nil
}

// refundable is ListIDs for refunds. They leave the status as it is, so orders that have nothing left are passed over:
// otherwise the next request would find the same ones.
func (e *Engine) refundable(ctx context.Context, f orders.Filter) (orderIDs []string, next int64, err error) {
	page, next, err := e.Orders.List(ctx, f)
	for i := range page {
		if orders.Refund.Applies(&page[i]) {
			orderIDs = append(orderIDs, page[i].OrderID)
		}
	}
	return orderIDs, next, err
}

func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}
