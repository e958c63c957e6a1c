package httpapi

import (
	"context"
	"errors"

	"pawl/internal/access"
	"pawl/internal/orders"
)

// mayRead reports whether a principal may read an order: with the role submit alone, what it submitted itself, and what
// nobody knows the submitter of, because the service was open then.
func mayRead(p *access.Principal, o *orders.Order) bool {
	return p.Has(access.Read) || p.Has(access.Submit) && (o.SubmittedBy == nil || *o.SubmittedBy == p.Name)
}

// readable returns nil where the caller may read an order. Errors: orders.ErrNotFound for one that is not there and for
// one of somebody else alike, or those of reading it.
func (s *server) readable(ctx context.Context, orderID string) error {
	if !possible(orderID) {
		return &orders.NotFound{What: "order"}
	}
	p := principalOf(writerOf(ctx))
	if p.Has(access.Read) {
		return nil
	}
	o, err := s.engine.Orders.Get(ctx, orderID)
	if err == nil && !mayRead(p, &o) {
		return &orders.NotFound{What: "order", Name: orderID}
	}
	return err
}

// withheld is the error of an answer that would show an order which the principal may not read: one of
// somebody else, whether it is what was sent or not. For other answers it is their own.
func withheld(p *access.Principal, o *orders.Order, err error) error {
	if conflict, ok := errors.AsType[*orders.Conflict](err); ok {
		o = &conflict.Order
	} else if err != nil {
		return err
	}
	if mayRead(p, o) {
		return err
	}
	return newProblem("order_conflict", "Somebody else has submitted an order with this id.")
}
