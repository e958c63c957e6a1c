package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider/stripe"
)

// Dispute is a reported fact about a dispute of a charge. It moves nothing.
type Dispute struct {
	Reference string          // the provider's name for the dispute
	State     string          // one of the states of orders.ReportedDispute
	Amount    decimal.Decimal // more than 0, in the currency of the order
	Charge    string          // the provider's name for the charge; may be empty
	At        *time.Time      // when it happened; nil: now
}

// Verb is the verb of the request that records it, which the history shows.
func (d *Dispute) Verb() orders.Verb { return orders.Verb("dispute_" + d.State) }

// recorded reports whether this state of the dispute is known; of no dispute, it is not. Errors: *orders.KeyReused if it has
// another amount there.
func (d *Dispute) recorded(o *orders.Order) (bool, error) {
	if d == nil {
		return false, nil
	}
	for _, known := range orders.Disputes(o) {
		if known.Reference != d.Reference || known.State != d.State {
			continue
		}
		if known.Amount.Cmp(d.Amount) != 0 {
			return false, &orders.KeyReused{Members: []string{"amount"}}
		}
		return true, nil
	}
	return false, nil
}

// judgeDispute accepts it for an order that was charged, whatever has become of it since.
func (q *Request) judgeDispute(o *orders.Order) (*change, error) {
	if o.ChargedAt == nil && o.Generation == 0 {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedState, Order: *o}
	}
	return sameAs(o), nil
}

// onDisputeEvent records a dispute that Stripe reports, if the event is signed for the account that charged the order.
// Stripe must repeat it if no order has this charge and an order is still being charged: it may be this order's.
func (e *Engine) onDisputeEvent(ctx context.Context, d *stripe.Dispute, secret policy.Secret) error {
	// Read first: what is charged by then has its reference, so nothing falls between the two reads.
	charging, err := orders.Read(ctx, e.Orders, e.query.ChargesUnderWay, d.At.Add(time.Second)) // Stripe's clock has seconds
	if err != nil {
		return orders.Unavailable("look for charges under way", err)
	}
	found, err := orders.Read(ctx, e.Orders, e.query.OrdersOfCharge, db.OrdersOfChargeParams{Reference: d.Intent, Executor: string(policy.Stripe)})
	if err != nil {
		return orders.Unavailable("find the order of a dispute", err)
	}
	if len(found) == 0 && charging {
		return orders.ErrUnavailable
	}
	for _, o := range found {
		if !e.cfg.Cell.Has(o.OrderID) {
			continue
		}
		p, known := e.policies.byVersion(o.Policy)
		amount, counted := d.AmountIn(o.Currency)
		switch {
		case !known:
			return orders.ErrUnavailable // so that Stripe repeats it
		case p == nil || !slices.ContainsFunc(p.Places(), func(at policy.Place) bool { return p.Step(at.Step, at.Route).WebhookSecret == secret }):
			continue
		case !counted:
			e.log.Warn("a dispute in another currency than its order was not recorded", "order_id", o.OrderID, "reference", d.Reference)
			continue
		}
		_, err := e.Do(ctx, Request{
			OrderID: o.OrderID, Verb: (&Dispute{State: d.State}).Verb(), Actor: orders.ActorSystem, Reason: d.Reason, Async: true,
			Dispute: &Dispute{Reference: d.Reference, State: d.State, Amount: amount, Charge: d.Charge, At: &d.At},
		})
		if _, differs := errors.AsType[*orders.KeyReused](err); err != nil && !differs {
			return err
		}
	}
	return nil
}
