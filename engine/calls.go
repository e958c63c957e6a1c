package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// The way of a call, from top to bottom:
//
//	call ──▶ preflight ──▶ permit ──▶ begin ──▶ makeCall ──▶ commitResults ──▶ advance, or suspend
//	  │       one read               commit     no lock        commit
//	  └─ to be stopped, or answered without a call ──────────▶
//
// An order that was just moved or admitted, and for which there is a permit, comes in at makeCall: its
// call was committed with the move.

// call takes an order that stands at a remote step. It reports false when the engine is stopping and the
// order would need a call: none is begun any more.
func (e *Engine) call(r *run) bool {
	o := &r.order
	if r.call != nil && !r.call.stands(o) {
		e.fenced(r)
	}
	pool := e.poolOf(o)
	switch {
	case orders.Stopping(o) && !o.Status.Undoing() && !pool.stepKeyExpired(o, e.now()):
		e.withoutCall(r, pool, stopRequested{})
	case e.stopping.Load():
		return false
	case pool.unread(r):
		e.preflights.Add(r)
	default:
		pool.enqueue(r)
	}
	return true
}

// withoutCall has a result committed that no call gave, and that does not count as one. The run is handed over.
func (e *Engine) withoutCall(r *run, p *callPool, result provider.Result) {
	o := &r.order
	r.call = &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, result: result, uncalled: true}
	e.results.Add(r)
}

// unread reports whether the order may have been called for before: then that is read first.
func (p *callPool) unread(r *run) bool {
	o := &r.order
	return r.preflight == nil && (o.InDoubtSince != nil || o.Retries != nil || o.Generation > 0 || o.Status.Undoing() || p.lacksReference(r))
}

// lacksReference reports whether a call goes by what the provider calls the charge, and the run does not know
// it: the order may have been taken up after that was said.
func (p *callPool) lacksReference(r *run) bool {
	return p.cfg.Executor == policy.Stripe && r.order.Calls != nil && or(r.order.ChargeReference) == ""
}

// runPreflight is the flush of the queue of orders that may have been called for before.
func (e *Engine) runPreflight(runs []*run) {
	runs = slices.Clone(runs)
	found, err := e.readPreflight(e.ctx, runs)
	if e.standsDown("look for what was sent before", err, runs) {
		return
	}
	if err != nil {
		e.log.Warn("look for what was sent before", "error", err)
		e.later(runs)
		return
	}
	for _, r := range runs {
		r.preflight = found[r.no()]
		pool := e.poolOf(&r.order)
		if answer := r.preflight.answer; answer != nil {
			r.call = pool.callOfAnswer(&r.order, answer)
		}
		if r.call != nil {
			e.results.Add(r)
		} else {
			pool.enqueue(r)
		}
	}
}

// prepareCall asks the circuit breaker, makes the call of an order that has a permit, and queues it to be committed.
func (e *Engine) prepareCall(r *run, p *callPool) {
	if o := &r.order; o.Status.Undoing() && r.preflight.own.undoKeyExpired(p.cfg, o, o.InDoubtSince, e.now()) {
		p.release()
		e.withoutCall(r, p, attention{reason: outcomeUnknown})
		return
	}
	report, err := p.breaker.Allow()
	if err != nil {
		p.release()
		e.withoutCall(r, p, provider.Retry{Code: "breaker_open", After: p.cfg.Breaker.Open})
		return
	}
	r.call = p.newCall(r)
	r.call.report = report
	e.begins.Add(r)
}

// beginKey is what the calls of one statement have in common.
type beginKey struct {
	state      fsm.State
	fence      int64
	seq        int32
	step       fsm.Step
	operation  provider.Operation
	voids      bool
	generation int32
	call       time.Duration // how long it may take
}

const lookup provider.Operation = "lookup"

func beginKeyOf(r *run) beginKey {
	o, c := &r.order, r.call
	return beginKey{state: o.Status, fence: o.Fence, seq: o.Seq, step: c.step, operation: c.kind(),
		voids: c.voids(o), generation: c.generation, call: c.pool.cfg.Timeout + leaseMargin}
}

