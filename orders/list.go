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

// pageBytes is after how many bytes a page ends, even if more orders were asked for. Most take none that count.
const pageBytes = 1 << 20

// List reads a page of orders, newest first, and tells whether there are more behind it. It reads the tables the moves
// write, so a caller sees its own orders. A page of large orders ends early: it is about a megabyte long at most.
func (r *Reader) List(ctx context.Context, f Filter) (page []Order, more bool, err error) {
	w, err := r.window(ctx, f)
	if err != nil {
		return nil, false, Unavailable("find orders by time", err)
	}
	limit := int(f.Limit)
	f.Limit++ // is there one more?
	page, err = r.page(ctx, f, w)
	switch {
	case err != nil:
		return nil, false, Unavailable("list orders", err)
	case len(page) > limit:
		return page[:limit], true, nil
	case sizeOf(page) < pageBytes/2: // by any measure it did not end early
		return page, false, nil
	}
	f.Limit, w.before = 1, page[len(page)-1].OrderNo
	next, err := r.page(ctx, f, w)
	return page, len(next) > 0, Unavailable("list orders", err)
}

// sizeOf is about how many bytes those parts of orders take that can be large.
func sizeOf(page []Order) (size int) {
	for i := range page {
		size += len(page[i].Metadata) + len(page[i].Action) + len(page[i].RefundList)
	}
	return size
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
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit, Bytes: pageBytes})
	case f.CustomerID != "":
		return Read(ctx, r, r.query.OrdersListCustomer, db.OrdersListCustomerParams{CustomerID: f.CustomerID,
			Statuses: statuses, Item: optional(f.Item),
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit, Bytes: pageBytes})
	case f.Item != "":
		return Read(ctx, r, r.query.OrdersListItem, db.OrdersListItemParams{Item: f.Item, Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit, Bytes: pageBytes})
	case !slices.Contains(statuses, string(fsm.Completed)):
		return Read(ctx, r, r.query.OrdersListUncompleted, db.OrdersListUncompletedParams{Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit, Bytes: pageBytes})
	default:
		return Read(ctx, r, r.query.OrdersList, db.OrdersListParams{Statuses: statuses,
			After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to, Most: f.Limit, Bytes: pageBytes})
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
