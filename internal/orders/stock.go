package orders

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

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
