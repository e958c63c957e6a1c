package engine

import (
	"context"
	"sync"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/step"
)

const (
	lateUndosAtOnce = 8
	lateUndoLease   = 11 * time.Minute // longer than the longest time-out of a call
	lateUndoPause   = 10 * time.Minute // between two tries at most
)

// lateUndoLoop undoes effects that the books say are absent or undone. Each is tried until
// it is done, as long as the provider knows what is meant, and moves no order.
func (e *Engine) lateUndoLoop(ctx context.Context) {
	for ctx.Err() == nil {
		e.pause(e.cfg.Poll)
		if !e.stopping.Load() && ctx.Err() == nil {
			e.undoLate()
		}
	}
}

func (e *Engine) undoLate() {
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.LateUndosClaim(ctx, db.LateUndosClaimParams{Most: lateUndosAtOnce, LeaseSeconds: lateUndoLease.Seconds()})
	if err != nil {
		e.log.Warn("look for late effects", "error", err)
	}
	var calls sync.WaitGroup
	for _, row := range rows {
		calls.Go(func() { e.undoLateOne(row) })
	}
	calls.Wait()
}

func (e *Engine) undoLateOne(row db.LateUndosClaimRow) {
	result := e.callLate(row)
	outcome, answer := namedResult(result)
	delay := min(time.Second<<min(row.Tries, 10), lateUndoPause)
	if a, ok := result.(attention); ok {
		delay, answer.Code, answer.Detail = lateUndoPause, RefusedUnknown, a.reason
		if row.Code != RefusedUnknown {
			e.log.Error("a late effect must be undone by a person", "order_id", row.Order.OrderID, "step", row.Step, "generation", row.UndoGeneration, "reason", a.reason)
		}
	}
	ctx, cancel := e.statement()
	defer cancel()
	err := e.query.LateUndoFinish(ctx, db.LateUndoFinishParams{OrderNo: row.Order.OrderNo, Generation: row.UndoGeneration, Step: row.Step,
		Done: outcome == "done", Delay: delay.Seconds(), Code: answer.Code, Detail: answer.Detail})
	if err != nil {
		e.log.Warn("keep the undoing of a late effect", "order_id", row.Order.OrderID, "error", err)
	}
}

// callLate undoes a key of an order that is at rest, unless that key may be forgotten: it
// would find nothing, and say that all is well.
func (e *Engine) callLate(row db.LateUndosClaimRow) step.Result {
	of := fsm.Step(row.Step)
	p, known := e.policies.of(row.UndoPolicy)
	if !known || p == nil || !p.Of(of).Executor.Outside() {
		return step.Unknown{Code: "policy_unusable"}
	}
	ctx, cancel := context.WithTimeout(e.ctx, p.Of(of).Timeout)
	defer cancel()
	undo, err := e.undoOf(ctx, row.Order.OrderNo, row.UndoGeneration, of)
	switch {
	case err != nil:
		return step.Unknown{Code: "database_unavailable", Detail: err.Error()}
	case undo.forgotten(p.Of(of), &row.Order, nil, e.now()):
		return attention{reason: outcomeUnknown}
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order.Order, r.undo = row.Order, undo
	r.attempt = &attempt{lane: e.lane(*row.UndoPolicy, of, p), step: of, generation: row.UndoGeneration, operation: step.Undo,
		fence: row.Order.Fence, named: undo.name(p.Of(of).Executor)}
	return e.attemptLate(ctx, r, row.UndoPolicy)
}

// attemptLate commits the attempt, makes its call, and keeps the answer.
func (e *Engine) attemptLate(ctx context.Context, r *run, version *int32) step.Result {
	a := r.attempt
	c, err := e.callOf(ctx, r)
	a.asked = time.Now()
	var begun db.LateUndoBeginRow
	if err == nil {
		begun, err = e.query.LateUndoBegin(ctx, db.LateUndoBeginParams{OrderNo: r.no(), Fence: a.fence, Generation: a.generation,
			Policy: version, Step: string(a.step), Named: a.named})
	}
	if err != nil {
		return step.Unknown{Code: "database_unavailable", Detail: err.Error()}
	}
	a.number, a.lookOnly = begun.Attempt, r.undo.forgotten(a.lane.cfg, &r.order.Order, nil, begun.StartedAt)
	result := a.perform(ctx, c)
	outcome, answer := namedResult(result)
	after, cancel := e.statement()
	defer cancel()
	err = e.query.LateUndoAnswered(after, db.LateUndoAnsweredParams{OrderNo: r.no(), Attempt: a.number, Outcome: outcome, Code: answer.Code, Detail: answer.Detail})
	if err != nil {
		e.log.Warn("keep the answer of a late undo", "order_id", r.orderID, "error", err)
	}
	return result
}
