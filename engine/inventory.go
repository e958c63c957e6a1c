package engine

import (
	"cmp"
	"context"
	"errors"

	"pawl/db"
	"pawl/orders"
)

// SetStock sets the units on hand and tracks the item from now on. Sold units are gone
// from the shelf already, so the number is what can be counted there. With ifVersion it
// does so only if nobody set the stock since; versions begin at 1, and with 0 it does so
// only if there is no such item. Errors: *orders.StockTooLow, orders.ErrPrecondition, orders.ErrUnavailable;
// after the last, the stock may have been set.
func (e *Engine) SetStock(ctx context.Context, item string, onHand int64, ifVersion *int64) (orders.Stock, error) {
	if ifVersion == nil {
		return e.setStockAnyway(ctx, item, onHand)
	}
	rows, err := e.setStock(ctx, item, onHand, *ifVersion)
	if err != nil {
		return orders.Stock{}, orders.Unavailable("set stock", err)
	}
	if len(rows) == 1 {
		return rows[0], nil
	}
	now, err := e.Orders.StockOf(ctx, item)
	switch {
	case errors.Is(err, orders.ErrNotFound):
		return orders.Stock{}, orders.ErrPrecondition
	case err != nil:
		return orders.Stock{}, err
	case *ifVersion != now.Version:
		return orders.Stock{}, orders.ErrPrecondition
	}
	return orders.Stock{}, &orders.StockTooLow{Item: now}
}

func (e *Engine) setStock(ctx context.Context, item string, onHand, ifVersion int64) ([]orders.Stock, error) {
	return detached(ctx, e, func(ctx context.Context) ([]orders.Stock, error) {
		return e.query.InventorySet(ctx, db.InventorySetParams{Item: item, OnHand: onHand, IfVersion: ifVersion})
	})
}

// stockTries bounds how often the stock of an item is set that others set at the same moment.
const stockTries = 20

// setStockAnyway sets the stock whatever its version is. The statement compares the version all the same: one whose
// answer was lost can be sent again, and does not bring back units that were sold since.
func (e *Engine) setStockAnyway(ctx context.Context, item string, onHand int64) (orders.Stock, error) {
	lost := false // a statement at the version of now
	now, err := e.stockOf(ctx, item, false)
	for try := 0; try < stockTries && (err == nil || errors.Is(err, orders.ErrNotFound)); try++ {
		rows, failed := e.setStock(ctx, item, onHand, now.Version)
		switch fault := db.FaultOf(failed); {
		case fault == db.None && len(rows) == 1:
			return rows[0], nil
		case fault == db.Unknown && ctx.Err() == nil:
			lost = true
			e.backOff(try)
			continue
		case fault != db.None:
			return orders.Stock{}, orders.Unavailable("set stock", failed)
		}
		before := now
		switch now, err = e.stockOf(ctx, item, lost); {
		case err != nil:
		case now.Version == before.Version && lost: // one of ours may be at work still
		case now.Version == before.Version:
			return orders.Stock{}, &orders.StockTooLow{Item: now}
		case lost && onHand >= now.Reserved:
			return now, nil // it was set by us, or by somebody who would have set it right after us
		default:
			lost = false
		}
	}
	return orders.Stock{}, orders.Unavailable("set stock", cmp.Or(err, orders.ErrUnavailable))
}

func (e *Engine) stockOf(ctx context.Context, item string, durable bool) (orders.Stock, error) {
	if durable {
		return e.Orders.StockOfDurable(ctx, item)
	}
	return e.Orders.StockOf(ctx, item)
}
