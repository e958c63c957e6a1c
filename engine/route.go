package engine

import (
	"slices"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
)

// special reports whether more than its state decides where an order goes.
func special(r *run) bool {
	o := &r.order
	return o.Policy != nil || o.Status == fsm.Pending || orders.Pausing(o)
}

// route sends runs of one state on their way and returns those that take the ledger's.
func (e *Engine) route(runs []*run) (ledger []*run) {
	for _, r := range runs {
		o := &r.order
		p, known := e.policies.of(o.Policy)
		switch {
		case !special(r):
			ledger = append(ledger, r)
		case r.attempt != nil && r.attempt.result != nil && r.attempt.stands(o):
			e.recordAfter(r)
		case orders.Pausing(o):
			e.waits.add(r)
		case !known:
			e.leaving.add(r)
		case o.Status == fsm.Pending:
			if e.gate(r, p) {
				ledger = append(ledger, r)
			}
		case p == nil:
			ledger = append(ledger, r)
		case p.Of(o.Status.Step()).Executor.Outside():
			e.lane(*o.Policy, o.Status.Step(), p).add(r)
		case o.Status == fsm.Confirming && p.Reserve.Executor.Outside():
			e.confirmBeside(r)
		default:
			ledger = append(ledger, r)
		}
	}
	return ledger
}

// recordAfter records an answer after all: somebody wrote to the order meanwhile. If that was a callback, it
// beats any result of the call except done.
func (e *Engine) recordAfter(r *run) {
	if !r.looked && slices.Contains([]fsm.Outcome{stays, fsm.Refused}, outcomeFor(r.attempt, &r.order)) {
		e.inbox.add(r)
		return
	}
	e.records.add(r)
}

// confirmBeside confirms in the database what was reserved elsewhere: there is no stock
// of ours to sell.
func (e *Engine) confirmBeside(r *run) {
	o := &r.order
	p, _ := e.policies.of(o.Policy)
	r.attempt = &attempt{lane: e.lane(*o.Policy, fsm.Confirm, p), state: o.Status, generation: o.Generation,
		step: fsm.Confirm, result: beside{}, uncalled: true}
	if orders.Stopping(o) {
		r.attempt.result = stop{}
	}
	e.records.add(r)
}

// leaveSet hands back orders that this process does not go on with.
func (e *Engine) leaveSet(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	if _, err := e.query.LeasesRelease(ctx, db.LeasesReleaseParams{OrderNos: numbersOf(set), Owner: e.owner}); err != nil {
		e.log.Warn("release leases", "orders", len(set), "error", err)
	}
	e.finish(orders.ErrStopping, set...)
}
