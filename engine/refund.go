package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider/stripe"
)

// Refund is what is asked to be given back of a completed order.
type Refund struct {
	Amount  *decimal.Decimal // nil: all that is left
	Restock int32            // units to be put back into stock
}

// amountOf is what is to be given back of an order.
func (r *Refund) amountOf(o *orders.Order) decimal.Decimal {
	if r.Amount == nil {
		return orders.Refundable(o)
	}
	return *r.Amount
}

// aboutRefund: a refund is asked for, or settled.
func (q *Request) aboutRefund() bool {
	return q.Refund != nil || q.Settle != nil && q.Settle.Refund != nil
}

// judgeRefund says whether a refund can be asked for, or settled. The order stays as it is.
func (e *Engine) judgeRefund(o *orders.Order, q *Request) (*change, error) {
	code := e.refundRefusal(o, q)
	if code != "" {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return sameAs(o), nil
}

func (e *Engine) refundRefusal(o *orders.Order, q *Request) string {
	if q.Settle != nil {
		open := func(r orders.AskedRefund) bool { return r.Number == *q.Settle.Refund && !r.Settled() }
		if !slices.ContainsFunc(orders.Refunds(o), open) {
			return orders.RefusedNoRefund
		}
		return ""
	}
	p, known := e.policies.byVersion(o.Policy)
	amount := q.Refund.amountOf(o)
	switch {
	case o.Status != fsm.Completed:
		return orders.RefusedState
	case amount.Cmp(orders.Refundable(o)) > 0 || !amount.IsPos():
		return orders.RefusedRefundTooLarge
	case q.Refund.Restock > orders.Restockable(o, !known || !p.Step(fsm.Reserve).Executor.Remote()):
		return orders.RefusedRestockTooLarge
	case known && p.Step(fsm.Charge).Executor == policy.HTTP && p.Step(fsm.Charge).RefundURL == "":
		return orders.RefusedNoRefundURL
	}
	return ""
}

// refundPoll is how often a caller who waits for a refund looks for its end, at most.
const refundPoll = 250 * time.Millisecond

// followRefund waits for the end of the refund that was asked for or settled, as long as the caller does. Whichever
// replica makes its call, the end is in the database.
func (e *Engine) followRefund(ctx context.Context, q *Request) (orders.Order, error) {
	for try := 0; ; try++ {
		order, err := e.readFor(ctx, q.OrderID)
		if err != nil || q.Async || ctx.Err() != nil || !q.refundOpen(&order) || e.stopping.Load() {
			return order, err
		}
		db.Sleep(ctx, min(5*time.Millisecond<<min(try, 6), refundPoll))
	}
}

// readFor reads an order for a caller who may have no time left, but has not gone.
func (e *Engine) readFor(ctx context.Context, orderID string) (orders.Order, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled
	}
	reading, cancel := answering(ctx)
	defer cancel()
	return e.Orders.GetDurable(reading, orderID)
}

// refundOpen reports whether something is still to come of the refund that this is about.
func (q *Request) refundOpen(o *orders.Order) bool {
	return slices.ContainsFunc(orders.Refunds(o), func(r orders.AskedRefund) bool {
		is := q.Refund != nil && r.RequestID == q.RequestID || q.Settle != nil && r.Number == *q.Settle.Refund
		return is && !r.Settled()
	})
}

// heedRefund has a refund looked up at once, if the event is signed for the account that the order was charged at.
func (e *Engine) heedRefund(ctx context.Context, o *orders.Order, hint stripe.Hint, secret policy.Secret) error {
	p, known := e.policies.byVersion(o.Policy)
	if !known {
		return orders.ErrUnavailable // of a refund that is done nobody else tells: it is to be sent again
	}
	if p == nil || p.Charge.WebhookSecret != secret || o.Generation != hint.Generation {
		return nil
	}
	found, err := e.query.RefundHint(ctx, db.RefundHintParams{OrderNo: o.OrderNo, Generation: hint.Generation, RequestID: hint.RefundID,
		Executor: string(policy.Stripe)})
	if len(found) > 0 {
		e.refunds.nudge()
	}
	return orders.Unavailable("heed an event of a refund", err)
}
