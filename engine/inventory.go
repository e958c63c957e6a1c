package engine

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

// Stock is an item's row: on hand, reserved, and whether its stock is tracked at all.
type Stock = db.InventoryGetRow

// SetStock sets the units on hand and tracks the item from now on. Sold units are gone
// from the shelf already, so the number is what can be counted there. With ifVersion it
// does so only if nobody set the stock since; versions begin at 1, and with 0 it does so
// only if there is no such item. Errors: *StockTooLow, ErrPrecondition, ErrUnavailable;
// after the last, the stock may have been set.
func (e *Engine) SetStock(ctx context.Context, item string, onHand int64, ifVersion *int64) (Stock, error) {
	rows, err := detached(ctx, e, func(ctx context.Context) ([]db.InventorySetRow, error) {
		return e.query.InventorySet(ctx, db.InventorySetParams{Item: item, OnHand: onHand, IfVersion: ifVersion})
	})
	if err != nil {
		return Stock{}, unavailable("set stock", err)
	}
	if len(rows) == 1 {
		return Stock(rows[0]), nil
	}
	now, err := e.StockOf(ctx, item)
	switch {
	case errors.Is(err, ErrNotFound):
		return Stock{}, ErrPrecondition
	case err != nil:
		return Stock{}, err
	case ifVersion != nil && *ifVersion != now.Version:
		return Stock{}, ErrPrecondition
	}
	return Stock{}, &StockTooLow{Item: now}
}

// StockOf reads one item. Errors: ErrNotFound.
func (e *Engine) StockOf(ctx context.Context, item string) (Stock, error) {
	row, err := again(ctx, e, e.query.InventoryGet, item)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stock{}, ErrNotFound
	}
	return row, unavailable("read stock", err)
}

// StockList reads up to limit items after the given one, in byte order of their names.
func (e *Engine) StockList(ctx context.Context, after string, limit int32) ([]Stock, error) {
	rows, err := again(ctx, e, e.query.InventoryList, db.InventoryListParams{After: after, Most: limit})
	if err != nil {
		return nil, unavailable("list stock", err)
	}
	out := make([]Stock, len(rows))
	for i, r := range rows {
		out[i] = Stock(r)
	}
	return out, nil
}
