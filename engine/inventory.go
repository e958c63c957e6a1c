package engine

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// The kinds of stock movements that callers can request.
const (
	StockSet        = "set"
	StockAdjustment = "adjustment"
)

// StockChange is a requested change of an item's stock, which is tracked from then on. Units on hand do not include sold
// ones, so they can be counted on the shelf.
type StockChange struct {
	Item      string
	Kind      string
	Units     int64  // StockSet: the new number on hand; StockAdjustment: how many more, or if negative fewer
	IfVersion *int64 // only at this version of the item; 0: only if it does not exist. Required for StockSet
	Actor     string // the authenticated principal, for the movement. Empty: orders.ActorAnonymous
	Reason    string
	RequestID string // repeating a request with the same id has no further effect

	OnBehalfOf string // as stated by the actor, for the movement
}

// stockTries bounds how often a change is sent whose reply was lost, or whose item changed concurrently.
const stockTries = 20

// ChangeStock changes the stock of an item, records the movement, and returns the new stock. Versions begin at 1; every
// movement and every sale raises them. Errors: *orders.StockTooLow, orders.ErrStockTooHigh, orders.ErrPrecondition,
// orders.ErrKeyReused, orders.ErrUnavailable; after the last, the stock may have changed.
func (e *Engine) ChangeStock(ctx context.Context, q StockChange) (orders.Stock, error) {
	q.Actor = cmp.Or(q.Actor, orders.ActorAnonymous)
	if q.RequestID == "" {
		q.RequestID = uuid.NewString() // to find out whether a statement was executed whose reply was lost
	}
	for try := range stockTries {
		rows, err := e.moveStock(ctx, &q)
		switch fault := pg.FaultOf(err); {
		case fault == pg.None && len(rows) == 1:
			return orders.Stock(rows[0]), nil
		case fault == pg.None, pg.Describe(err) == "23505 stock_movements_request":
			if now, err := e.stockNotMoved(ctx, &q); !errors.Is(err, errStockMoves) {
				return now, err
			}
		case errors.Is(err, orders.ErrUnavailable):
			return orders.Stock{}, err
		case (fault == pg.Unknown || fault == pg.Again) && ctx.Err() == nil:
		default:
			return orders.Stock{}, orders.Unavailable("change stock", err)
		}
		e.backOff(try)
	}
	return orders.Stock{}, orders.ErrUnavailable
}

// moveStock sends the statement. With one request id, it takes effect at most once.
func (e *Engine) moveStock(ctx context.Context, q *StockChange) ([]db.InventoryMoveRow, error) {
	change := q.Units
	if q.Kind == StockSet {
		now, err := e.Orders.StockOf(ctx, q.Item)
		if err != nil && !errors.Is(err, orders.ErrNotFound) {
			return nil, err
		}
		if now.Version != *q.IfVersion {
			return nil, nil
		}
		change -= now.OnHand
	}
	return detached(ctx, &e.core, func(ctx context.Context) ([]db.InventoryMoveRow, error) {
		return e.query.InventoryMove(ctx, db.InventoryMoveParams{
			Item: q.Item, Change: change, IfVersion: q.IfVersion, Kind: q.Kind,
			Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason), RequestID: q.RequestID})
	})
}

// errStockMoves means that the obstacle to a change is gone.
var errStockMoves = errors.New("stock has changed meanwhile")

// stockNotMoved finds out why the statement had no effect: the request was executed before, or something prevented it. It
// reads the movement last, so that it sees the one that changed the item.
func (e *Engine) stockNotMoved(ctx context.Context, q *StockChange) (orders.Stock, error) {
	now, err := e.Orders.StockOf(ctx, q.Item)
	if err != nil && !errors.Is(err, orders.ErrNotFound) {
		return orders.Stock{}, err
	}
	seen, err := orders.Read(ctx, e.Orders, e.query.StockMovementByRequest,
		db.StockMovementByRequestParams{Item: q.Item, RequestID: q.RequestID, Actor: q.Actor})
	switch {
	case err == nil:
		if err := q.asksFor(&seen); err != nil {
			return orders.Stock{}, err
		}
		return e.Orders.StockOf(ctx, q.Item)
	case !errors.Is(err, pgx.ErrNoRows):
		return orders.Stock{}, orders.Unavailable("read stock movement", err)
	}
	return orders.Stock{}, q.refusal(now)
}

// asksFor returns nil if a movement matches the request, and *orders.KeyReused otherwise. Texts that were erased are not
// compared.
func (q *StockChange) asksFor(m *db.StockMovement) error {
	refusal := &orders.KeyReused{Verb: m.Kind != q.Kind}
	note := func(differs bool, member string) {
		if differs {
			refusal.Members = append(refusal.Members, member)
		}
	}
	note(or(m.Reason) != q.Reason && !orders.Pseudonym(or(m.Reason)), "reason")
	note(or(m.OnBehalfOf) != q.OnBehalfOf && !orders.Pseudonym(or(m.OnBehalfOf)), "onBehalfOf")
	if !refusal.Verb {
		note(q.Kind == StockSet && m.OnHand != q.Units, "onHand")
		note(q.Kind == StockAdjustment && m.Change != q.Units, "change")
	}
	if refusal.Verb || len(refusal.Members) > 0 {
		return refusal
	}
	return nil
}

// refusal is the error that prevents the change. An item that does not exist has version 0 and no units.
func (q *StockChange) refusal(now orders.Stock) error {
	pointer, onHand := "/onHand", q.Units
	if q.Kind == StockAdjustment {
		pointer, onHand = "/change", q.Units+now.OnHand
	}
	switch {
	case q.IfVersion != nil && *q.IfVersion != now.Version:
		return orders.ErrPrecondition
	case onHand < now.Reserved:
		return &orders.StockTooLow{Item: now, Pointer: pointer}
	case onHand > orders.StockMost:
		return orders.ErrStockTooHigh
	}
	return errStockMoves
}
