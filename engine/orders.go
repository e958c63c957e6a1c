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

// Get reads one order. Errors: ErrNotFound.
func (e *Engine) Get(ctx context.Context, orderID string) (Order, error) {
	rows, err := e.query.OrdersByID(ctx, []string{orderID})
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
	CreatedFrom, CreatedTo time.Time // from is included, to is not
	Before                 int64     // only orders with a lower number: the cursor
	Limit                  int32     // 1 or more
}

var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// List reads a page of orders, newest first. It reads the tables the moves write, so a
// caller sees its own orders.
func (e *Engine) List(ctx context.Context, f Filter) ([]Order, error) {
	f.Before = cmp.Or(f.Before, math.MaxInt64)
	if f.CreatedTo.IsZero() {
		f.CreatedTo = never
	}
	page, err := e.page(ctx, f)
	return page, unavailable("list orders", err)
}

// page picks the statement by the index that serves the filter.
func (e *Engine) page(ctx context.Context, f Filter) ([]Order, error) {
	var status *string
	if f.Status != "" {
		s := string(f.Status)
		status = &s
	}
	switch {
	case f.Item != "":
		rows, err := e.query.OrdersListItem(ctx, db.OrdersListItemParams{
			Item: f.Item, Status: status, Before: f.Before, CreatedFrom: f.CreatedFrom, CreatedTo: f.CreatedTo, Most: f.Limit})
		return asOrders(rows), err
	case f.Status == fsm.Failed || f.Status == fsm.Canceled:
		rows, err := e.query.OrdersListEnded(ctx, db.OrdersListEndedParams{
			Status: status, Before: f.Before, CreatedFrom: f.CreatedFrom, CreatedTo: f.CreatedTo, Most: f.Limit})
		return asOrders(rows), err
	case f.Status != "" && f.Status != fsm.Completed:
		rows, err := e.query.OrdersListUnfinished(ctx, db.OrdersListUnfinishedParams{
			Status: f.Status, Before: f.Before, CreatedFrom: f.CreatedFrom, CreatedTo: f.CreatedTo, Most: f.Limit})
		return asOrders(rows), err
	default:
		rows, err := e.query.OrdersList(ctx, db.OrdersListParams{
			Status: status, Before: f.Before, CreatedFrom: f.CreatedFrom, CreatedTo: f.CreatedTo, Most: f.Limit})
		return asOrders(rows), err
	}
}

type orderRow interface {
	~struct {
		Order                                         db.Order
		ChargedAt, RefundedAt, ReservedAt, ReleasedAt *time.Time
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
	rows, err := e.query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: order.Order.OrderNo, After: after, Most: limit})
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
