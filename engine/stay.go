package engine

import (
	"context"
	"math/rand/v2"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
)

// stay commits answers that leave orders in their state: most are held.
func (e *Engine) stay(key recordKey, set []*run) {
	results := make(map[int64]stay, len(set))
	for _, r := range set {
		results[r.no()] = judge{r.attempt.lane.cfg, r.attempt, &r.order, e.now(), rand.Float64()}.decide()
	}
	move := func(ctx context.Context, q *db.Queries, s ledger.Set) ([]ledger.Moved, error) {
		return ledger.Suspend(ctx, q, ledger.Suspensions{Set: s, Of: staysOf(s.OrderNos, results), Consumes: key.consumes})
	}
	e.moveAlike(key.state, mover{move: move, outcome: stays, busy: e.later, moved: func(runs []*run) { e.stayed(runs, results) }}, set)
}

func staysOf(orderNos []int64, results map[int64]stay) []ledger.Suspension {
	out := make([]ledger.Suspension, len(orderNos))
	for i, no := range orderNos {
		s := results[no]
		out[i] = ledger.Suspension{Hold: s.hold, Reason: s.reason, Delay: s.delay, Counts: s.counts, Cleared: s.cleared,
			Outcome: s.outcome, Code: s.code, Detail: s.detail, Reference: s.ref, Action: string(s.action)}
	}
	return out
}

// stayed tells the callers of held orders and drives the others on.
func (e *Engine) stayed(runs []*run, results map[int64]stay) {
	var held, on []*run
	for _, r := range runs {
		s := results[r.no()]
		if s.hold == "" {
			if s.outcome == "done" { // the key is void; after any other result an order goes on only to stop
				r.voids = r.voids[min(1, len(r.voids)):]
			}
			if s.cleared {
				r.order.InDoubtSince = nil
			}
			r.attempt = nil
			on = append(on, r)
			continue
		}
		if s.hold == fsm.HoldAttention {
			e.Stats.Held.Add(1)
			e.log.Warn("order held", "order_id", r.orderID, "status", r.status(), "reason", s.reason)
		}
		r.order.Hold, r.attempt = &s.hold, nil
		held = append(held, r)
	}
	e.finish(nil, held...)
	e.drive(on)
}
