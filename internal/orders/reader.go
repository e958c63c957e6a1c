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

// Order is a stored order with its charge, reservation and refunds. Statements that write orders return it without these.
type Order = db.Order

// Reader reads for callers that can retry: a read whose connection is lost is repeated for a moment, and then fails with
// ErrUnavailable. It is safe for concurrent use.
type Reader struct {
	query   *db.Queries
	life    context.Context
	durable durableReads

	forgotten forgottenIDs

	overview      shared[Overview]
	errorGroups   shared[ErrorGroups]
	manyCompleted atomic.Int64 // until this time, in Unix seconds, there are CountsMost completed orders: only forgetting makes them fewer
}

// NewReader returns a reader. After life has ended, because the process is stopping, reads are no longer repeated, so
// that callers are answered in time.
func NewReader(life context.Context, query *db.Queries) *Reader {
	return &Reader{query: query, life: life}
}

// Get reads one order. One that is under way is read again, durably. Errors: ErrNotFound, *Forgotten, ErrUnavailable.
func (r *Reader) Get(ctx context.Context, orderID string) (Order, error) {
	rows, err := Read(ctx, r, r.query.OrdersByID, db.OrdersByIDParams{OrderIds: []string{orderID}})
	switch {
	case err != nil:
		return Order{}, Unavailable("read order", err)
	case len(rows) == 0:
		return Order{}, r.absent(ctx, orderID)
	case UnderWay(rows[0]):
		return r.GetDurable(ctx, orderID)
	}
	return rows[0], nil
}

// GetDurable is Get for the outcome of a request: it waits until the order is as durable as the settings demand.
func (r *Reader) GetDurable(ctx context.Context, orderID string) (Order, error) {
	found, err := r.readDurably(ctx, orderID)
	if err != nil {
		return Order{}, err
	}
	order, ok := found[orderID]
	if !ok {
		return Order{}, r.absent(ctx, orderID)
	}
	return order, nil
}

// GetAll reads orders by id, of those that exist. Those that are under way are read again, durably. Errors:
// ErrUnavailable.
func (r *Reader) GetAll(ctx context.Context, orderIDs []string) (map[string]Order, error) {
	rows, err := Read(ctx, r, r.query.OrdersByID, db.OrdersByIDParams{OrderIds: orderIDs})
	if err != nil {
		return nil, Unavailable("read orders", err)
	}
	rows, err = r.settled(ctx, rows)
	found := make(map[string]Order, len(rows))
	for _, order := range rows {
		found[order.OrderID] = order
	}
	return found, err
}

// absent is the error for an order that is not stored.
func (r *Reader) absent(ctx context.Context, orderID string) error {
	rows, err := Read(ctx, r, r.Forgotten, []string{orderID})
	switch {
	case err != nil:
		return Unavailable("look for forgotten order", err)
	case len(rows) == 0:
		return &NotFound{"order", orderID}
	}
	return &Forgotten{OrdersForgottenRow: rows[0]}
}

// Currencies returns the currencies of orders by id, of those that exist. Errors: ErrUnavailable.
func (r *Reader) Currencies(ctx context.Context, orderIDs []string) (map[string]string, error) {
	rows, err := Read(ctx, r, r.query.OrderCurrencies, orderIDs)
	found := make(map[string]string, len(rows))
	for _, row := range rows {
		found[row.OrderID] = row.Currency
	}
	return found, Unavailable("read currencies", err)
}

// Span selects numbered rows of an order, between two numbers that are themselves excluded.
type Span struct {
	After, Before int32
	Descending    bool  // the largest number first
	Limit         int32 // how many at most
}

