package orders

import (
	"context"
	"errors"

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
		return Stock{}, ErrNotFound
	}
	return row, Unavailable("read stock", err)
}

// StockList reads up to limit items after the given one, in byte order of their names. Errors: ErrUnavailable.
func (r *Reader) StockList(ctx context.Context, after string, limit int32) ([]Stock, error) {
	rows, err := Read(ctx, r, r.query.InventoryList, db.InventoryListParams{After: after, Most: limit})
	return rows, Unavailable("list stock", err)
}

// StockMovements reads up to limit changes of an item's stock that made a version after the given one, oldest first.
// Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) StockMovements(ctx context.Context, item string, after int64, limit int32) ([]db.StockMovement, error) {
	if _, err := r.StockOf(ctx, item); err != nil {
		return nil, err
	}
	rows, err := Read(ctx, r, r.query.StockMovementsOf, db.StockMovementsOfParams{Item: item, After: after, Most: limit})
	return rows, Unavailable("read stock movements", err)
}
