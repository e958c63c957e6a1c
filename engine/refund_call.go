package engine

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// refundCall is a call for a refund that this process has claimed: to refund, or to look up.
type refundCall struct {
	row       db.RefundsClaimRow
	how       *policy.Step
	exec      provider.Executor
	operation provider.Operation
	number    int32     // of the call; 0: none was made
	asked     time.Time // when it was decided on, on the database's clock
	result    provider.Result
}

// claimRefunds claims refunds that are due.
func (e *Engine) claimRefunds(most int32) (calls []func()) {
	rows, err := e.query.RefundsClaim(e.ctx, db.RefundsClaimParams{Most: most, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		e.log.Warn("look for refunds", "error", err)
	}
	for _, row := range rows {
		calls = append(calls, func() { e.makeRefund(&refundCall{row: row}) })
	}
	return calls
}

// makeRefund makes the next call of a refund, and commits what came of it.
func (e *Engine) makeRefund(c *refundCall) {
	c.result = e.callRefund(c)
	outcome, answer := namedResult(c.result)
	if a, ok := c.result.(attention); ok {
		answer.Code, answer.Detail = orders.RefusedUnknown, a.reason
		if c.row.Code != orders.RefusedUnknown {
			e.log.Error("a refund must be settled by a person", "order_id", c.row.Order.OrderID, "refund", c.row.Number, "reason", a.reason)
		}
	}
	state := c.state()
	err := e.query.RefundFinish(e.ctx, db.RefundFinishParams{
		OrderNo: c.row.Order.OrderNo, Generation: c.row.Order.Generation, Number: c.row.Number, Claims: c.row.Claims, Call: c.number,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail, Ref: answer.Reference,
		State: state, Settled: c.settled(state), Unsent: c.unsent(state), Delay: c.delay().Seconds()})
	if err != nil {
		e.log.Warn("keep what came of a refund", "order_id", c.row.Order.OrderID, "refund", c.row.Number, "error", err)
	}
}

// callRefund makes the call, if there is one to be made: where it was charged, and not by a key that may be forgotten.
func (e *Engine) callRefund(c *refundCall) provider.Result {
	c.asked = e.now()
	p, runs := e.policies.byVersion(c.row.Order.Policy)
	if !runs || p == nil || !p.Charge.Executor.Remote() {
		return provider.Retry{Code: "policy_unusable"}
	}
	pool := e.callPool(*c.row.Order.Policy, fsm.Charge, p)
	if pool.exec == nil {
		return provider.Retry{Code: "policy_unusable", Detail: pool.unusable.Error()}
	}
	c.how, c.exec, c.operation = pool.cfg, pool.exec, provider.Refund
	if _, looks := c.exec.(provider.Looker); looks && (c.row.State != orders.RefundPending || c.keyOld(c.asked)) {
		c.operation = lookup
	}
	if c.expired(c.asked) {
		return attention{reason: outcomeUnknown}
	}
	ctx, cancel := context.WithTimeout(e.ctx, c.how.Timeout)
	defer cancel()
	return e.performRefund(ctx, c)
}

// performRefund commits the call and makes it.
func (e *Engine) performRefund(ctx context.Context, c *refundCall) provider.Result {
	request, err := e.refundRequest(ctx, &c.row)
	began := call{asked: time.Now()}
	var begun []db.RefundBeginRow
	if err == nil {
		begun, err = e.query.RefundBegin(ctx, db.RefundBeginParams{OrderNo: c.row.Order.OrderNo, Generation: c.row.Order.Generation,
			Number: c.row.Number, Claims: c.row.Claims, Fence: c.row.Order.Fence, Policy: c.row.Order.Policy, Operation: string(c.operation),
			LeaseSeconds: (c.how.Timeout + leaseMargin).Seconds()})
	}
	switch {
	case err != nil: // it may be committed: then the next claim finds it in doubt
		return provider.Retry{Code: "database_unavailable", Detail: err.Error()}
	case len(begun) == 0:
		return provider.Retry{Code: "overtaken", Detail: "the refund was settled or claimed meanwhile"}
	}
	c.number, request.Number = begun[0].Call, begun[0].Call
	switch {
	case began.stoodStill():
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	case c.expired(begun[0].StartedAt):
		return attention{reason: outcomeUnknown}
	}
	made := time.Now()
	result := c.send(ctx, request)
	e.noteCall(&answeredCall{c.row.Order.OrderID, "", fsm.Charge, c.operation, c.number, c.row.Order.Fence, result, time.Since(made)})
	return result
}

// send asks for the refund, or what became of it. That the provider has not seen a key that it may have forgotten says nothing.
func (c *refundCall) send(ctx context.Context, request *provider.Call) provider.Result {
	if c.operation != lookup {
		return c.exec.Refund(ctx, request)
	}
	result := c.exec.(provider.Looker).Lookup(ctx, request)
	if _, unseen := result.(provider.Retry); unseen && c.keyForgotten(request.Now()) {
		return attention{reason: outcomeUnknown}
	}
	return result
}

func (e *Engine) refundRequest(ctx context.Context, row *db.RefundsClaimRow) (*provider.Call, error) {
	request, err := e.requestFor(ctx, &row.Order, fsm.Charge, row.Order.Generation)
	if err != nil {
		return nil, err
	}
	request.Amount, request.Reference = row.Amount, or(row.Order.ChargeReference)
	request.RefundID, request.Reason, request.RefundReference = row.RequestID, row.Reason, row.Reference
	return request, nil
}

// expired reports whether the refund would be sent again by a key that the provider may have forgotten, and so maybe done
// twice.
func (c *refundCall) expired(now time.Time) bool {
	return c.operation == provider.Refund && c.keyForgotten(now)
}

// keyForgotten: Stripe finds refunds by what is written on them, however old their keys are.
func (c *refundCall) keyForgotten(now time.Time) bool {
	return c.how.Executor != policy.Stripe && c.keyOld(now)
}

// keyOld: a key that was sent so long ago may do the refund again.
func (c *refundCall) keyOld(now time.Time) bool {
	return c.row.SentAt != nil && now.Sub(*c.row.SentAt) > c.how.KeyRetention-retentionMargin
}
