package engine

import (
	"slices"

	"pawl/fsm"
	"pawl/orders"
	"pawl/provider"
)

// drive sends each run to the queue of its state, and those that need no move to their
// end. It takes any mix of states; the runs are ours.
func (e *Engine) drive(runs []*run) {
	for len(runs) > 0 {
		state := runs[0].status()
		same := func(r *run) bool { return r.status() == state }
		n := slices.IndexFunc(runs, func(r *run) bool { return !same(r) })
		if n < 0 {
			n = len(runs)
		}
		e.enqueue(state, runs[:n])
		runs = runs[n:]
	}
}

func (e *Engine) enqueue(state fsm.State, runs []*run) {
	if state.Final() {
		e.finish(nil, runs...)
		return
	}
	if slices.ContainsFunc(runs, needsRouting) {
		runs = e.route(runs)
	}
	e.moves[state].Add(e.hot.divert(runs)...)
}

// needsRouting reports whether more than its state decides where an order goes.
func needsRouting(r *run) bool {
	o := &r.order
	return o.Policy != nil || o.Status == fsm.Pending || orders.Pausing(o)
}

// route sends runs of one state on their way and returns those that take the ledger's. Those that this process does not
// go on with leave.
func (e *Engine) route(runs []*run) (ledger []*run) {
	for _, r := range runs {
		o := &r.order
		p, known := e.policies.byVersion(o.Policy)
		switch {
		case !needsRouting(r):
			ledger = append(ledger, r)
		case r.hasResult():
			e.resultAfter(r)
		case orders.Pausing(o):
			e.waits.Add(r)
		case !known:
			e.leaves.Add(r)
		case o.Status == fsm.Pending:
			if e.gate(r, p) {
				ledger = append(ledger, r)
			}
		case p == nil:
			ledger = append(ledger, r)
		case p.Step(o.Status.Step()).Executor.Remote():
			if !e.call(r) {
				e.leaves.Add(r)
			}
		case o.Status == fsm.Confirming && p.Reserve.Executor.Remote():
			e.confirmInLedger(r)
		default:
			ledger = append(ledger, r)
		}
	}
	return ledger
}

// resultAfter has a result committed after all: somebody wrote to the order meanwhile. If that was a callback, it
// beats any result of the call except done.
func (e *Engine) resultAfter(r *run) {
	if r.preflight == nil && slices.Contains([]fsm.Outcome{suspends, fsm.Refused}, outcomeFor(r.call, &r.order)) {
		e.preflights.Add(r)
		return
	}
	e.results.Add(r)
}

// confirmInLedger confirms in the database what was reserved elsewhere: there is no stock
// of ours to sell.
func (e *Engine) confirmInLedger(r *run) {
	o := &r.order
	var result provider.Result = ledgerConfirm{}
	if orders.Stopping(o) {
		result = stopRequested{}
	}
	e.withoutCall(r, e.poolOf(o), result)
}
