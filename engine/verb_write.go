package engine

import (
	"bytes"
	"cmp"
	"context"
	"math"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
)

// change is what a verb makes of the row of an order, which is written as a whole.
type change struct {
	hold, holdReason, stopRequested, failureCode *string

	policy   *int32
	approves bool
	renews   bool // the window of retries
	next     string
}

// What becomes of an order after a verb.
const (
	nextSame    = "same"    // its driver, or its hold, goes on
	nextClaimed = "claimed" // this process drives it
	nextDue     = "due"     // another process does: this one can't run its policy
	nextRests   = "rests"   // nobody does before somebody acts
)

// sameAs changes nothing but the history.
func sameAs(o *orders.Order) *change {
	return &change{hold: o.Hold, holdReason: o.HoldReason, stopRequested: o.StopRequested, failureCode: o.FailureCode,
		policy: o.Policy, next: nextSame}
}

// changeOf is what a verb makes of an order that it applies to.
func changeOf(row *orders.Order, q *Request) *change {
	c := sameAs(row)
	switch q.Verb {
	case orders.Cancel, orders.Reject:
		if row.StopRequested == nil || orders.Pausing(row) {
			c.stopRequested = new(string(orders.Cancel))
		}
		if q.Verb == orders.Reject {
			c.failureCode = new("rejected")
		}
		if row.Hold != nil {
			c.renews = true
			c.goesOn()
		}
	case orders.Pause:
		if row.Hold == nil {
			c.stopRequested = new(string(orders.Pause)) // its driver holds it before the next step
		} else {
			c.hold, c.holdReason, c.next = new(fsm.HoldPaused), nil, nextRests
		}
	case orders.Resume:
		c.unpause()
		if orders.HeldFor(row, fsm.HoldPaused) {
			c.goesOn()
		}
	case orders.Retry:
		c.unpause()
		c.renews = true
		c.goesOn()
	case orders.Approve:
		c.unpause()
		c.approves = true
		c.goesOn()
	case orders.StepResult:
		if !orders.HeldFor(row, fsm.HoldPaused) { // else the answer waits for the end of the pause
			c.goesOn()
		}
	case orders.Refund: // it has a judge of its own
	}
	return c
}

func (c *change) unpause() {
	if c.stopRequested != nil && *c.stopRequested == string(orders.Pause) {
		c.stopRequested = nil
	}
}

// goesOn takes the order out of its hold. write says who drives it.
func (c *change) goesOn() {
	c.hold, c.holdReason, c.next = nil, nil, nextClaimed
}

// write sends the statement of a verb, and takes up the order if it is to go on. False
// without an error: the order has changed since it was read, and nothing was written.
func (e *Engine) write(ctx context.Context, o *orders.Order, q *Request, c *change) (bool, error) {
	if _, runs := e.policies.byVersion(c.policy); c.next == nextClaimed && !runs {
		c.next = nextDue
	}
	written, err := e.askUntilKnown(ctx, o, q, c)
	switch fault := db.FaultOf(err); {
	case fault == db.None && len(written) == 0, fault == db.Again:
		return false, nil
	case fault != db.None:
		return false, orders.Unavailable(string(q.Verb)+" order", err)
	}
	if hold := written[0].Hold; hold != nil && or(o.Hold) != *hold {
		e.held(*hold, 1)
	}
	if q.aboutRefund() {
		e.refunds.nudge()
	} else if written[0].Hold == nil && e.driveClaimedFor(q.HTTPRequestID, written) > 0 {
		e.watches.add(nil) // a caller of ours may be watching it
	}
	return true, nil
}

// settledCode is why a step is not done, where the person who said so gave no code.
const settledCode = "step_result"

