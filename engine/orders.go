package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Get reads one order as the database shows it, which may be a moment before it is as durable as the settings
// demand. Errors: ErrNotFound, ErrUnavailable.
func (e *Engine) Get(ctx context.Context, orderID string) (Order, error) {
	return e.get(ctx, orderID, false)
}

// get reads one order. What a caller is told as the outcome of a request of his rests on a durable read.
func (e *Engine) get(ctx context.Context, orderID string, durable bool) (Order, error) {
	rows, err := again(ctx, e, e.query.OrdersByID, db.OrdersByIDParams{OrderIds: []string{orderID}, Durable: durable})
	if err != nil {
		return Order{}, unavailable("read order", err)
	}
	if len(rows) == 0 {
		return Order{}, ErrNotFound
	}
	return rows[0], nil
}

// Filter chooses orders for List. Zero values choose all.
type Filter struct {
	Status                 fsm.State
	Item                   string
	Hold                   string    // what the order waits for
	HoldReason             string    // with Hold: how its reason begins
	CreatedFrom, CreatedTo time.Time // from is included, to is not
	Before                 int64     // only orders with a lower number: the cursor
	Limit                  int32     // 1 or more
}

// List reads a page of orders, newest first. It reads the tables the moves write, so a
// caller sees its own orders.
func (e *Engine) List(ctx context.Context, f Filter) ([]Order, error) {
	w, err := e.window(ctx, f)
	if err != nil {
		return nil, unavailable("find orders by time", err)
	}
	page, err := e.page(ctx, f, w)
	return page, unavailable("list orders", err)
}

// window is where the orders of a list lie: their numbers and their times.
type window struct {
	after, before int64
	from, to      time.Time
}

var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// numberDelay is longer than an order takes from the time it bears to its number: both
// are given by one statement, the time when it begins, and that waits for locks half a second at most.
const numberDelay = 35 * time.Second

// window narrows the numbers to the time of creation, so that a page of last year is
// not looked for from today.
func (e *Engine) window(ctx context.Context, f Filter) (window, error) {
	w := window{before: cmp.Or(f.Before, math.MaxInt64), from: f.CreatedFrom, to: f.CreatedTo}
	if f.CreatedTo.IsZero() {
		w.to = never
	} else {
		at, err := again(ctx, e, e.query.OrderNoAt, f.CreatedTo.Add(numberDelay))
		if err != nil {
			return window{}, err
		}
		w.before = min(w.before, at.FirstAfter)
	}
	if !f.CreatedFrom.IsZero() {
		at, err := again(ctx, e, e.query.OrderNoAt, f.CreatedFrom.Add(-numberDelay))
		if err != nil {
			return window{}, err
		}
		w.after = at.LastBefore
	}
	return w, nil
}

// page picks the statement by the index that serves the filter.
func (e *Engine) page(ctx context.Context, f Filter, w window) ([]Order, error) {
	status := string(f.Status)
	switch {
	case f.Hold != "":
		rows, err := again(ctx, e, e.query.OrdersListHeld, db.OrdersListHeldParams{Hold: f.Hold, Reason: f.HoldReason, Status: optional(status), Item: optional(f.Item),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
		return asOrders(rows), err
	case f.Status == fsm.Failed || f.Status == fsm.Canceled:
		if f.Item != "" {
			rows, err := again(ctx, e, e.query.OrdersListItemEnded, db.OrdersListItemEndedParams{Status: status, Item: f.Item,
				After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
			return asOrders(rows), err
		}
		rows, err := again(ctx, e, e.query.OrdersListEnded, db.OrdersListEndedParams{Status: status,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
		return asOrders(rows), err
	case f.Status != "" && f.Status != fsm.Completed:
		rows, err := again(ctx, e, e.query.OrdersListUnfinished, db.OrdersListUnfinishedParams{Status: status, Item: optional(f.Item),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
		return asOrders(rows), err
	case f.Item != "":
		rows, err := again(ctx, e, e.query.OrdersListItem, db.OrdersListItemParams{Item: f.Item, Completed: f.Status == fsm.Completed,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
		return asOrders(rows), err
	default:
		rows, err := again(ctx, e, e.query.OrdersList, db.OrdersListParams{Status: optional(status),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
		return asOrders(rows), err
	}
}

type orderRow interface {
	~struct {
		Order                                         db.Order
		ChargedAt, RefundedAt, ReservedAt, ReleasedAt *time.Time
		ChargeReference, ReserveReference             *string
		ChargeInDoubt, ReserveInDoubt                 *bool
	}
}

func asOrders[R orderRow](rows []R) []Order {
	out := make([]Order, len(rows))
	for i, r := range rows {
		out[i] = Order(r)
	}
	return out
}

// Transitions reads the history of an order after the given seq, oldest first. Errors:
// ErrNotFound.
func (e *Engine) Transitions(ctx context.Context, orderID string, after, limit int32) ([]db.Transition, error) {
	order, err := e.Get(ctx, orderID)
	if err != nil {
		return nil, err
	}
	rows, err := again(ctx, e, e.query.TransitionsOf, db.TransitionsOfParams{OrderNo: order.Order.OrderNo, After: after, Most: limit})
	if err != nil {
		return nil, unavailable("read history", err)
	}
	out := make([]db.Transition, len(rows))
	for i, r := range rows {
		out[i] = r.Transition
	}
	return out, nil
}

// unavailable marks an error of a read or of a verb as one to ask again after, unless
// the caller has gone or the data is to blame.
func unavailable(doing string, err error) error {
	switch db.FaultOf(err) {
	case db.None:
		return nil
	case db.Bad:
		return fmt.Errorf("%s: %w", doing, err)
	default:
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
}
