package engine

import (
	"context"
	"sync"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/provider"
)

const (
	lateUndosAtOnce = 8
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
	rows, err := e.query.LateUndosClaim(e.ctx, db.LateUndosClaimParams{Most: lateUndosAtOnce, LeaseSeconds: e.cfg.Lease.Seconds()})
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
	result, attempt := e.callLate(row)
	outcome, answer := namedResult(result)
	delay := min(time.Second<<min(row.Tries, 10), lateUndoPause)
	if a, ok := result.(attention); ok {
		delay, answer.Code, answer.Detail = lateUndoPause, orders.RefusedUnknown, a.reason
		if row.Code != orders.RefusedUnknown {
			e.log.Error("a late effect must be undone by a person", "order_id", row.Order.OrderID, "step", row.Step, "generation", row.UndoGeneration, "reason", a.reason)
		}
	}
	err := e.query.LateUndoFinish(e.ctx, db.LateUndoFinishParams{OrderNo: row.Order.OrderNo, Generation: row.UndoGeneration, Step: row.Step,
		Tries: row.Tries, Attempt: attempt, Outcome: outcome, Delay: delay.Seconds(), Code: answer.Code, Detail: answer.Detail})
	if err != nil {
		e.log.Warn("keep the undoing of a late effect", "order_id", row.Order.OrderID, "error", err)
	}
}

// callLate undoes a key of an order that is at rest. An undo by an expired key finds nothing and reports success, so it
// is not sent. The number of the attempt is 0 where no call was made.
func (e *Engine) callLate(row db.LateUndosClaimRow) (result provider.Result, number int32) {
	of := fsm.Step(row.Step)
	p, runs := e.policies.of(row.UndoPolicy)
	if !runs || p == nil || !p.Of(of).Executor.Outside() {
		return provider.Unknown{Code: "policy_unusable"}, 0
	}
	ctx, cancel := context.WithTimeout(e.ctx, p.Of(of).Timeout)
	defer cancel()
	known, err := e.keyOf(ctx, row.Order.OrderNo, row.UndoGeneration, of, provider.Undo)
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case known.own.forgotten(p.Of(of), &row.Order, nil, e.now()):
		return attention{reason: outcomeUnknown}, 0
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order, r.preflight = row.Order, known
	r.attempt = &attempt{pool: e.callPool(*row.UndoPolicy, of, p), step: of, generation: row.UndoGeneration, operation: provider.Undo,
		fence: row.Order.Fence, named: known.own.undoName(p.Of(of).Executor)}
	return e.attemptLate(ctx, r, row)
}

// attemptLate commits the attempt and makes its call.
func (e *Engine) attemptLate(ctx context.Context, r *run, row db.LateUndosClaimRow) (provider.Result, int32) {
	a := r.attempt
	c, err := e.callOf(ctx, r)
	a.asked = time.Now()
	var begun []db.LateUndoBeginRow
	if err == nil {
		begun, err = e.query.LateUndoBegin(ctx, db.LateUndoBeginParams{OrderNo: r.no(), Seq: row.Order.Seq, Generation: a.generation, Step: string(a.step),
			Tries: row.Tries, Policy: row.UndoPolicy, Named: a.named, LeaseSeconds: (a.pool.cfg.Timeout + leaseMargin).Seconds()})
	}
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case len(begun) == 0:
		return provider.Unknown{Code: "overtaken", Detail: "the order was written to meanwhile"}, 0
	}
	a.number, a.lookOnly = begun[0].Attempt, r.preflight.own.forgotten(a.pool.cfg, &r.order, nil, begun[0].StartedAt)
	return a.perform(ctx, c), a.number
}