// begin is the flush of the queue of calls: it commits that calls are about to be made, and makes them.
func (e *Engine) begin(runs []*run) {
	for key, group := range groupBy(runs, beginKeyOf) {
		e.commitCalls(key, group)
	}
}

func (e *Engine) commitCalls(key beginKey, runs []*run) {
	asked := time.Now()
	for _, r := range runs {
		r.call.asked = asked
	}
	rows, err := e.query.CallsBegin(e.ctx, e.beginning(key, runs))
	switch {
	case db.FaultOf(err) == db.Bad:
		e.split(runs, func(half []*run) { e.commitCalls(key, half) }, func(r *run) { notBegun(r); e.giveUp(r, err) })
		return
	case err != nil:
		notBegun(runs...)
		e.failed("begin calls", err, runs, e.later)
		return
	}
	e.Stats.Batches.Add(1)
	if len(rows) > 0 {
		e.tickOn(rows[0].At)
	}
	byNo := make(map[int64]db.CallsBeginRow, len(rows))
	for _, row := range rows {
		byNo[row.OrderNo] = row
	}
	begun, lost := divide(runs, func(r *run) bool { _, ok := byNo[r.no()]; return ok }) // once its call is under way a run is not ours
	for _, r := range begun {
		row := byNo[r.no()]
		r.order.Seq = row.Seq
		e.begun(r, row.Call, row.InDoubtSince, row.At)
	}
	notBegun(lost...)
	e.onCASMiss(lost)
}

func (e *Engine) beginning(key beginKey, runs []*run) db.CallsBeginParams {
	p := db.CallsBeginParams{
		OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Step: string(key.step), Operation: string(key.operation), CallSeconds: key.call.Seconds(),
		LeaseSeconds: max(e.cfg.Lease, key.call).Seconds(),
	}
	if key.voids {
		p.Generation = &key.generation
	}
	if key.operation == provider.Undo {
		for _, r := range runs {
			p.UndoReferences = append(p.UndoReferences, r.call.undoReference)
		}
	}
	return p
}

// notBegun gives back what calls hold that come to nothing.
func notBegun(runs ...*run) {
	for _, r := range runs {
		r.call.report(errUncalled)
		r.call.permit.free()
		r.call = nil
	}
}

// begun notes in the run that its call is committed, with this number and at this time, and starts the call.
// Every call of an order starts here.
func (e *Engine) begun(r *run, number int32, inDoubtSince *time.Time, at time.Time) {
	o, c := &r.order, r.call
	o.Calls, o.InDoubtSince, r.complete, r.vainTries = &number, inDoubtSince, false, 0
	if o.RetryWindowStartedAt == nil {
		o.RetryWindowStartedAt = &at
	}
	c.number, c.fence, c.lookOnly = number, o.Fence, c.lookOnly || c.keyExpired(r, at)
	e.wg.Go(func() { e.makeCall(r) })
}

// makeCall makes one call, with no transaction open and no lock held, and queues its answer to be
// committed. It ends with its own timeout, not when the caller of the order hangs up.
func (e *Engine) makeCall(r *run) {
	c := r.call
	ctx, cancel := context.WithTimeout(e.ctx, c.pool.cfg.Timeout)
	defer cancel()
	request, err := e.callOf(ctx, r)
	if err != nil {
		c.result = provider.Retry{Code: "database_unavailable", Detail: err.Error()}
		c.report(errUncalled)
	} else {
		made := time.Now()
		c.result = c.perform(ctx, request)
		c.report(failureOf(c.result))
		e.answered(r, time.Since(made))
	}
	e.results.Add(r)
	c.permit.free()
}

// commitResults commits what answers mean. It hands runs whose stock row stayed locked to busy.
func (e *Engine) commitResults(runs []*run, busy func([]*run)) {
	for key, group := range groupBy(runs, e.resultKey) {
		if key.outcome == suspends {
			e.suspend(key, group)
		} else {
			e.advance(key, group, busy)
		}
	}
}
