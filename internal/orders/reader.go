package orders

import (
	"context"
	"fmt"

	"pawl/db"
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
}

// NewReader returns a reader on the database of these queries. Once life has ended, as when the process is about to, no
// read is repeated: whoever waits for it is answered while there is still time.
func NewReader(life context.Context, query *db.Queries) *Reader { return &Reader{query, life} }

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

// Read sends a read for a caller, and repeats it for a moment while nobody answers it. The error is the database's own.
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
