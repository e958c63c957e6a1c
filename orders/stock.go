package orders

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

// Stock is an item's row: on hand, reserved, and whether its stock is tracked at all.
type Stock = db.Inventory

// StockOf reads one item. Errors: ErrNotFound, ErrUnavailable.
func (r *Reader) StockOf(ctx context.Context, item string) (Stock, error) {
	return r.stockOf(ctx, db.InventoryGetParams{Item: item})
}

// StockOfDurable is StockOf for a caller who is told that this is what he set: it waits as GetDurable does.
func (r *Reader) StockOfDurable(ctx context.Context, item string) (Stock, error) {
	return r.stockOf(ctx, db.InventoryGetParams{Item: item, Durable: true})
}

func (r *Reader) stockOf(ctx context.Context, which db.InventoryGetParams) (Stock, error) {
	row, err := Read(ctx, r, r.query.InventoryGet, which)
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
