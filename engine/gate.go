package engine

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// gate decides whether a pending order may start. It may have to wait for its start time, then for approval, then for a
// concurrency permit.
func (e *core) gate(r *run, p *policy.Policy) destination {
	o := &r.order
	switch {
	case orders.Stopping(o):
		return toMove // its first move cancels it
	case o.StartAt != nil && o.StartAt.After(e.now()):
		r.hold = &hold{code: fsm.HoldScheduled}
	case o.ApprovedAt == nil && (o.ApprovalUntil != nil || approvalOf(p, o) != nil):
		if o.ApprovalUntil != nil && !o.ApprovalUntil.After(e.now()) {
			return toApproval
		}
		r.hold = holdForApproval(p, o)
	case o.ConcurrencyKey != nil && o.PermitAt == nil:
		r.hold = &hold{code: fsm.HoldQueued}
	default:
		return toMove
	}
	return toHold
}

// approvalOf returns the rule of the policy that requires an approval of the order, or nil.
func approvalOf(p *policy.Policy, o *orders.Order) *policy.Approval {
	if p == nil {
		return nil
	}
	rule, _ := p.ApprovalOf(policyOrder(o))
	return rule
}

// holdForApproval is the hold of an order that needs approval, with the timeout of the rule.
func holdForApproval(p *policy.Policy, o *orders.Order) *hold {
	rule := approvalOf(p, o)
	return &hold{code: fsm.HoldApproval, reason: approvalReason(rule, o), atMost: or(rule).Timeout}
}

// approvalReason is the hold reason that excludes the submitter as approver. Empty: everyone with the role may approve.
func approvalReason(rule *policy.Approval, o *orders.Order) string {
	if rule == nil || !rule.ByAnother || o.SubmittedBy == nil {
		return ""
	}
	return fsm.AnotherApprover + ": the policy requires an approver other than the submitter of the order"
}

// wantsAnother reports whether another person must approve the order, because the actor, or the person it acts for,
// submitted it. Orders of an open service have no known submitter.
func (e *core) wantsAnother(o *orders.Order, q *Request) (bool, error) {
	if o.SubmittedBy == nil || *o.SubmittedBy != q.Actor && *o.SubmittedBy != q.OnBehalfOf {
		return false, nil
	}
	p, known := e.policies.byVersion(o.Policy)
	if !known {
		return false, orders.ErrUnavailable
	}
	rule := approvalOf(p, o)
	return rule != nil && rule.ByAnother, nil
}

// Approval returns the conditions of the rule for which an order waits, in words, and what happens when its wait times
// out: policy.ApprovalCancel or policy.ApprovalApprove. Empty: it does not wait, or this process does not know its policy.
func (e *Engine) Approval(o *orders.Order) (rule, timeout string) {
	p, known := e.policies.byVersion(o.Policy)
	if !known || !orders.HeldFor(o, fsm.HoldApproval) {
		return "", ""
	}
	r := approvalOf(p, o)
	if r != nil {
		rule = r.String()
	}
	return rule, onTimeout(r)
}

// onTimeout is what a rule says, or, if the rule is gone, policy.ApprovalCancel.
func onTimeout(rule *policy.Approval) string {
	return cmp.Or(or(rule).OnTimeout, policy.ApprovalCancel)
}

// endApproval applies the policy's onTimeout to orders that were not approved in time.
func (e *core) endApproval(runs []*run) []*run {
	for _, r := range runs {
		o := &r.order
		p, _ := e.policies.byVersion(o.Policy)
		rows, err := e.query.ApprovalTimedOut(e.ctx, db.ApprovalTimedOutParams{
			OrderNo: o.OrderNo, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Approves: onTimeout(approvalOf(p, o)) == policy.ApprovalApprove})
		if err != nil {
			e.failed("end the wait for an approval", err, []*run{r}, toRetry)
			continue
		}
		if len(rows) == 1 {
			r.vainTries = 0
		}
		r.next = toReadBack // the row shows the new state
	}
	return runs
}

// concurrencyLimiter limits how many orders with the same key run at a time. The permits in use are counted from the
// orders themselves, so no counter can drift. A grant compares and sets the version of the key's row, so two replicas
// never grant the same permit. When an order ends, ask is called for its key; the sweep finds what was missed.
type concurrencyLimiter struct {
	*core
	mu   sync.Mutex
	keys map[string]bool
	wake wake
}

func newConcurrencyLimiter(e *core) *concurrencyLimiter {
	return &concurrencyLimiter{core: e, keys: map[string]bool{}, wake: newWake()}
}

// ask reports that a permit of this key may be free, or that an order may be waiting for one.
func (l *concurrencyLimiter) ask(key string) {
	l.mu.Lock()
	l.keys[key] = true
	l.mu.Unlock()
	l.wake.nudge()
}

// askFor calls ask for the keys of orders that have ended or wait for a permit.
func (l *concurrencyLimiter) askFor(runs []*run) {
	for _, r := range runs {
		if key := r.order.ConcurrencyKey; key != nil && r.err == nil && (r.status().Final() || orders.HeldFor(&r.order, fsm.HoldQueued)) {
			l.ask(*key)
		}
	}
}

func (l *concurrencyLimiter) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := slices.Collect(maps.Keys(l.keys))
	clear(l.keys)
	return keys
}

// grants grants free permits until ctx ends, and yields the orders that got one.
func (l *concurrencyLimiter) grants(ctx context.Context) iter.Seq[[]orders.Order] {
	return func(yield func([]orders.Order) bool) {
		for l.wake.heard(ctx) {
			for _, key := range l.take() {
				if ctx.Err() == nil && !l.stopping.Load() && !yield(l.grant(key)) {
					return
				}
			}
		}
	}
}

// permitsAtOnce is the maximum number of permits that one statement grants.
const permitsAtOnce = 100

// grant gives the free permits of a key to the oldest waiting orders, and returns these.
func (l *concurrencyLimiter) grant(key string) []orders.Order {
	rows, err := l.query.ConcurrencyRead(l.ctx, db.ConcurrencyReadParams{Key: key, Most: permitsAtOnce})
	if err != nil {
		l.log.Warn("look for free concurrency permits", "key", key, "error", err)
		return nil // the sweep retries
	}
	next := l.nextPermitted(rows)
	if len(next) == 0 {
		return nil
	}
	granted, err := l.query.ConcurrencyGrant(l.ctx, db.ConcurrencyGrantParams{
		Key: key, Version: rows[0].Version, OrderNos: next, Owner: l.owner, LeaseSeconds: l.cfg.Lease.Seconds(),
	})
	if err != nil {
		l.unknown("give concurrency permits", err) // orders that got a permit have this owner, and are due when the lease ends
		return nil
	}
	if len(granted) < len(next) {
		l.ask(key) // another replica granted some meanwhile
	}
	return writtenOrders(granted)
}

// nextPermitted returns the orders that may start, each by the limit of its own policy. If the policy is not loaded
// here, the limit is 1, the lowest possible.
func (l *concurrencyLimiter) nextPermitted(rows []db.ConcurrencyReadRow) (orderNos []int64) {
	for _, row := range rows {
		limit := 1
		if p, _ := l.policies.byVersion(&row.Policy); p != nil && p.Concurrency != nil {
			limit = p.Concurrency.Limit
		}
		if int(row.UnderWay)+len(orderNos) >= limit {
			break
		}
		orderNos = append(orderNos, row.OrderNo)
	}
	return orderNos
}
