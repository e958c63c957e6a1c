package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

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
	if ifVersion == nil {
		return e.setStockAnyway(ctx, item, onHand)
	}
	rows, err := e.setStock(ctx, item, onHand, *ifVersion)
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
	case *ifVersion != now.Version:
		return Stock{}, ErrPrecondition
	}
	return Stock{}, &StockTooLow{Item: now}
}

func (e *Engine) setStock(ctx context.Context, item string, onHand, ifVersion int64) ([]db.InventorySetRow, error) {
	return detached(ctx, e, func(ctx context.Context) ([]db.InventorySetRow, error) {
		return e.query.InventorySet(ctx, db.InventorySetParams{Item: item, OnHand: onHand, IfVersion: ifVersion})
	})
}

// stockTries bounds how often the stock of an item is set that others set at the same moment.
const stockTries = 20

// setStockAnyway sets the stock whatever its version is. The statement compares the version all the same: one whose
// answer was lost can be sent again, and does not bring back units that were sold since.
func (e *Engine) setStockAnyway(ctx context.Context, item string, onHand int64) (Stock, error) {
	lost := false // a statement at the version of now
	now, err := e.stockOf(ctx, item, false)
	for try := 0; try < stockTries && (err == nil || errors.Is(err, ErrNotFound)); try++ {
		rows, failed := e.setStock(ctx, item, onHand, now.Version)
		switch fault := db.FaultOf(failed); {
		case fault == db.None && len(rows) == 1:
			return Stock(rows[0]), nil
		case fault == db.Unknown && ctx.Err() == nil:
			lost = true
			e.pause(5 * time.Millisecond << min(try, 5))
			continue
		case fault != db.None:
			return Stock{}, unavailable("set stock", failed)
		}
		before := now
		switch now, err = e.stockOf(ctx, item, lost); {
		case err != nil:
		case now.Version == before.Version && lost: // one of ours may be at work still
		case now.Version == before.Version:
			return Stock{}, &StockTooLow{Item: now}
		case lost && onHand >= now.Reserved:
			return now, nil // it was set by us, or by somebody who would have set it right after us
		default:
			lost = false
		}
	}
	return Stock{}, unavailable("set stock", cmp.Or(err, ErrUnavailable))
}

// StockOf reads one item. Errors: ErrNotFound.
func (e *Engine) StockOf(ctx context.Context, item string) (Stock, error) {
	return e.stockOf(ctx, item, false)
}

func (e *Engine) stockOf(ctx context.Context, item string, durable bool) (Stock, error) {
	row, err := again(ctx, e, e.query.InventoryGet, db.InventoryGetParams{Item: item, Durable: durable})
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
