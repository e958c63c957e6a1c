package engine

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/step"
)

const lateUndosMost = 50

// undoLate undoes effects that the books say are absent or undone. It is tried until it
// is done, and moves no order.
func (e *Engine) undoLate(ctx context.Context) {
	claim, cancel := e.statement()
	defer cancel()
	rows, err := e.query.LateUndosClaim(claim, db.LateUndosClaimParams{Most: lateUndosMost, LeaseSeconds: time.Minute.Seconds()})
	if err != nil {
		e.log.Warn("look for late effects", "error", err)
		return
	}
	for _, row := range rows {
		if ctx.Err() == nil {
			e.undoLateOne(row)
		}
	}
}

func (e *Engine) undoLateOne(row db.LateUndosClaimRow) {
	ctx, cancel := e.statement()
	defer cancel()
	started := e.now()
	result := e.callLate(ctx, row)
	outcome, answer := namedResult(result)
	err := e.query.LateUndoAttempt(ctx, db.LateUndoAttemptParams{OrderNo: row.Order.OrderNo, Fence: row.Order.Fence,
		Generation: row.UndoGeneration, Policy: row.UndoPolicy, Step: row.Step, StartedAt: started,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail})
	if err == nil {
		err = e.query.LateUndoFinish(ctx, db.LateUndoFinishParams{OrderNo: row.Order.OrderNo, Generation: row.UndoGeneration, Step: row.Step,
			Done: outcome == "done", Delay: min(time.Second<<min(row.Tries, 10), 10*time.Minute).Seconds(), Code: answer.Code, Detail: answer.Detail})
	}
	if err != nil {
		e.log.Warn("keep the undoing of a late effect", "order_id", row.Order.OrderID, "error", err)
	}
}

// callLate undoes a key of an order that is at rest.
func (e *Engine) callLate(ctx context.Context, row db.LateUndosClaimRow) step.Result {
	of := fsm.Step(row.Step)
	p, known := e.policies.of(row.UndoPolicy)
	if !known || p == nil || !p.Of(of).Executor.Outside() {
		return step.Unknown{Code: "policy_unusable"}
	}
	who, err := e.identify(ctx)
	if err != nil {
		return step.Unknown{Code: "database_unavailable"}
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order.Order = row.Order
	r.attempt = &attempt{lane: e.lane(*row.UndoPolicy, of, p), step: of, generation: row.UndoGeneration, operation: step.Undo, fence: row.Order.Fence}
	call, cancel := context.WithTimeout(ctx, p.Of(of).Timeout)
	defer cancel()
	return r.attempt.perform(call, e.callOf(r, who))
}
