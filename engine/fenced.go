package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/internal/provider"
)

// fence detaches from a run the answer of a call that arrived after we lost the order, or after the order had moved.
// The answer becomes a run of its own. It moves no order, but the effect that it reports may have to be undone.
func (e *core) fence(r *run) []*run {
	c := r.call
	r.call = nil
	if c == nil || c.result == nil || c.number == 0 || c.source != "" || c.fence == r.order.Fence {
		return nil // with the same fence, we have recorded it ourselves and lost the reply
	}
	e.Stats.FencedAnswers.Add(1)
	outcome, _ := namedResult(c.result)
	e.log.Warn("answer of a provider fenced", "order_id", r.orderID, "step", c.step, "call", c.number, "fence", c.fence, "outcome", outcome)
	late := newRun(r.orderID, Input{}) // the order continues without it
	late.order.OrderNo, late.call = r.no(), c
	return goTo(toFenced, late)
}

// keepAllFenced stores fenced answers, and returns those that it could not store.
func (e *core) keepAllFenced(runs []*run) []*run {
	return slices.DeleteFunc(goTo(toUnwritten, runs...), func(r *run) bool { return e.keepFenced(r) == nil })
}

// keepFenced stores a fenced answer and, if it reports an effect, opens the undo. It can be repeated.
func (e *core) keepFenced(r *run) error {
	c := r.call
	outcome, answer := namedResult(c.result)
	err := e.query.CallFenced(e.ctx, db.CallFencedParams{OrderNo: r.no(), Call: c.number, Fence: c.fence,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail, Ref: answer.Reference})
	if err != nil || outcome != "done" || c.operation != provider.Do {
		return err
	}
	return e.reportLate(e.ctx, newTarget(r.no(), r.orderID, c.generation, c.step), lateEffect{"a call that was fenced", answer.Reference})
}

// keepUnwritten retries to store fenced answers until it succeeds or the engine stops, because no other process has them.
func (e *core) keepUnwritten(runs []*run) []*run {
	for _, r := range runs {
		for try := 0; e.ctx.Err() == nil; try++ {
			err := e.keepFenced(r)
			if err == nil {
				break
			}
			if bad := pg.FaultOf(err) == pg.Bad; bad || try%20 == 0 {
				e.log.Error("keep a fenced answer", "order_id", r.orderID, "call", r.call.number, "tries", try+1, "error", err)
				if bad {
					break // the answer itself is the cause, so continue with the others
				}
			}
			e.pause(min(20*time.Millisecond<<min(try, 6), time.Second))
		}
	}
	return nil
}

// lateEffect is the source of a report, and the provider's reference of the effect, if any.
type lateEffect struct{ reason, reference string }

// reportLate opens the undo of an effect that is absent or undone in the books. After an error, the caller must report
// it again.
func (e *core) reportLate(ctx context.Context, of callbackTarget, late lateEffect) error {
	if of.step == fsm.Confirm {
		return nil // has no undo; pawl verify --provider shows it
	}
	rows, err := e.query.LateUndoOpen(ctx, db.LateUndoOpenParams{
		OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step), Reason: late.reason, Ref: late.reference})
	if err != nil {
		return fmt.Errorf("open a late undo: %w", err)
	}
	if len(rows) > 0 {
		e.log.Warn("late effect is being undone", "order_no", of.orderNo, "generation", of.generation, "step", of.step, "reason", late.reason)
	}
	return nil
}
