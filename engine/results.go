package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// resultKey is what the answers of one statement have in common.
type resultKey struct {
	outcome  fsm.Outcome // or suspends
	policy   int32
	state    fsm.State
	fence    int64
	seq      int32
	stop     bool
	step     fsm.Step
	executor policy.Executor
	capture  string
	sells    bool
	doubted  bool
	consumes bool
}

// answersMost is how many answers one statement takes. PostgreSQL joins them to their rows by
// comparing each with each, so four batches of 128 are four times as fast as one of 512.
const answersMost = 128

const suspends fsm.Outcome = "suspends"

func (e *Engine) resultKey(r *run) resultKey {
	o, c := &r.order, r.call
	key := resultKey{outcome: outcomeFor(c, o), state: o.Status, fence: o.Fence, seq: o.Seq, stop: o.StopRequested != nil, step: c.step, consumes: c.source != ""}
	if key.outcome == suspends {
		return key
	}
	key.policy = *o.Policy
	p, _ := e.policies.byVersion(o.Policy)
	how := p.Step(c.step)
	if how.Executor.Remote() {
		key.executor = how.Executor
	}
	if c.step == fsm.Charge && how.Capture == policy.CaptureOnConfirm {
		key.capture = how.Capture
	}
	key.doubted = c.refusedInDoubt()
	key.sells = !p.Reserve.Executor.Remote()
	return key
}

// outcomeFor says what an answer is to the machine.
func outcomeFor(c *call, o *orders.Order) fsm.Outcome {
	switch result := c.result.(type) {
	case stopRequested:
		return fsm.Stopped
	case ledgerConfirm:
		return fsm.Done
	case provider.Done:
		if !c.voids(o) && c.step == o.Status.Step() {
			return fsm.Done
		}
	case provider.Refused:
		if !o.Status.Undoing() && c.operation != provider.Undo && (!o.Status.Pivot() || !c.refusedInDoubt()) {
			return fsm.Refused
		}
	case provider.Retry:
		// What is certainly not done, and not worth another try, is as good as refused.
		if !c.doubted && !c.uncalled && c.operation == provider.Do && slices.Contains(c.pool.cfg.Retry.NonRetryable, result.Code) {
			return fsm.Refused
		}
	}
	return suspends
}

// failureOf is what the breaker counts: the other side is gone or ill. To refuse, or to
// ask for patience, is no illness. That a look-up is answered while the step is not done says neither.
func failureOf(result provider.Result) error {
	switch result := result.(type) {
	case provider.Unknown:
		if result.Code == provider.InProgress {
			return errUncalled
		}
		return errIll
	case unseen:
		return errUncalled
	case attention: // nothing was asked of the other side
		return errUncalled
	case provider.Retry:
		if result.Code == stoodStillCode {
			return errUncalled
		}
		if result.Counts || result.Code == "connection_failed" {
			return errIll
		}
	}
	return nil
}

// sellsStock reports whether an answer writes the stock row: the confirmation of what the
// ledger has reserved does.
func (e *Engine) sellsStock(r *run) bool {
	key := e.resultKey(r)
	return key.outcome == fsm.Done && key.state.Step() == fsm.Confirm && key.sells
}

// advance moves orders out of their state. For as many as there are permits, the same commit
// also begins the call of the next step.
func (e *Engine) advance(key resultKey, runs []*run, busy func([]*run)) {
	if next := e.nextPool(key, runs[0]); next != nil {
		unread, ready := divide(runs, next.lacksReference)
		n := next.acquire(len(ready))
		e.commitMove(permits{pool: next, left: n}, key, ready[:n:n], busy)
		runs = append(unread, ready[n:]...)
	}
	e.commitMove(permits{}, key, runs, busy)
}

// nextPool is the pool of the next call of orders that go forward. It is nil if there is no
// such call, or if the orders may have to stop first.
func (e *Engine) nextPool(key resultKey, r *run) *callPool {
	o := &r.order
	next, _ := key.state.Next(key.outcome)
	if key.outcome != fsm.Done || next.Final() || next.Undoing() || o.StopRequested != nil {
		return nil
	}
	p, _ := e.policies.byVersion(o.Policy)
	if !p.Step(next.Step()).Executor.Remote() {
		return nil
	}
	return e.callPool(*o.Policy, next.Step(), p)
}

// commitMove moves a batch. With permits it then makes the next calls of the orders that moved.
func (e *Engine) commitMove(with permits, key resultKey, runs []*run, busy func([]*run)) {
	if len(runs) == 0 {
		return
	}
	results := make(map[int64]ledger.Answer, len(runs))
	for _, r := range runs {
		_, results[r.no()] = namedResult(r.call.result)
	}
	with.asked = time.Now()
	defer with.freeUnused()
	statement := func(ctx context.Context, q *db.Queries, s ledger.Batch) ([]ledger.Moved, error) {
		return ledger.SaveResults(ctx, q, ledger.Results{
			Batch: s, Outcome: key.outcome, Step: key.step, Executor: string(key.executor), Capture: key.capture,
			Sells: key.sells, Doubted: key.doubted, Consumes: key.consumes, Begins: with.pool != nil, Call: with.leastLease(), Lease: with.lease(), Of: results,
		})
	}
	e.move(key.state, mover{statement: statement, outcome: key.outcome, busy: busy, moved: func(moved []*run) { e.goOn(moved, &with) }}, runs)
}

// goOn makes the next calls of orders, where they began with the move, and drives the
// others.
func (e *Engine) goOn(runs []*run, with *permits) {
	rest := runs[:0]
	for _, r := range runs {
		r.applyResult()
		if with.pool == nil || r.status().Undoing() {
			rest = append(rest, r)
			continue
		}
		with.use(r)
		now := e.now()
		e.begun(r, or(r.order.Calls)+1, &now, now)
	}
	e.drive(rest)
}

// applyResult makes in the run the changes that the statement of its result made in the row.
func (r *run) applyResult() {
	o, c := &r.order, r.call
	if done, ok := c.result.(provider.Done); ok && done.Reference != "" && c.state == fsm.DoneIn(c.step) {
		switch c.step {
		case fsm.Charge:
			o.ChargeReference = &done.Reference
		case fsm.Reserve:
			o.ReserveReference = &done.Reference
		default: // that of a confirmation is read when somebody asks
		}
	}
	o.Retries, o.RetryWindowStartedAt, o.Action = nil, nil, nil
	if _, stopped := r.call.result.(stopRequested); !o.Status.Undoing() || !stopped && !r.call.refusedInDoubt() {
		o.InDoubtSince = nil // otherwise it is undone while still in doubt, and the doubt keeps its age
	}
	if o.Status == fsm.Completed {
		o.StopRequested = nil
	}
	r.call, r.preflight = nil, nil
}
