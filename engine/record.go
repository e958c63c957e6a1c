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

// recordKey is what the answers of one statement have in common.
type recordKey struct {
	outcome  fsm.Outcome // or stays
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
// comparing each with each, so four sets of 128 are four times as fast as one of 512.
const answersMost = 128

const stays fsm.Outcome = "stays"

// recordSet is the flush of the line of answers: it commits what they mean.
func (e *Engine) recordSet(set []*run) {
	e.recordOr(e.slowRecords.divert(set), e.slowRecords.add)
}

// recordOr hands the runs whose stock row stayed locked to busy.
func (e *Engine) recordOr(set []*run, busy func([]*run)) {
	for key, group := range groupBy(set, e.recordKey) {
		if key.outcome == stays {
			e.stay(key, group)
		} else {
			e.leave(key, group, busy)
		}
	}
}

func (e *Engine) recordKey(r *run) recordKey {
	o, a := &r.order, r.attempt
	key := recordKey{outcome: outcomeFor(a, o), state: o.Status, fence: o.Fence, seq: o.Seq, stop: o.StopRequested != nil, step: a.step, consumes: a.source != ""}
	if key.outcome == stays {
		return key
	}
	key.policy = *o.Policy
	p, _ := e.policies.of(o.Policy)
	how := p.Of(a.step)
	if how.Executor.Outside() {
		key.executor = how.Executor
	}
	if a.step == fsm.Charge && how.Capture == policy.CaptureOnConfirm {
		key.capture = how.Capture
	}
	key.doubted = a.refusedInDoubt()
	key.sells = !p.Reserve.Executor.Outside()
	return key
}

// outcomeFor says what an answer is to the machine.
func outcomeFor(a *attempt, o *orders.Order) fsm.Outcome {
	switch result := a.result.(type) {
	case stop:
		return fsm.Stopped
	case beside:
		return fsm.Done
	case provider.Done:
		if a.generation == o.Generation && a.step == o.Status.Step() {
			return fsm.Done
		}
	case provider.Refused:
		if !o.Status.Undoing() && a.operation != provider.Undo && (!o.Status.Pivot() || !a.refusedInDoubt()) {
			return fsm.Refused
		}
	case provider.Retry:
		// What is certainly not done, and not worth another try, is as good as refused.
		if !a.doubted && !a.uncalled && a.operation == provider.Do && slices.Contains(a.lane.cfg.Retry.NonRetryable, result.Code) {
			return fsm.Refused
		}
	}
	return stays
}

// leave moves orders out of their state. For as many as there are free slots, the same commit
// also begins the attempt of the next step.
func (e *Engine) leave(key recordKey, set []*run, busy func([]*run)) {
	if next := e.nextLane(key, set[0]); next != nil {
		n := next.acquire(len(set))
		e.leaveTo(next, key, set[:n:n], busy)
		set = set[n:]
	}
	e.leaveTo(nil, key, set, busy)
}

// nextLane is the lane of the next call of orders that go forward. It is nil if there is no
// such call, or if the orders may have to stop first.
func (e *Engine) nextLane(key recordKey, r *run) *lane {
	o := &r.order
	next, _ := key.state.Next(key.outcome)
	if key.outcome != fsm.Done || next.Final() || next.Undoing() || o.StopRequested != nil {
		return nil
	}
	p, _ := e.policies.of(o.Policy)
	if !p.Of(next.Step()).Executor.Outside() {
		return nil
	}
	return e.lane(*o.Policy, next.Step(), p)
}

// leaveTo moves a set. With a lane it then makes the next calls of the orders that moved.
func (e *Engine) leaveTo(next *lane, key recordKey, set []*run, busy func([]*run)) {
	if len(set) == 0 {
		return
	}
	results := make(map[int64]ledger.Answer, len(set))
	for _, r := range set {
		_, results[r.no()] = namedResult(r.attempt.result)
	}
	slots := slots{lane: next, free: len(set), asked: time.Now()}
	defer slots.giveBack()
	move := func(ctx context.Context, q *db.Queries, s ledger.Set) ([]ledger.Moved, error) {
		return ledger.SaveResults(ctx, q, ledger.Results{
			Set: s, Outcome: key.outcome, Step: key.step, Executor: string(key.executor), Capture: key.capture,
			Sells: key.sells, Doubted: key.doubted, Consumes: key.consumes, Begins: next != nil, Call: slots.call(), Lease: slots.lease(), Of: results,
		})
	}
	e.moveAlike(key.state, mover{move: move, outcome: key.outcome, busy: busy, moved: func(runs []*run) { e.moveOn(runs, &slots) }}, set)
}

// moveOn makes the calls of orders whose next attempt began with their move, and drives the
// others.
func (e *Engine) moveOn(runs []*run, s *slots) {
	rest := runs[:0]
	for _, r := range runs {
		r.answered()
		if s.lane == nil || r.status().Undoing() {
			rest = append(rest, r)
			continue
		}
		s.start(r, value(r.order.Attempts)+1)
	}
	e.drive(rest)
}

// answered makes in the run the changes that the statement made in the row.
func (r *run) answered() {
	o, a := &r.order, r.attempt
	if done, ok := a.result.(provider.Done); ok && done.Reference != "" && a.state == fsm.DoneIn(a.step) {
		switch a.step {
		case fsm.Charge:
			o.ChargeReference = &done.Reference
		case fsm.Reserve:
			o.ReserveReference = &done.Reference
		default: // that of a confirmation is read when somebody asks
		}
	}
	o.Tries, o.WindowFrom, o.Action = nil, nil, nil
	if _, stopped := r.attempt.result.(stop); !o.Status.Undoing() || !stopped && !r.attempt.refusedInDoubt() {
		o.InDoubtSince = nil // otherwise it is undone while still in doubt, and the doubt keeps its age
	}
	if o.Status == fsm.Completed {
		o.StopRequested = nil
	}
	r.attempt, r.looked, r.undo = nil, false, nil
}