// Transitions reads the history of an order, by seq, up to the order's seq: what came after the order was read may not be
// on the disk yet. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) Transitions(ctx context.Context, orderID string, s Span) (rows []db.Transition, err error) {
	order, err := r.Get(ctx, orderID)
	s.Before = min(s.Before, order.Seq+1)
	switch {
	case err != nil:
		return nil, err
	case s.Descending:
		rows, err = Read(ctx, r, r.query.TransitionsOfNewest,
			db.TransitionsOfNewestParams{OrderNo: order.OrderNo, After: s.After, Before: s.Before, Most: s.Limit})
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

// Read sends a read for a caller, and repeats it for a moment while the database does not answer. The error is the
// database's own.
func Read[P, T any](ctx context.Context, r *Reader, read func(context.Context, P) (T, error), params P) (T, error) {
	return pg.Repeat(ctx, r.life, func(ctx context.Context) (T, error) { return read(ctx, params) })
}

// Unavailable wraps an error of a read or verb in ErrUnavailable, unless the data is the cause.
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

// Filter selects orders for List. Zero values match all.
type Filter struct {
	Statuses               []fsm.State // any of them
	CustomerID             string
	Item                   string
	Hold                   string           // what the order waits for
	HoldReason             string           // with Hold: its reason, or the part before a colon
	FailureStep            string           // of orders that failed, or are being undone
	FailureCode            string           // likewise
	AmountFrom, AmountTo   *decimal.Decimal // inclusive, in any currency; nil: any
	CreatedFrom, CreatedTo time.Time        // from inclusive, to exclusive
	Oldest                 bool             // oldest first
	After                  int64            // the cursor: the number of the last order of the previous page
	Limit                  int32            // 1 or more
	SubmittedBy            string           // the principal that submitted the order
	Currency               string
	Charged                bool   // also if the charge was undone
	Refunded               bool   // something of it was refunded, or its charge was undone
	Authorized             bool   // something of it is authorized, and neither captured nor voided
	Voided                 bool   // something of its authorization was voided
	Refund                 string // open: a refund, capture or void is neither done nor failed; done, failed: the last refund
	Dispute                string // open, or the state of one of its disputes: won or lost
	Route                  string // of its charge
}

const (
	// pageBytes is the size at which a page ends, even if more orders were requested.
	pageBytes = 1 << 20
	// looksAtMost is how many orders are examined for one page. Some filters, such as amounts, have no index, and may
	// match none of a million orders.
	looksAtMost = 10_000
	// looksMore is how many more orders than expected are examined when some of a page are missing.
	looksMore = 50
	// countAtMost is where Count stops. A bulk request can't have more, and each costs a look at its row.
	countAtMost = 1000
)

// List reads a page of orders, newest or oldest first. Next is the cursor of the next page, or 0 after the last one. A
// page may have fewer orders than requested, even none, and still a next page: it ends when it is about a megabyte
// long, and when enough orders were examined. It reads the tables that the moves write, so callers see their own
// orders.
func (r *Reader) List(ctx context.Context, f Filter) (page []Order, next int64, err error) {
	numbers, next, err := r.find(ctx, f)
	if err != nil || len(numbers) == 0 {
		return nil, next, Unavailable("find orders", err)
	}
	page, cut, err := r.readPage(ctx, numbers)
	return page, cmp.Or(cut, next), err
}

// ListIDs is List without the orders: a page has as many ids as requested, unless enough orders were examined.
func (r *Reader) ListIDs(ctx context.Context, f Filter) (ids []string, next int64, err error) {
	numbers, next, err := r.find(ctx, f)
	if err == nil && len(numbers) > 0 {
		ids, err = Read(ctx, r, r.query.OrderIDs, db.OrderIDsParams{OrderNos: numbers, Oldest: f.Oldest})
	}
	return ids, next, Unavailable("find orders", err)
}

// AmountSum is the amount of orders in a currency.
type AmountSum = db.OrdersAmountsRow

// Count counts the orders that match a filter, from the first page on, up to a thousand, among as many orders as a page
// examines at most, and adds up the amounts of those on hold. more: others may match. Errors: ErrUnavailable.
func (r *Reader) Count(ctx context.Context, f Filter) (amounts []AmountSum, n int64, more bool, err error) {
	f.After, f.Limit = 0, countAtMost
	numbers, next, err := r.find(ctx, f)
	if err == nil && f.Hold != "" {
		amounts, err = Read(ctx, r, r.query.OrdersAmounts, numbers)
	}
	return amounts, int64(len(numbers)), next != 0, Unavailable("count orders", err)
}

// readPage reads orders by number, in that order, up to the size of a page. If that leaves some out, cut is the number of
// the last one that was read. Those that are under way are read durably.
func (r *Reader) readPage(ctx context.Context, numbers []int64) (page []Order, cut int64, err error) {
	page, err = Read(ctx, r, r.query.OrdersRead, db.OrdersReadParams{OrderNos: numbers, Bytes: pageBytes})
	if err != nil {
		return nil, 0, Unavailable("read orders", err)
	}
	if len(page) > 0 && len(page) < len(numbers) {
		cut = page[len(page)-1].OrderNo
	}
	page, err = r.settled(ctx, page)
	return page, cut, err
}

// settled reads those of a page that are under way again, durably. Orders that a crash has taken are left out.
func (r *Reader) settled(ctx context.Context, page []Order) ([]Order, error) {
	var ids []string
	for _, o := range page {
		if UnderWay(o) {
			ids = append(ids, o.OrderID)
		}
	}
	if len(ids) == 0 {
		return page, nil
	}
	found, err := r.readDurably(ctx, ids...)
	if err != nil {
		return nil, err
	}
	settled := page[:0]
	for _, o := range page {
		again, ok := found[o.OrderID]
		switch {
		case !UnderWay(o):
			settled = append(settled, o)
		case ok:
			settled = append(settled, again)
		}
	}
	return settled, nil
}

// find returns the numbers of a page, and the number to continue after. It first examines as many orders as the page
// has, and then as many as should have the rest, by how many have matched.
func (r *Reader) find(ctx context.Context, f Filter) (numbers []int64, next int64, err error) {
	after, before, err := r.window(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	limit := int(f.Limit)
	q := f.query(after, before)
	q.Looks = f.Limit + 1 // is there one more?
	for left := looksAtMost; ; {
		found, err := Read(ctx, r, r.query.OrdersFind, q)
		if err != nil {
			return nil, 0, err
		}
		numbers, left = append(numbers, found.Found...), left-int(found.Looked)
		switch {
		case len(numbers) > limit:
			return numbers[:limit], numbers[limit-1], nil
		case found.Looked < q.Looks:
			return numbers, 0, nil
		case left <= 0:
			return numbers, found.Last, nil
		}
		rest := (limit + 1 - len(numbers)) * (looksAtMost - left) / max(1, len(numbers))
		q.Looks = int32(min(rest+rest/8+looksMore, 10*int(q.Looks), left))
		if f.Oldest {
			q.After = found.Last
		} else {
			q.Before = found.Last
		}
	}
}

// numberDelay bounds the time between created_at, which is when the admitting statement began, and the assignment of the
// number. The statement waits for locks half a second at most.
const numberDelay = 35 * time.Second

// window narrows the numbers by the time of creation, so that the search for orders of last year does not begin today.
func (r *Reader) window(ctx context.Context, f Filter) (after, before int64, err error) {
	if f.Oldest {
		after, before = f.After, math.MaxInt64
	} else {
		before = cmp.Or(f.After, math.MaxInt64)
	}
	var at db.OrderNoAtRow
	if !f.CreatedTo.IsZero() {
		at, err = Read(ctx, r, r.query.OrderNoAt, f.CreatedTo.Add(numberDelay))
		before = min(before, at.FirstAfter)
	}
	if err == nil && !f.CreatedFrom.IsZero() {
		at, err = Read(ctx, r, r.query.OrderNoAt, f.CreatedFrom.Add(-numberDelay))
		after = max(after, at.LastBefore)
	}
	return after, before, err
}

// until is the end of a span of time, or of all time.
func until(end time.Time) time.Time {
	if end.IsZero() {
		return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return end
}

// query picks the index for the filter.
func (f *Filter) query(after, before int64) db.OrdersFindParams {
	q := db.OrdersFindParams{
		Statuses: statusesOf(f), Item: f.Item, CustomerID: f.CustomerID, Hold: f.Hold, Reason: f.HoldReason,
		FailureStep: f.FailureStep, FailureCode: f.FailureCode, AmountTo: largest, Oldest: f.Oldest, SubmittedBy: f.SubmittedBy,
		Currency: f.Currency, Charged: f.Charged, Refunded: f.Refunded, Authorized: f.Authorized, Voided: f.Voided, Refund: f.Refund, Dispute: f.Dispute, Route: f.Route,
		After: after, Before: before, CreatedFrom: f.CreatedFrom, CreatedTo: until(f.CreatedTo),
	}
	if f.AmountFrom != nil {
		q.AmountFrom = *f.AmountFrom
	}
	if f.AmountTo != nil {
		q.AmountTo = *f.AmountTo
	}
	q.Unfinished = slices.ContainsFunc(q.Statuses, unfinished)
	switch {
	case f.Dispute != "":
		q.By = "dispute"
	case f.ofOperation():
		q.By = "failed"
	case f.Refund == "open": // many may be done
		q.By = "open"
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

// Money is what was charged and given back, in one currency, as the books count it. Amounts are exact decimals.
type Money = db.OrdersMoneyRow

// MoneyOf is the money of each of some orders that were charged, by number. Errors: ErrUnavailable.
func (r *Reader) MoneyOf(ctx context.Context, page []Order) (map[int64]Money, error) {
	rows, err := Read(ctx, r, r.query.OrdersMoney, db.OrdersMoneyParams{Each: true, OrderNos: numbersOf(page)})
	found := make(map[int64]Money, len(rows))
	for _, row := range rows {
		found[row.OrderNo] = row
	}
	return found, Unavailable("read money", err)
}

func numbersOf(page []Order) []int64 {
	numbers := make([]int64, len(page))
	for i := range page {
		numbers[i] = page[i].OrderNo
	}
	return numbers
}

// StatusSince finds when each order of a page came into its status, by order number. Errors: ErrUnavailable.
func (r *Reader) StatusSince(ctx context.Context, page []Order) (map[int64]time.Time, error) {
	rows, err := Read(ctx, r, r.query.OrdersStatusSince, numbersOf(page))
	found := make(map[int64]time.Time, len(rows))
	for _, row := range rows {
		found[row.OrderNo] = row.At
	}
	return found, Unavailable("read when orders changed", err)
}

// Totals adds up the money of the orders that match a filter, by currency, from the first page on, among as many orders
// as a page examines at most. n is how many they are; more: others may match. Errors: ErrUnavailable.
func (r *Reader) Totals(ctx context.Context, f Filter) (totals []Money, n int64, more bool, err error) {
	f.After = 0
	after, before, err := r.window(ctx, f)
	if err != nil {
		return nil, 0, false, Unavailable("find orders by time", err)
	}
	q := f.query(after, before)
	q.Looks = looksAtMost
	found, err := Read(ctx, r, r.query.OrdersFind, q)
	if err == nil && len(found.Found) > 0 {
		totals, err = Read(ctx, r, r.query.OrdersMoney, db.OrdersMoneyParams{OrderNos: found.Found})
	}
	return totals, int64(len(found.Found)), found.Looked >= looksAtMost, Unavailable("add up money", err)
}

// MoneyMovement is money that moved; what went back is negative.
type MoneyMovement = db.MoneyMovementsRow

// MovementSpan selects movements. Zero values match all.
type MovementSpan struct {
	From, To time.Time // from inclusive, to exclusive
	Currency string
	Kinds    []string
	Before   int64 // the cursor
}

// movementLooks is how many orders are read at a time for their movements. A page has those of whole orders.
const movementLooks = 1000

// MoneyMovements reads a page of movements, those of the newest orders first. Next is the cursor of the
// next page, or 0 after the last one. A page may be empty and still have a next one, as in List. Errors: ErrUnavailable.
func (r *Reader) MoneyMovements(ctx context.Context, s MovementSpan) (page []MoneyMovement, next int64, err error) {
	after, before, err := r.window(ctx, Filter{After: s.Before, CreatedTo: s.To}) // an order moves money after it is placed
	if err != nil {
		return nil, 0, Unavailable("find orders by time", err)
	}
	p := db.MoneyMovementsParams{MovedFrom: s.From, MovedTo: until(s.To), Currency: s.Currency, Kinds: s.Kinds}
	for left := looksAtMost; left > 0 && len(page) < movementLooks; left -= movementLooks {
		p.OrderNos, err = Read(ctx, r, r.query.OrderNosBefore, db.OrderNosBeforeParams{After: after, Before: before, Looks: movementLooks})
		if err != nil || len(p.OrderNos) == 0 {
			return page, 0, Unavailable("find orders", err)
		}
		rows, err := Read(ctx, r, r.query.MoneyMovements, p)
		if page = append(page, rows...); err != nil || len(p.OrderNos) < movementLooks {
			return page, 0, Unavailable("read movements", err)
		}
		before = p.OrderNos[movementLooks-1]
	}
	return page, before, nil
}

func unfinished(status string) bool { return !fsm.State(status).Final() }

// largest is the largest possible amount.
var largest = decimal.MustParse("999999999999999.9999")

// ofOperation reports whether the step that failed is a refund, a capture or a void.
func (f *Filter) ofOperation() bool {
	return slices.Contains([]string{OperationRefund, OperationCapture, OperationVoid}, f.FailureStep)
}

// statusesOf are the statuses that a filter matches. Completed orders have no failure, but their operations may.
func statusesOf(f *Filter) (statuses []string) {
	chosen := f.Statuses
	if len(chosen) == 0 {
		chosen = fsm.States()
	}
	for _, status := range chosen {
		if status != fsm.Completed || f.ofOperation() || f.FailureStep == "" && f.FailureCode == "" {
			statuses = append(statuses, string(status))
		}
	}
	return statuses
}

// Stock is an item's row: on hand, reserved, and whether its stock is tracked at all.
type Stock = db.Inventory

// StockMost is the maximum number of units on hand.
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

// StockMovements reads the changes of an item's stock, by version. Errors: ErrNotFound, ErrUnavailable.
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

// StockSpan selects changes of an item's stock, between two versions that are themselves excluded.
type StockSpan struct {
	After, Before int64 // Before 0: up to now
	Descending    bool  // the largest version first
	Limit         int32 // how many at most
}