// askUntilKnown sends the statement until it has a verdict. It compares seq, so of all tries one counts at most; when
// the last one finds another seq, an earlier one may have raised it. After the first try whoever asked may go: what was sent has to
// be found out.
func (e *Engine) askUntilKnown(ctx context.Context, o *orders.Order, q *Request, c *change) ([]orders.Order, error) {
	written, err := e.ask(ctx, o, q, c)
	if db.FaultOf(err) != db.Unknown {
		return written, err
	}
	for try := 0; !db.SchemaMismatch(err) && e.ctx.Err() == nil; try++ {
		if fault := db.FaultOf(err); fault != db.Unknown && fault != db.Again {
			break
		}
		e.unknown(string(q.Verb)+" order", err)
		e.backOff(try)
		if written, err = e.ask(e.ctx, o, q, c); err == nil && len(written) == 0 {
			return e.asked(e.ctx, o, q)
		}
	}
	return written, err
}

func (e *Engine) ask(ctx context.Context, o *orders.Order, q *Request, c *change) ([]orders.Order, error) {
	switch {
	case q.aboutLateUndo():
		rows, err := e.query.LateUndoSettle(ctx, db.LateUndoSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Generation: *q.Settle.Generation, Step: string(q.Settle.Step),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.Verb == orders.Refund:
		rows, err := e.query.RefundAsk(ctx, db.RefundAskParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Amount: q.Refund.amountOf(o), Restock: db.Optional(max(q.Refund.Restock, 0)),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.aboutRefund():
		rows, err := e.query.RefundSettle(ctx, db.RefundSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Number: *q.Settle.Refund, Outcome: q.Settle.Outcome,
			Code: cmp.Or(q.Settle.Code, settledCode), Detail: q.Settle.Detail, Ref: q.Settle.Reference,
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.Verb == orders.StepResult:
		code := q.Settle.Code
		if q.Settle.Outcome != SettledDone {
			code = cmp.Or(code, settledCode)
		}
		rows, err := e.query.OrderSettle(ctx, db.OrderSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Hold: c.hold, Next: c.next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
			Step: string(q.Settle.Step), Operation: string(operationIn(o.Status)), Outcome: q.Settle.Outcome, Code: code, Detail: q.Settle.Detail, Ref: q.Settle.Reference,
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case o.Status == fsm.Failed:
		return e.redrive(ctx, db.OrderRedriveParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Policy: c.policy, Claims: c.next == nextClaimed, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint(),
			PaymentMethod: db.Optional(q.PaymentMethod), ReplacedPaymentMethod: replacedBy(o, q)})
	}
	rows, err := e.query.OrderVerb(ctx, db.OrderVerbParams{
		OrderNo: o.OrderNo, Seq: o.Seq, Hold: c.hold, HoldReason: c.holdReason, StopRequested: c.stopRequested, FailureCode: c.failureCode,
		Policy: c.policy, Approves: c.approves, Renews: c.renews, Next: c.next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
		Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
		RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
	return writtenOrders(rows), err
}

// replacedBy is the payment method of the order that a request replaces by another, empty where it has none; nil: it does not.
func replacedBy(o *orders.Order, q *Request) *string {
	if q.PaymentMethod == "" || q.PaymentMethod == or(o.PaymentMethod) {
		return nil
	}
	return new(or(o.PaymentMethod))
}

// asked looks whether a statement whose answer was lost was executed: then the row that it would have written to the
// history is there. No order without an error: another row is there, so it was not.
func (e *Engine) asked(ctx context.Context, o *orders.Order, q *Request) ([]orders.Order, error) {
	rows, err := untilKnown(e, "read history", func() ([]db.Transition, error) {
		return e.query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: o.OrderNo, After: o.Seq, Before: math.MaxInt32, Most: 1, Durable: true})
	})
	if err != nil || len(rows) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable) // the engine stops
	}
	t := &rows[0]
	if or(t.Verb) != string(q.Verb) || or(t.Actor) != q.Actor || or(t.OnBehalfOf) != q.OnBehalfOf || or(t.Reason) != q.Reason ||
		or(t.RequestID) != q.RequestID || !bytes.Equal(t.Fingerprint, q.fingerprint()) || (t.PaymentMethod == nil) != (replacedBy(o, q) == nil) {
		return nil, nil
	}
	found, err := e.readUntilKnown([]int64{o.OrderNo}, false)
	if err != nil || len(found) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable)
	}
	return found[:1], nil
}
