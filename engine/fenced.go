package engine

import (
	"context"

	"pawl/db"
	"pawl/fsm"
	"pawl/step"
)

// fenced keeps an answer that came when the order was no longer ours, or no longer where
// it was. It moves nothing; what it reports may have to be undone.
func (e *Engine) fenced(r *run) {
	a := r.attempt
	r.attempt = nil
	if a == nil || a.result == nil || a.number == 0 || a.source != "" || a.fence == r.order.Order.Fence {
		return // under the same fence it was we who recorded it, and did not hear so
	}
	e.Stats.FencedAnswers.Add(1)
	ctx, cancel := e.statement()
	defer cancel()
	outcome, answer := namedResult(a.result)
	err := e.query.AttemptFenced(ctx, db.AttemptFencedParams{OrderNo: r.no(), Attempt: a.number, Fence: a.fence,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail, Ref: answer.Reference})
	if err != nil {
		e.log.Warn("keep a fenced answer", "order_id", r.orderID, "attempt", a.number, "outcome", outcome, "error", err)
	}
	e.log.Warn("answer of a provider fenced", "order_id", r.orderID, "step", a.step, "attempt", a.number, "fence", a.fence, "outcome", outcome)
	if outcome == "done" && a.operation == step.Do {
		e.reportLate(ctx, told{r.no(), a.generation, a.step}, lateEffect{"an attempt that was fenced", answer.Reference})
	}
}

// namedResult is a result as it is stored.
func namedResult(result step.Result) (outcome string, answer step.Answer) {
	switch result := result.(type) {
	case step.Done:
		return "done", step.Answer{Reference: result.Reference, Data: string(result.Data)}
	case step.Refused:
		return "refused", step.Answer{Code: result.Code, Detail: result.Detail}
	case step.Retry:
		return "retry", step.Answer{Code: result.Code, Detail: result.Detail}
	case step.Waiting:
		return "waiting", step.Answer{Reference: result.Reference}
	case step.Unknown:
		return "unknown", step.Answer{Code: result.Code, Detail: result.Detail}
	default:
		return "unknown", step.Answer{}
	}
}

// lateEffect is how an effect was heard of, and what the provider calls it, if it said so.
type lateEffect struct{ reason, reference string }

// reportLate opens the undoing of an effect that the books say is absent or undone.
func (e *Engine) reportLate(ctx context.Context, of told, late lateEffect) {
	if of.step == fsm.Confirm {
		return // it has no undo; verify --provider shows it
	}
	rows, err := e.query.LateUndoOpen(ctx, db.LateUndoOpenParams{OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step), Reason: late.reason, Ref: late.reference})
	if err != nil {
		e.log.Error("open the undoing of a late effect", "order_no", of.orderNo, "step", of.step, "error", err)
	} else if len(rows) > 0 {
		e.log.Warn("late effect is being undone", "order_no", of.orderNo, "generation", of.generation, "step", of.step, "reason", late.reason)
	}
}
