package engine

import (
	"context"
	"fmt"
	"time"

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
	row, err := db.Repeat(ctx, e.ctx, e.query.InstallationSecret)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	e.identity.Store(&identity{row.ID, row.CallbackSecret})
	return e.identity.Load(), nil
}

// readIdentity reads it at the start, so that no forged token costs a read later.
func (e *Engine) readIdentity() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	if _, err := e.identify(ctx); err != nil {
		e.log.Warn("read who we are to providers", "error", err)
	}
}

// callOf is what the executor is told of a run's call.
func (e *Engine) callOf(ctx context.Context, r *run) (*provider.Call, error) {
	o, c := &r.order, r.call
	request, err := e.requestFor(ctx, o, c.step, c.generation)
	if err != nil {
		return nil, err
	}
	request.Number = c.number
	switch {
	case c.operation == provider.Undo:
		request.Reference = c.undoReference
		return request, nil
	case c.step == fsm.Reserve:
		request.Reference = or(o.ReserveReference)
	default:
		request.Reference = or(o.ChargeReference)
	}
	if request.Reference == "" && r.preflight != nil && c.pool.cfg.Executor == policy.Stripe { // to others a do is sent without one
		request.Reference = r.preflight.own.reference
	}
	return request, nil
}

// requestFor is what the executor is told of any call about a step of a generation of an order.
func (e *Engine) requestFor(ctx context.Context, o *orders.Order, of fsm.Step, generation int32) (*provider.Call, error) {
	who, err := e.identify(ctx)
	if err != nil {
		return nil, err
	}
	paymentMethod, err := e.paymentMethodOf(ctx, o, generation)
	if err != nil {
		return nil, err
	}
	target := newTarget(o.OrderNo, o.OrderID, generation, of)
	return &provider.Call{
		Installation: who.id, OrderID: o.OrderID, Step: of, Generation: generation,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: or(o.CustomerID), PaymentMethod: paymentMethod, Fence: o.Fence, Clock: e.now,
		CallbackURL: e.cfg.PublicURL + "/api/callbacks/" + who.token(target), Tokens: who.tokens(target),
	}, nil
}

// paymentMethodOf is what a generation of an order is charged with. A retry may have brought another one since, and
// providers compare what they are sent under the key of an earlier generation.
func (e *Engine) paymentMethodOf(ctx context.Context, o *orders.Order, generation int32) (string, error) {
	if generation >= o.Generation {
		return or(o.PaymentMethod), nil
	}
	return e.storedPaymentMethod(ctx, o.OrderNo, generation)
}

func (e *Engine) storedPaymentMethod(ctx context.Context, orderNo int64, generation int32) (string, error) {
	was, err := orders.Read(ctx, e.Orders, e.query.PaymentMethodOf, db.PaymentMethodOfParams{OrderNo: orderNo, Generation: generation})
	if err != nil {
		return "", orders.Unavailable("read payment method", err)
	}
	return was, nil
}
