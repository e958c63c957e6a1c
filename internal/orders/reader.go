package orders

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/pg"
)

// Order is the stored order with what stands and what was undone of its effects. What a statement returns that writes
// orders has none of these.
type Order = db.Order

// Reader reads for callers, who can ask again: a read whose connection is lost is repeated for a moment, and then
// fails with ErrUnavailable. It is safe for concurrent use.
type Reader struct {
	query *db.Queries
	life  context.Context

	overview      shared[Overview]
	errorGroups   shared[ErrorGroups]
	manyCompleted atomic.Bool // there were CountsMost completed orders, which never become fewer
}

// NewReader returns a reader on the database of these queries. Once life has ended, as when the process is about to, no
// read is repeated: its caller is answered while there is still time.
func NewReader(life context.Context, query *db.Queries) *Reader {
	return &Reader{query: query, life: life}
}

// Get reads one order as the database shows it, which may be a moment before it is as durable as the settings
// demand. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) Get(ctx context.Context, orderID string) (Order, error) {
	return r.get(ctx, db.OrdersByIDParams{OrderIds: []string{orderID}})
}

// GetDurable is Get for what a caller is told as the outcome of a request of his: it waits until what it read is as
// durable as the settings demand.
func (r *Reader) GetDurable(ctx context.Context, orderID string) (Order, error) {
	return r.get(ctx, db.OrdersByIDParams{OrderIds: []string{orderID}, Durable: true})
}

func (r *Reader) get(ctx context.Context, which db.OrdersByIDParams) (Order, error) {
	rows, err := Read(ctx, r, r.query.OrdersByID, which)
	if err != nil {
		return Order{}, Unavailable("read order", err)
	}
	if len(rows) == 0 {
		return Order{}, &NotFound{"order", which.OrderIds[0]}
	}
	return rows[0], nil
}

// Span chooses numbered rows of an order: those between two numbers, which are left out themselves.
type Span struct {
	After, Before int32
	Descending    bool  // the largest number first
	Limit         int32 // how many at most
}

// Transitions reads the history of an order, by seq. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) Transitions(ctx context.Context, orderID string, s Span) (rows []db.Transition, err error) {
	order, err := r.Get(ctx, orderID)
	switch {
	case err != nil:
		return nil, err
	case s.Descending:
		rows, err = Read(ctx, r, r.query.TransitionsOfNewest, db.TransitionsOfNewestParams{OrderNo: order.OrderNo, After: s.After, Before: s.Before, Most: s.Limit})
	default:
		rows, err = Read(ctx, r, r.query.TransitionsOf, db.TransitionsOfParams{OrderNo: order.OrderNo, After: s.After, Before: s.Before, Most: s.Limit})
	}
	return rows, Unavailable("read history", err)
}

// Calls reads the calls of an order, by number. Numbers below zero are those of calls that moved no order.
// Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) Calls(ctx context.Context, orderID string, s Span) (rows []db.CallsOfRow, err error) {
	order, err := r.Get(ctx, orderID)
	switch {
	case err != nil:
		return nil, err
	case s.Descending:
		var newest []db.CallsOfNewestRow
		newest, err = Read(ctx, r, r.query.CallsOfNewest, db.CallsOfNewestParams{OrderNo: order.OrderNo, After: s.After, Before: s.Before, Most: s.Limit})
		for _, row := range newest {
			rows = append(rows, db.CallsOfRow(row))
		}
	default:
		rows, err = Read(ctx, r, r.query.CallsOf, db.CallsOfParams{OrderNo: order.OrderNo, After: s.After, Before: s.Before, Most: s.Limit})
	}
	return rows, Unavailable("read calls", err)
}

// Read sends a read for a caller, and repeats it for a moment while the database does not answer. The error is the database's own.
func Read[P, T any](ctx context.Context, r *Reader, read func(context.Context, P) (T, error), params P) (T, error) {
	return pg.Repeat(ctx, r.life, func(ctx context.Context) (T, error) { return read(ctx, params) })
}

