package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// byRoute sets the routes of new orders, and groups the orders by them.
func (e *core) byRoute(p *policy.Policy, runs []*run) [][]*run {
	switch {
	case len(runs) == 0: // all of them were short of stock
		return nil
	case len(p.Routes) == 0:
		return [][]*run{runs}
	}
	groups := map[string][]*run{}
	for _, r := range runs {
		in := &r.input
		route := p.RouteOf(policy.Order{Amount: in.Amount, Currency: cmp.Or(in.Currency, e.cfg.Currency),
			PaymentMethod: in.PaymentMethod, Metadata: in.Metadata})
		r.order.Route = &route
		groups[route] = append(groups[route], r)
	}
	return slices.Collect(maps.Values(groups))
}

// switchPolicy moves an order to the active policy, unless a step that was done under the pinned one, or may have been,
// could then not be undone.
func (e *Engine) switchPolicy(ctx context.Context, o *orders.Order, c *change) (err error) {
	version, active := e.policies.active()
	if version != nil && active == nil {
		return orders.ErrUnavailable // this process has not loaded the policy, or can't run it
	}
	pinned, known := e.policies.byVersion(o.Policy)
	refused := !known || o.Status == fsm.Completed || needsPinned(o, pinned, active)
	if !refused && !active.Charge.Executor.Remote() {
		if refused, err = e.hasKeysToVoid(ctx, o); err != nil {
			return err
		}
	}
	if refused {
		return &orders.NotApplicable{Verb: orders.Retry, Code: orders.RefusedPolicySwitch, Order: *o}
	}
	c.policy = version
	return nil
}

// reroute chooses the route again for an order that starts over, or that continues under another policy before it was
// charged. An order that was charged, or may have been, keeps its route.
func (e *Engine) reroute(o *orders.Order, q *Request, c *change) error {
	if q.Verb != orders.Retry || o.Status != fsm.Failed && (or(c.policy) == or(o.Policy) || isCharged(o) || o.InDoubtSince != nil) {
		return nil
	}
	p, known := e.policies.byVersion(c.policy)
	if !known {
		return orders.ErrUnavailable
	}
	of := policyOrder(o)
	of.PaymentMethod = cmp.Or(q.PaymentMethod, of.PaymentMethod)
	c.route = db.Optional(p.RouteOf(of))
	return nil
}

// nextRoute is the route on which a refused charge begins again, or empty. Only a refusal of the provider that leaves
// nothing in doubt leads to another one: an earlier call with the same key could still take effect.
func nextRoute(c *call, o *orders.Order) string {
	if c.step != fsm.Charge || c.doubted || c.uncalled || c.source == byOperator || o.Route == nil || orders.Stopping(o) || c.pool.policy == nil {
		return ""
	}
	_, answer := namedResult(c.result)
	return c.pool.policy.NextRoute(*o.Route, answer.Code, policyOrder(o))
}

// fallBack begins refused charges again on their next route.
func (e *remote) fallBack(key resultKey, runs []*run) {
	results := make(map[int64]ledger.Answer, len(runs))
	for _, r := range runs {
		_, results[r.no()] = namedResult(r.call.result)
	}
	statement := func(ctx context.Context, q *db.Queries, s ledger.Batch) ([]ledger.Moved, error) {
		return ledger.FallBack(ctx, q, ledger.Fallbacks{Batch: s, Route: key.next, Consumes: key.consumes, Of: results})
	}
	for _, r := range e.move(mover{statement: statement, outcome: fallsBack, ifLocked: toRetry}, runs) {
		o := &r.order
		o.Generation, o.Route = o.Generation+1, &key.next
		o.Retries, o.RetryWindowStartedAt, o.InDoubtSince, o.Action = nil, nil, nil, nil
		r.call, r.preflight = nil, nil
	}
}
