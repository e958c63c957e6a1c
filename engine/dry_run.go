package engine

import (
	"cmp"
	"encoding/json"

	"pawl/fsm"
	"pawl/orders"
)

// would is the order as a verb would leave it, before anything follows from that. It keeps the seq at which it was judged.
func (e *Engine) would(o orders.Order, q *Request, c *change) orders.Order {
	switch {
	case c == nil || q.aboutLateUndo(): // nothing of the order
	case q.aboutRefund():
		refunds := e.wouldRefunds(&o, q)
		o.Refunds = new(int32(len(refunds)))
		o.RefundList, _ = json.Marshal(refunds) // our own type
	case o.Status == fsm.Failed:
		return startedAnew(o, c)
	default:
		o.Hold, o.HoldReason, o.StopRequested, o.FailureCode, o.Policy = c.hold, c.holdReason, c.stopRequested, c.failureCode, c.policy
	}
	return o
}

// startedAnew is a failed order that starts again, with what it has of its beginning.
func startedAnew(o orders.Order, c *change) orders.Order {
	return orders.Order{
		OrderNo: o.OrderNo, OrderID: o.OrderID, CreatedAt: o.CreatedAt, SubmittedBy: o.SubmittedBy, Seq: o.Seq,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: o.CustomerID, StartAt: o.StartAt, CompleteBy: o.CompleteBy, Calls: o.Calls,
		Status: fsm.Pending, Generation: o.Generation + 1, Policy: c.policy,
	}
}

// wouldRefunds are the refunds of an order after one more was asked for, or one was settled.
func (e *Engine) wouldRefunds(o *orders.Order, q *Request) []orders.AskedRefund {
	refunds := orders.Refunds(o)
	if asked := q.Refund; asked != nil {
		state := orders.RefundPending
		if p, known := e.policies.byVersion(o.Policy); known && !p.Step(fsm.Charge).Executor.Remote() {
			state = orders.RefundDone
		}
		return append(refunds, orders.AskedRefund{
			Number: int32(len(refunds)) + 1, State: state, Amount: asked.amountOf(o), Restock: asked.Restock,
			Reason: q.Reason, RequestID: q.RequestID, CreatedAt: e.now(),
		})
	}
	states := map[string]string{SettledDone: orders.RefundDone, SettledRefused: orders.RefundFailed, SettledNotDone: orders.RefundPending}
	for i := range refunds {
		if r := &refunds[i]; r.Number == *q.Settle.Refund {
			r.State, r.Reference = states[q.Settle.Outcome], cmp.Or(q.Settle.Reference, r.Reference)
			r.Code, r.Detail = q.Settle.Code, q.Settle.Detail
		}
	}
	return refunds
}
