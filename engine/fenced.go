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

// fence takes from a run the answer of a call that came when the order was not ours any more, or no longer where
// it was. The answer goes on by itself, as a run of its own: it moves nothing, but what it reports may have to be undone.
func (e *core) fence(r *run) []*run {
	c := r.call
	r.call = nil
	if c == nil || c.result == nil || c.number == 0 || c.source != "" || c.fence == r.order.Fence {
		return nil // under the same fence it was we who recorded it, and did not hear so
	}
	e.Stats.FencedAnswers.Add(1)
	outcome, _ := namedResult(c.result)
	e.log.Warn("answer of a provider fenced", "order_id", r.orderID, "step", c.step, "call", c.number, "fence", c.fence, "outcome", outcome)
	late := newRun(r.orderID, Input{}) // the order itself goes on without it
	late.order.OrderNo, late.call = r.no(), c
	return goTo(toFenced, late)
}

// keepAllFenced writes such answers down, and returns those that could not be written.
func (e *core) keepAllFenced(runs []*run) []*run {
	return slices.DeleteFunc(goTo(toUnwritten, runs...), func(r *run) bool { return e.keepFenced(r) == nil })
}

// keepFenced writes such an answer down and, where it reports an effect, opens its undoing.
// It may be done again.
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

// keepUnwritten writes fenced answers that could not be written at once. No other process
// has heard them, so each is tried until it is written or the engine stops.
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
					break // its own fault: the others behind it are not to wait
				}
			}
			e.pause(min(20*time.Millisecond<<min(try, 6), time.Second))
		}
	}
	return nil
}

// lateEffect is how an effect was heard of, and what the provider calls it, if it said so.
type lateEffect struct{ reason, reference string }

// reportLate opens the undoing of an effect that the books say is absent or undone. With an
// error it may not be open: who heard of the effect has to report it again.
func (e *core) reportLate(ctx context.Context, of callbackTarget, late lateEffect) error {
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
