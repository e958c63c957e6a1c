package engine

import (
	"context"
	"fmt"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/provider"
)

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