// Unavailable marks an error of a read or of a verb as one to ask again after, unless the data is to blame.
func Unavailable(doing string, err error) error {
	switch pg.FaultOf(err) {
	case pg.None:
		return nil
	case pg.Bad:
		return fmt.Errorf("%s: %w", doing, err)
	default:
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
}

// Filter chooses orders for List. Zero values choose all.
type Filter struct {
	Statuses               []fsm.State // any of them
	CustomerID             string
	Item                   string
	Hold                   string           // what the order waits for
	HoldReason             string           // with Hold: all of its reason, or what is before a colon in it
	FailureStep            string           // of orders that failed, or are being undone
	FailureCode            string           // likewise
	AmountFrom, AmountTo   *decimal.Decimal // both are included, in whatever currency; nil: any
	CreatedFrom, CreatedTo time.Time        // from is included, to is not
	Oldest                 bool             // the oldest first
	After                  int64            // the cursor: the number of the order behind which to go on
	Limit                  int32            // 1 or more
}

const (
	// pageBytes is after how many bytes a page ends, even if more orders were asked for. Most take none that count.
	pageBytes = 1 << 20
	// looksAtMost is how many orders are looked at for one page. No index finds those of an amount, say, and there
	// may be none among a million.
	looksAtMost = 10_000
)

// List reads a page of orders, newest first, or oldest first. Next is the cursor of the next page, and 0 behind the last one. A
// page may have fewer orders than asked for, even none, and a next one all the same: it ends where it is about a megabyte long,
// and where enough orders were looked at. It reads the tables the moves write, so a caller sees its own orders.
func (r *Reader) List(ctx context.Context, f Filter) (page []Order, next int64, err error) {
	w, err := r.window(ctx, f)
	if err != nil {
		return nil, 0, Unavailable("find orders by time", err)
	}
	numbers, next, err := r.find(ctx, f, w)
	if err != nil || len(numbers) == 0 {
		return nil, next, Unavailable("find orders", err)
	}
	page, err = Read(ctx, r, r.query.OrdersRead, db.OrdersReadParams{OrderNos: numbers, Bytes: pageBytes})
	if len(page) > 0 && len(page) < len(numbers) {
		next = page[len(page)-1].OrderNo
	}
	return page, next, Unavailable("list orders", err)
}

// find returns the numbers of a page, and behind which one to go on. It looks at as many orders as the page has first, and at
// more after each time that they were not enough.
func (r *Reader) find(ctx context.Context, f Filter, w window) (numbers []int64, next int64, err error) {
	limit := int(f.Limit)
	q := f.query(w)
	q.Looks = f.Limit + 1 // is there one more?
	for left := int32(looksAtMost); ; q.Looks = min(8*q.Looks, left) {
		found, err := Read(ctx, r, r.query.OrdersFind, q)
		if err != nil {
			return nil, 0, err
		}
		numbers, left = append(numbers, found.Found...), left-found.Looked
		switch {
		case len(numbers) > limit:
			return numbers[:limit], numbers[limit-1], nil
		case found.Looked < q.Looks:
			return numbers, 0, nil
		case left <= 0:
			return numbers, found.Last, nil
		}
		if f.Oldest {
			q.After = found.Last
		} else {
			q.Before = found.Last
		}
	}
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
	w := window{before: math.MaxInt64, from: f.CreatedFrom, to: f.CreatedTo}
	if f.Oldest {
		w.after = f.After
	} else {
		w.before = cmp.Or(f.After, w.before)
	}
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
		w.after = max(w.after, at.LastBefore)
	}
	return w, nil
}

// query picks the way to look by the index that serves the filter.
func (f *Filter) query(w window) db.OrdersFindParams {
	q := db.OrdersFindParams{
		Statuses: statusesOf(f), Item: f.Item, CustomerID: f.CustomerID, Reason: f.HoldReason,
		FailureStep: f.FailureStep, FailureCode: f.FailureCode, AmountTo: largest, Oldest: f.Oldest,
		After: w.after, Before: w.before, CreatedFrom: w.from, CreatedTo: w.to,
	}
	if f.AmountFrom != nil {
		q.AmountFrom = *f.AmountFrom
	}
	if f.AmountTo != nil {
		q.AmountTo = *f.AmountTo
	}
	q.Unfinished = slices.ContainsFunc(q.Statuses, unfinished)
	switch {
	case f.Hold != "":
		q.By, q.Holds = "hold", []string{f.Hold}
	case f.CustomerID != "":
		q.By, q.Name = "customer", f.CustomerID
	case f.Item != "":
		q.By, q.Name = "item", f.Item
	case slices.Contains(q.Statuses, string(fsm.Completed)):
		q.By = "number"
	default:
		q.By = "uncompleted"
		if q.Unfinished {
			q.Holds = fsm.Holds()
		}
	}
	return q
}

func unfinished(status string) bool { return !fsm.State(status).Final() }

// largest is the largest amount there can be.
var largest = decimal.MustParse("999999999999999.9999")

// statusesOf are the statuses that a filter lets through. No completed order has a failure.
func statusesOf(f *Filter) (statuses []string) {
	chosen := f.Statuses
	if len(chosen) == 0 {
		chosen = fsm.States()
	}
	for _, status := range chosen {
		if status != fsm.Completed || f.FailureStep == "" && f.FailureCode == "" {
			statuses = append(statuses, string(status))
		}
	}
	return statuses
}

// Stock is an item's row: on hand, reserved, and whether its stock is tracked at all.
type Stock = db.Inventory

// StockMost is how many units of an item can be on hand.
const StockMost = 1_000_000_000_000

// StockOf reads one item. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) StockOf(ctx context.Context, item string) (Stock, error) {
	row, err := Read(ctx, r, r.query.InventoryGet, item)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stock{}, &NotFound{"item", item}
	}
	return row, Unavailable("read stock", err)
}

// StockList reads up to limit items after the given one, in byte order of their names. Errors: ErrUnavailable.
func (r *Reader) StockList(ctx context.Context, after string, limit int32) ([]Stock, error) {
	rows, err := Read(ctx, r, r.query.InventoryList, db.InventoryListParams{After: after, Most: limit})
	return rows, Unavailable("list stock", err)
}

// StockMovements reads the changes of an item's stock, by the version that they made. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) StockMovements(ctx context.Context, item string, s StockSpan) (rows []db.StockMovement, err error) {
	which := db.StockMovementsOfParams{Item: item, After: s.After, Before: cmp.Or(s.Before, math.MaxInt64), Most: s.Limit}
	if _, err = r.StockOf(ctx, item); err != nil {
		return nil, err
	}
	if s.Descending {
		rows, err = Read(ctx, r, r.query.StockMovementsOfNewest, db.StockMovementsOfNewestParams(which))
	} else {
		rows, err = Read(ctx, r, r.query.StockMovementsOf, which)
	}
	return rows, Unavailable("read stock movements", err)
}

// StockSpan chooses changes of an item's stock: those between two versions, which are left out themselves.
type StockSpan struct {
	After, Before int64 // Before 0: up to now
	Descending    bool  // the largest version first
	Limit         int32 // how many at most
}
