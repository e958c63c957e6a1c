package engine

import (
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
)

// gate decides whether an order that is pending may start. It may wait for a time, then
// for a person, then for a concurrency permit, in this order. It returns true when the order starts;
// otherwise somebody else has the run.
func (e *Engine) gate(r *run, p *policy.Policy) bool {
	o := &r.order
	switch {
	case orders.Stopping(o):
		return true // the move it starts with cancels it
	case o.StartAt != nil && o.StartAt.After(e.now()):
		r.wait = fsm.HoldScheduled
	case o.ApprovedAt == nil && (o.ApprovalUntil != nil || approvalOf(p, o) != nil):
		if o.ApprovalUntil != nil && !o.ApprovalUntil.After(e.now()) {
			e.approvalTimedOut(r, p)
			return false
		}
		r.wait = fsm.HoldApproval
	case o.ConcurrencyKey != nil && o.PermitAt == nil:
		r.wait = fsm.HoldQueued
	default:
		return true
	}
	e.waits.Add(r)
	return false
}

// approvalOf is the rule of the policy that wants a person to look at the order; nil: there is none, or no policy.
func approvalOf(p *policy.Policy, o *orders.Order) *policy.Approval {
	if p == nil {
		return nil
	}
	rule, _ := p.ApprovalOf(policy.Order{Amount: o.Amount, Currency: o.Currency, Item: o.Item, CustomerID: or(o.CustomerID)})
	return rule
}

// wantsAnother reports whether somebody else must approve the order, because the actor has submitted it. Who submitted an order of
// an open service is not known.
func (e *Engine) wantsAnother(o *orders.Order, actor string) (bool, error) {
	if o.SubmittedBy == nil || *o.SubmittedBy != actor {
		return false, nil
	}
	p, known := e.policies.byVersion(o.Policy)
	if !known {
		return false, orders.ErrUnavailable
	}
	rule := approvalOf(p, o)
	return rule != nil && rule.ByAnother, nil
}

// approvalTerms are why an order waits for an approval, if the rule says more than that it does, and how long; 0: as long as it takes.
func (e *Engine) approvalTerms(o *orders.Order) (reason string, atMost time.Duration) {
	p, _ := e.policies.byVersion(o.Policy)
	rule := approvalOf(p, o)
	if rule == nil {
		return "", 0
	}
	return approvalReason(rule, o), rule.Timeout
}

// approvalReason tells that whoever submitted the order may not approve it. Empty: there is nobody who may not.
func approvalReason(rule *policy.Approval, o *orders.Order) string {
	if rule == nil || !rule.ByAnother || o.SubmittedBy == nil {
		return ""
	}
	return fsm.AnotherApprover + ": the policy wants somebody else than who submitted the order"
}

// approvalTimedOut goes on, or back, as the policy says.
func (e *Engine) approvalTimedOut(r *run, p *policy.Policy) {
	o := &r.order
	rule := approvalOf(p, o)
	rows, err := e.query.ApprovalTimedOut(e.ctx, db.ApprovalTimedOutParams{
		OrderNo: o.OrderNo, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Approves: rule != nil && rule.OnTimeout == policy.ApprovalApprove})
	if err != nil {
		e.failed("end the wait for an approval", err, []*run{r}, e.later)
		return
	}
	if len(rows) == 1 {
		r.vainTries = 0
	}
	e.readBack([]*run{r}) // the row says how it goes on
}
