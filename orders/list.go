package orders

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Filter chooses orders for List. Zero values choose all.
type Filter struct {
	Statuses               []fsm.State // any of them
	CustomerID             string
	Item                   string
	Hold                   string    // what the order waits for
	HoldReason             string    // with Hold: how its reason begins
	CreatedFrom, CreatedTo time.Time // from is included, to is not
	Before                 int64     // only orders with a lower number: the cursor
	Limit                  int32     // 1 or more
}

// List reads a page of orders, newest first. It reads the tables the moves write, so a
// caller sees its own orders.
func (r *Reader) List(ctx context.Context, f Filter) ([]Order, error) {
	w, err := r.window(ctx, f)
	if err != nil {
		return nil, Unavailable("find orders by time", err)
	}
	page, err := r.page(ctx, f, w)
	return page, Unavailable("list orders", err)
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
func (r *Reader) window(ctx context.Context, f Filter) (window, error) {
	w := window{before: cmp.Or(f.Before, math.MaxInt64), from: f.CreatedFrom, to: f.CreatedTo}
	if f.CreatedTo.IsZero() {
		w.to = never
	} else {
		at, err := Read(ctx, r, r.query.OrderNoAt, f.CreatedTo.Add(numberDelay))
		if err != nil {
			return window{}, err
		}
		w.before = min(w.before, at.FirstAfter)
	}
	if !f.CreatedFrom.IsZero() {
		at, err := Read(ctx, r, r.query.OrderNoAt, f.CreatedFrom.Add(-numberDelay))
		if err != nil {
			return window{}, err
		}
		w.after = at.LastBefore
	}
	return w, nil
}

// page picks the statement by the index that serves the filter.
func (r *Reader) page(ctx context.Context, f Filter, w window) ([]Order, error) {
	statuses := statusesOf(f)
	switch {
	case f.Hold != "":
		return Read(ctx, r, r.query.OrdersListHeld, db.OrdersListHeldParams{Hold: f.Hold, Reason: f.HoldReason,
			Statuses: statuses, Item: optional(f.Item), CustomerID: optional(f.CustomerID),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
	case f.CustomerID != "":
		return Read(ctx, r, r.query.OrdersListCustomer, db.OrdersListCustomerParams{CustomerID: f.CustomerID,
			Statuses: statuses, Item: optional(f.Item),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
	case f.Item != "":
		return Read(ctx, r, r.query.OrdersListItem, db.OrdersListItemParams{Item: f.Item, Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
	case !slices.Contains(statuses, string(fsm.Completed)):
		return Read(ctx, r, r.query.OrdersListUncompleted, db.OrdersListUncompletedParams{Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
	default:
		return Read(ctx, r, r.query.OrdersList, db.OrdersListParams{Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit})
	}
}

// statusesOf are the statuses that a filter lets through.
func statusesOf(f Filter) (statuses []string) {
	chosen := f.Statuses
	if len(chosen) == 0 {
		chosen = fsm.States()
	}
	for _, status := range chosen {
		statuses = append(statuses, string(status))
	}
	return statuses
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
