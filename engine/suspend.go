package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
)

// suspend commits answers that leave orders in their state: most are held.
func (e *Engine) suspend(key resultKey, runs []*run) {
	results := make(map[int64]ledger.Suspension, len(runs))
	for _, r := range runs {
		results[r.no()] = undecided{r.call.pool.cfg, r.call, &r.order, e.now(), rand.Float64()}.decide()
	}
	statement := func(ctx context.Context, q *db.Queries, s ledger.Batch) ([]ledger.Moved, error) {
		return ledger.Suspend(ctx, q, ledger.Suspensions{Batch: s, Of: results, Consumes: key.consumes})
	}
	e.move(key.state, mover{statement: statement, outcome: suspends, busy: e.later, moved: func(moved []*run) { e.suspended(moved, results) }}, runs)
}

// suspended tells the callers of held orders and drives the others on.
func (e *Engine) suspended(runs []*run, results map[int64]ledger.Suspension) {
	var held, on []*run
	for _, r := range runs {
		s := results[r.no()]
		if s.Hold == "" {
			if r.preflight != nil {
				r.preflight.learn(r.call)
			}
			if s.Cleared {
				r.order.InDoubtSince = nil
			}
			r.call = nil
			on = append(on, r)
			continue
		}
		e.held(s.Hold, 1)
		if s.Hold == fsm.HoldAttention {
			e.log.Warn("order held", "order_id", r.orderID, "status", r.status(), "reason", s.Reason)
		}
		r.order.Hold, r.call = &s.Hold, nil
		held = append(held, r)
	}
	e.finish(nil, held...)
	e.drive(on)
}

// holdKey is what orders have in common that one statement holds without a result: before they start, paused, or
// because they can't be moved.
type holdKey struct {
	state        fsm.State
	fence        int64
	seq          int32
	hold, reason string
	approval     time.Duration // how long it is waited for; 0: as long as it takes, or as the row says
}

// holdWaiting is the flush of the queue of orders that are to wait before they go on.
func (e *Engine) holdWaiting(runs []*run) {
	for key, group := range groupBy(runs, e.holdKey) {
		e.hold(key, group)
	}
}

func (e *Engine) holdKey(r *run) holdKey {
	o := &r.order
	key := holdKey{state: o.Status, fence: o.Fence, seq: o.Seq, hold: r.wait}
	if orders.Pausing(o) {
		key.hold = fsm.HoldPaused
	}
	if key.hold == fsm.HoldApproval {
		key.reason, key.approval = e.approvalTerms(o)
	}
	return key
}

// giveUp takes an order out of the way that can't be moved: it waits for a person.
func (e *Engine) giveUp(r *run, why error) {
	o := &r.order
	e.log.Error("order can't be moved", "order_id", o.OrderID, "status", o.Status, "error", why)
	reason := strings.Replace(db.Describe(why), " ", ": ", 1) // orders are listed by what is before the colon
	e.hold(holdKey{state: o.Status, fence: o.Fence, seq: o.Seq, hold: fsm.HoldAttention, reason: reason}, []*run{r})
}

func (e *Engine) hold(key holdKey, runs []*run) {
	rows, err := e.query.OrdersHold(e.ctx, db.OrdersHoldParams{OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Hold: key.hold, HoldReason: key.reason, Seconds: key.approval.Seconds()})
	switch {
	case db.FaultOf(err) == db.Bad && key.hold != fsm.HoldAttention:
		e.split(runs, func(half []*run) { e.hold(key, half) }, func(r *run) { e.giveUp(r, err) })
		return
	case err != nil:
		e.failed("hold orders", err, runs, e.later)
		return
	}
	held, lost := divide(runs, func(r *run) bool {
		return slices.ContainsFunc(rows, func(row db.OrdersHoldRow) bool { return row.OrderNo == r.no() })
	})
	e.held(key.hold, len(held))
	for _, r := range held {
		r.complete, r.wait = false, ""
	}
	e.finish(nil, held...)
	if key.hold == fsm.HoldQueued {
		for _, r := range held {
			e.limiter.ask(*r.order.ConcurrencyKey)
		}
	}
	e.onCASMiss(lost)
}
