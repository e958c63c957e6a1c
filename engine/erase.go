package engine

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// Erasure is a request to erase a customer. Only CustomerID may name the customer, because the others are kept.
type Erasure struct {
	CustomerID string
	Actor      string // the authenticated principal. Empty: orders.ActorAnonymous
	OnBehalfOf string // as stated by the actor; may be empty
	Reason     string
	RequestID  string // repeating a request with the same id continues it, or has no further effect
}

// eraseMost is the maximum number of orders in a batch: a short transaction.
const eraseMost = 200

// EraseCustomer replaces what is stored about a customer by a pseudonym, in batches, and returns the record of it. If it
// does not return, some orders may be erased; the same request continues. Errors: *orders.NotFound if the customer has
// no orders, *orders.OrdersOpen, orders.ErrKeyReused, orders.ErrUnavailable.
func (e *Engine) EraseCustomer(ctx context.Context, q Erasure) (none orders.Erasure, err error) {
	params := db.CustomerEraseParams{CustomerID: q.CustomerID, Actor: cmp.Or(q.Actor, orders.ActorAnonymous),
		OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: q.Reason, RequestID: q.RequestID, Most: eraseMost}
	batch := func(ctx context.Context) (db.CustomerEraseRow, error) {
		return detached(ctx, &e.core, func(ctx context.Context) (db.CustomerEraseRow, error) { return e.query.CustomerErase(ctx, params) })
	}
	for {
		r, err := pg.Repeat(ctx, e.ctx, batch)
		switch {
		case errors.Is(err, context.Canceled) && ctx.Err() != nil:
			return none, context.Canceled // the caller has gone
		case err != nil:
			return none, orders.Unavailable("erase customer", err)
		case len(r.Open) > 0:
			return none, &orders.OrdersOpen{OrderIDs: r.Open}
		case r.Reused:
			return none, &orders.KeyReused{}
		case r.Erasure == 0:
			return none, &orders.NotFound{What: "customer"}
		case r.Finished:
			rows, err := e.Orders.Erasures(ctx, r.Erasure+1, 1)
			if err != nil {
				return none, err
			}
			return rows[0], nil
		case e.stopping.Load():
			return none, orders.ErrStopping
		}
	}
}

// ProviderOf is the executor and address of a step under a policy, for people; empty: the policy is not known.
func (e *Engine) ProviderOf(version int32, step fsm.Step, route string) string {
	p, known := e.policies.byVersion(&version)
	if !known || p == nil {
		return ""
	}
	how := p.Step(step, route)
	return strings.TrimSpace(string(how.Executor) + " " + how.URL)
}
