package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// identity is who we are to providers.
type identity struct {
	id     uuid.UUID
	secret []byte
}

// identify reads it once; it never changes.
func (e *Engine) identify(ctx context.Context) (*identity, error) {
	if known := e.identity.Load(); known != nil {
		return known, nil
	}
	row, err := orders.Read(ctx, e.Orders, func(ctx context.Context, _ struct{}) (db.InstallationSecretRow, error) {
		return e.query.InstallationSecret(ctx)
	}, struct{}{})
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	e.identity.Store(&identity{row.ID, row.CallbackSecret})
	return e.identity.Load(), nil
}

// callOf is what the executor is told of a run's call.
func (e *Engine) callOf(ctx context.Context, r *run) (*provider.Call, error) {
	who, err := e.identify(ctx)
	if err != nil {
		return nil, err
	}
	o, a := &r.order, r.call
	c := &provider.Call{
		Installation: who.id, OrderID: o.OrderID, Step: a.step, Generation: a.generation,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod),
		Fence: o.Fence, Number: a.number, Clock: e.now,
	}
	if a.operation == provider.Undo {
		c.Reference = a.undoReference
		return c, nil
	}
	c.CallbackURL = e.cfg.PublicURL + "/api/callbacks/" + who.token(callbackTarget{o.OrderNo, a.generation, a.step}, o.OrderID)
	c.Reference = or(r.order.ChargeReference)
	if a.step == fsm.Reserve {
		c.Reference = or(r.order.ReserveReference)
	}
	if c.Reference == "" && r.preflight != nil && a.pool.cfg.Executor == policy.Stripe { // to others a do is sent without one
		c.Reference = r.preflight.own.reference
	}
	return c, nil
}
