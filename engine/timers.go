package engine

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/step"
)

const (
	policyInterval = 2 * time.Second  // how old what we know of policies may be
	turnsInterval  = 10 * time.Second // between looks at turns that a process that died did not give
	expiredMost    = 1000
	keysMost       = 1000
)

// timerLoop does what the clock asks for: deadlines, effects that were reported too late,
// and what somebody who died was about to wake.
func (e *Engine) timerLoop(ctx context.Context) {
	var loaded, swept time.Time
	for ctx.Err() == nil {
		e.pause(e.cfg.Poll)
		if e.stopping.Load() || ctx.Err() != nil {
			return
		}
		if time.Since(loaded) >= policyInterval {
			e.loadPolicies(ctx)
			loaded = time.Now()
		}
		e.expire()
		e.undoLate(ctx)
		if time.Since(swept) >= turnsInterval {
			e.askTurns()
			swept = time.Now()
		}
	}
}

func (e *Engine) loadPolicies(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := e.policies.load(ctx); err != nil && e.ctx.Err() == nil {
		e.log.Warn("load policies", "error", err)
	}
}

// expire asks orders to stop whose time is up. Those that nobody drives come due by it.
func (e *Engine) expire() {
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.OrdersExpired(ctx, expiredMost)
	if err != nil {
		e.log.Warn("look for expired orders", "error", err)
		return
	}
	if len(rows) > 0 {
		e.Stats.Expired.Add(int64(len(rows)))
	}
}

// askTurns finds keys whose turn nobody has given.
func (e *Engine) askTurns() {
	ctx, cancel := e.statement()
	defer cancel()
	keys, err := e.query.ConcurrencyKeysQueued(ctx, keysMost)
	if err != nil {
		e.log.Warn("look for queued orders", "error", err)
	}
	for _, key := range keys {
		e.turns.ask(key)
	}
}

// approvalTimedOut goes on, or back, as the policy says.
func (e *Engine) approvalTimedOut(r *run, p *policy.Policy) {
	o := &r.order.Order
	approves := false
	if p != nil {
		if rule := approvalOf(p, o); rule != nil {
			approves = rule.OnTimeout == policy.ApprovalApprove
		}
	}
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.ApprovalTimedOut(ctx, db.ApprovalTimedOutParams{
		OrderNo: o.OrderNo, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Approves: approves})
	if err != nil {
		e.failed("end the wait for an approval", err, []*run{r}, e.later)
		return
	}
	if len(rows) == 1 {
		r.lost = 0
	}
	e.readBack([]*run{r}) // the row says how it goes on
}

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
