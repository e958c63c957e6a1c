package engine

import (
	"context"
	"fmt"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
	"pawl/provider"
)

const (
	sideCallsAtOnce  = 8                // of a kind
	sideCallPause    = 10 * time.Minute // between two tries at most
	longestSidePause = time.Hour        // unless an answer asks for more, which is heeded up to this
)

// sideCalls makes the calls of one kind that move no order: the undoing of late effects, or refunds. What is due is
// claimed by its row, as orders are, and tried again until there is an answer or a person settles it.
type sideCalls struct {
	engine *Engine
	claim  func(most int32) (calls []func()) // claims what is due; each call is made by itself
	places chan struct{}                     // one for each call under way
	wake                                     // says that something may be due
}

func newSideCalls(e *Engine, claim func(most int32) []func()) *sideCalls {
	return &sideCalls{e, claim, make(chan struct{}, sideCallsAtOnce), newWake()}
}

// loop claims what is due whenever somebody, mostly the timer, says that something is.
func (s *sideCalls) loop(ctx context.Context) {
	for s.heard(ctx) {
		if !s.engine.stopping.Load() {
			s.start()
		}
	}
}

// start begins as many calls as there are places. The engine waits for them when it stops.
func (s *sideCalls) start() {
	free := cap(s.places) - len(s.places)
	if free == 0 {
		return
	}
	for _, call := range s.claim(int32(free)) {
		s.places <- struct{}{}
		s.engine.wg.Go(func() {
			call()
			<-s.places
			s.nudge() // more may be due than there were places for
		})
	}
}

// sidePause is how long to wait after so many tries. An answer may ask for more.
func sidePause(claims int32, after time.Duration) time.Duration {
	return max(min(time.Second<<min(claims, 10), sideCallPause), min(after, longestSidePause))
}

// claimLateUndos claims effects that the books say are absent or undone. Each is undone by a side call until it is done,
// as long as the provider knows what is meant.
func (e *Engine) claimLateUndos(most int32) (calls []func()) {
	rows, err := e.query.LateUndosClaim(e.ctx, db.LateUndosClaimParams{Most: most, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		e.log.Warn("look for late effects", "error", err)
	}
	for _, row := range rows {
		calls = append(calls, func() { e.undoLate(row) })
	}
	return calls
}

func (e *Engine) undoLate(row db.LateUndosClaimRow) {
	result, call := e.callLate(row)
	outcome, answer := namedResult(result)
	delay := sidePause(row.Claims, 0)
	if a, ok := result.(attention); ok {
		delay, answer.Code, answer.Detail = sideCallPause, orders.RefusedUnknown, a.reason
		if row.Code != orders.RefusedUnknown {
			e.log.Error("a late effect must be undone by a person", "order_id", row.Order.OrderID, "step", row.Step, "generation", row.UndoGeneration, "reason", a.reason)
		}
	}
	err := e.query.LateUndoFinish(e.ctx, db.LateUndoFinishParams{OrderNo: row.Order.OrderNo, Generation: row.UndoGeneration, Step: row.Step,
		Claims: row.Claims, Call: call, Outcome: outcome, Delay: delay.Seconds(), Code: answer.Code, Detail: answer.Detail})
	if err != nil {
		e.log.Warn("keep the undoing of a late effect", "order_id", row.Order.OrderID, "error", err)
	}
}

// callLate undoes one key, whether or not somebody drives the order. An undo by an expired key finds nothing and reports success, so it
// is not sent. The number of the call is 0 where none was made.
func (e *Engine) callLate(row db.LateUndosClaimRow) (result provider.Result, number int32) {
	of := fsm.Step(row.Step)
	p, runs := e.policies.byVersion(row.UndoPolicy)
	if !runs || p == nil || !p.Step(of).Executor.Remote() {
		return provider.Unknown{Code: "policy_unusable"}, 0
	}
	ctx, cancel := context.WithTimeout(e.ctx, p.Step(of).Timeout)
	defer cancel()
	known, err := e.keyOf(ctx, row.Order.OrderNo, sentKey{step: of, generation: row.UndoGeneration}, provider.Undo)
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case known.own.undoKeyExpired(p.Step(of), &row.Order, nil, e.now()):
		return attention{reason: outcomeUnknown}, 0
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order, r.preflight = row.Order, known
	r.call = &call{pool: e.callPool(*row.UndoPolicy, of, p), step: of, generation: row.UndoGeneration, operation: provider.Undo,
		fence: row.Order.Fence, undoReference: known.own.referenceToUndo(p.Step(of).Executor)}
	return e.beginLate(ctx, r, row)
}

// beginLate commits the call and makes it.
func (e *Engine) beginLate(ctx context.Context, r *run, row db.LateUndosClaimRow) (provider.Result, int32) {
	c := r.call
	request, err := e.callOf(ctx, r)
	c.asked = time.Now()
	var begun []db.LateUndoBeginRow
	if err == nil {
		begun, err = e.query.LateUndoBegin(ctx, db.LateUndoBeginParams{OrderNo: r.no(), Seq: row.Order.Seq, Generation: c.generation, Step: string(c.step),
			Claims: row.Claims, Policy: row.UndoPolicy, UndoReference: c.undoReference, LeaseSeconds: (c.pool.cfg.Timeout + leaseMargin).Seconds()})
	}
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case len(begun) == 0:
		return provider.Unknown{Code: "overtaken", Detail: "the order was written to meanwhile"}, 0
	}
	c.number, c.lookOnly = begun[0].Call, r.preflight.own.undoKeyExpired(c.pool.cfg, &r.order, nil, begun[0].StartedAt)
	made := time.Now()
	c.result = c.perform(ctx, request)
	e.answered(r, time.Since(made))
	return c.result, c.number
}

