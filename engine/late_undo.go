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
)

// lateUndoLoop undoes effects that the books say are absent or undone. Each is tried until
// it is done, and moves no order.
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
	started := e.now()
	outcome, answer := namedResult(e.callLate(row))
	ctx, cancel := e.statement()
	defer cancel()
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
func (e *Engine) callLate(row db.LateUndosClaimRow) step.Result {
	of := fsm.Step(row.Step)
	p, known := e.policies.of(row.UndoPolicy)
	if !known || p == nil || !p.Of(of).Executor.Outside() {
		return step.Unknown{Code: "policy_unusable"}
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order.Order = row.Order
	r.attempt = &attempt{lane: e.lane(*row.UndoPolicy, of, p), step: of, generation: row.UndoGeneration, operation: step.Undo, fence: row.Order.Fence}
	ctx, cancel := context.WithTimeout(e.ctx, p.Of(of).Timeout)
	defer cancel()
	c, err := e.callOf(ctx, r)
	if err != nil {
		return step.Unknown{Code: "database_unavailable", Detail: err.Error()}
	}
	return r.attempt.perform(ctx, c)
}
