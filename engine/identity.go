package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"pawl/fsm"
	"pawl/step"
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
	row, err := e.query.InstallationSecret(ctx)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	e.identity.Store(&identity{row.ID, row.CallbackSecret})
	return e.identity.Load(), nil
}

// callOf is what the executor is told of a run's attempt.
func (e *Engine) callOf(r *run, who *identity) *step.Call {
	o, a := &r.order.Order, r.attempt
	c := &step.Call{
		Installation: who.id, OrderID: o.OrderID, Step: a.step, Generation: a.generation,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod),
		Fence: o.Fence, Attempt: a.number,
	}
	if a.operation == step.Do {
		c.CallbackURL = e.cfg.PublicURL + "/api/callbacks/" + who.token(told{o.OrderNo, a.generation, a.step}, o.OrderID)
	}
	if a.generation == o.Generation {
		c.Reference = or(r.order.ChargeReference)
		if a.step == fsm.Reserve {
			c.Reference = or(r.order.ReserveReference)
		}
	}
	return c
}

func or(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
