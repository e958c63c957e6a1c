package engine

import (
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

// gate decides whether an order that is pending may start. It may wait for a time, then
// for a person, then for a concurrency permit, in this order.
func (e *core) gate(r *run, p *policy.Policy) destination {
	o := &r.order
	switch {
	case orders.Stopping(o):
		return toMove // the move it starts with cancels it
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

// approvalOf returns the rule of the policy that asks for the approval of an order; nil: there is none, or no policy.
func approvalOf(p *policy.Policy, o *orders.Order) *policy.Approval {
	if p == nil {
		return nil
	}
	rule, _ := p.ApprovalOf(policy.Order{Amount: o.Amount, Currency: o.Currency, Item: o.Item, CustomerID: or(o.CustomerID)})
	return rule
}

// holdForApproval says why an order waits for an approval, if the rule says more than that it does, and how long.
func holdForApproval(p *policy.Policy, o *orders.Order) *hold {
	rule := approvalOf(p, o)
	return &hold{code: fsm.HoldApproval, reason: approvalReason(rule, o), atMost: or(rule).Timeout}
}

// approvalReason says that the submitter of the order may not approve it. Empty: anyone may who may approve orders.
func approvalReason(rule *policy.Approval, o *orders.Order) string {
	if rule == nil || !rule.ByAnother || o.SubmittedBy == nil {
		return ""
	}
	return fsm.AnotherApprover + ": the policy requires an approver other than the submitter of the order"
}

// wantsAnother reports whether someone else must approve the order, because the actor, or the person it acts for, has
// submitted it. The submitter of an order of an open service is not known.
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

// endApproval ends the wait of orders for an approval that did not come in time: they go on, or back, as the policy says.
func (e *core) endApproval(runs []*run) []*run {
	for _, r := range runs {
		o := &r.order
		p, _ := e.policies.byVersion(o.Policy)
		rule := approvalOf(p, o)
		rows, err := e.query.ApprovalTimedOut(e.ctx, db.ApprovalTimedOutParams{
			OrderNo: o.OrderNo, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Approves: rule != nil && rule.OnTimeout == policy.ApprovalApprove})
		if err != nil {
			e.failed("end the wait for an approval", err, []*run{r}, toRetry)
			continue
		}
		if len(rows) == 1 {
			r.vainTries = 0
		}
		r.next = toReadBack // the row says how it goes on
	}
	return runs
}

// concurrencyLimiter lets as many orders with one key run at a time as
// their limit allows. The permits in use are counted from the orders themselves, so no counter can
// drift. A grant compares and sets the version of the key's row, so two replicas never give the
// same permit twice. When an order ends and frees a permit, its key is asked for here; what is missed
// is found by the sweep.
type concurrencyLimiter struct {
	*core
	mu   sync.Mutex
	keys map[string]bool
	wake wake
}

func newConcurrencyLimiter(e *core) *concurrencyLimiter {
	return &concurrencyLimiter{core: e, keys: map[string]bool{}, wake: newWake()}
}

// ask says that a permit of this key may be free, or that an order may wait for one.
func (l *concurrencyLimiter) ask(key string) {
	l.mu.Lock()
	l.keys[key] = true
	l.mu.Unlock()
	l.wake.nudge()
}

// askFor asks for the keys of orders that have ended, or are held because they wait for a permit.
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

// grants gives free permits until ctx ends, and yields the orders that got one.
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

// permitsAtOnce is how many orders of one key are granted by one statement.
const permitsAtOnce = 100

// grant gives the free permits of a key to the orders that came first, and returns these.
func (l *concurrencyLimiter) grant(key string) []orders.Order {
	rows, err := l.query.ConcurrencyRead(l.ctx, db.ConcurrencyReadParams{Key: key, Most: permitsAtOnce})
	if err != nil {
		l.log.Warn("look for free concurrency permits", "key", key, "error", err)
		return nil // the sweep asks again
	}
	next := l.nextPermitted(rows)
	if len(next) == 0 {
		return nil
	}
	granted, err := l.query.ConcurrencyGrant(l.ctx, db.ConcurrencyGrantParams{
		Key: key, Version: rows[0].Version, OrderNos: next, Owner: l.owner, LeaseSeconds: l.cfg.Lease.Seconds(),
	})
	if err != nil {
		l.unknown("give concurrency permits", err) // orders that got a permit name us as owner, and come due when their lease ends
		return nil
	}
	if len(granted) < len(next) {
		l.ask(key) // another replica gave some meanwhile
	}
	return writtenOrders(granted)
}

// nextPermitted picks those that may start, each by the limit of its own policy. One whose policy is not known here
// starts alone: no policy has a lower limit.
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