// fenced keeps an answer that came when the order was no longer ours, or no longer where
// it was. It moves nothing; what it reports may have to be undone.
func (e *Engine) fenced(r *run) {
	c := r.call
	r.call = nil
	if c == nil || c.result == nil || c.number == 0 || c.source != "" || c.fence == r.order.Fence {
		return // under the same fence it was we who recorded it, and did not hear so
	}
	e.Stats.FencedAnswers.Add(1)
	outcome, _ := namedResult(c.result)
	e.log.Warn("answer of a provider fenced", "order_id", r.orderID, "step", c.step, "call", c.number, "fence", c.fence, "outcome", outcome)
	late := newRun(r.orderID, Input{}) // the order itself goes on without it
	late.order.OrderNo, late.call = r.no(), c
	if e.keepFenced(late) != nil {
		e.unwritten.Add(late)
	}
}

// keepFenced writes such an answer down and, where it reports an effect, opens its undoing.
// It may be done again.
func (e *Engine) keepFenced(r *run) error {
	c := r.call
	outcome, answer := namedResult(c.result)
	err := e.query.CallFenced(e.ctx, db.CallFencedParams{OrderNo: r.no(), Call: c.number, Fence: c.fence,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail, Ref: answer.Reference})
	if err != nil || outcome != "done" || c.operation != provider.Do {
		return err
	}
	return e.reportLate(e.ctx, newTarget(r.no(), r.orderID, c.generation, c.step), lateEffect{"a call that was fenced", answer.Reference})
}

// keepUnwritten is the flush of the queue of fenced answers that could not be written. Nobody
// else has heard them, so each is tried until it is written or the engine stops.
func (e *Engine) keepUnwritten(runs []*run) {
	for _, r := range runs {
		for try := 0; e.ctx.Err() == nil; try++ {
			err := e.keepFenced(r)
			if err == nil {
				break
			}
			if bad := db.FaultOf(err) == db.Bad; bad || try%20 == 0 {
				e.log.Error("keep a fenced answer", "order_id", r.orderID, "call", r.call.number, "tries", try+1, "error", err)
				if bad {
					break // its own fault: the others behind it are not to wait
				}
			}
			e.pause(min(20*time.Millisecond<<min(try, 6), time.Second))
		}
	}
}

// namedResult is a result as it is stored.
func namedResult(result provider.Result) (outcome string, answer ledger.Answer) {
	switch result := result.(type) {
	case provider.Done:
		return "done", ledger.Answer{Reference: result.Reference, Data: string(result.Data)}
	case provider.Refused:
		return "refused", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case provider.Retry:
		return "retry", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case unseen:
		return "retry", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case provider.Waiting:
		return "waiting", ledger.Answer{Reference: result.Reference}
	case provider.Unknown:
		return "unknown", ledger.Answer{Code: result.Code, Detail: result.Detail, Reference: result.Reference}
	default:
		return "unknown", ledger.Answer{}
	}
}

// lateEffect is how an effect was heard of, and what the provider calls it, if it said so.
type lateEffect struct{ reason, reference string }

// reportLate opens the undoing of an effect that the books say is absent or undone. With an
// error it may not be open: who heard of the effect has to report it again.
func (e *Engine) reportLate(ctx context.Context, of callbackTarget, late lateEffect) error {
	if of.step == fsm.Confirm {
		return nil // it has no undo; verify --provider shows it
	}
	rows, err := e.query.LateUndoOpen(ctx, db.LateUndoOpenParams{OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step), Reason: late.reason, Ref: late.reference})
	if err != nil {
		return fmt.Errorf("open the undoing of a late effect: %w", err)
	}
	if len(rows) > 0 {
		e.log.Warn("late effect is being undone", "order_no", of.orderNo, "generation", of.generation, "step", of.step, "reason", late.reason)
	}
	return nil
}
