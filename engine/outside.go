package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/step"
)

// outsidePace is the time between two statements for answers of providers. It is short
// beside a call over a network, and makes sets of what would be single orders: a
// statement costs as much for one order as for ten.
const outsidePace = 20 * time.Millisecond

// special reports whether more than its state decides where an order goes.
func special(r *run) bool {
	o := &r.order.Order
	return o.Policy != nil || o.Status == fsm.Pending || pausing(o)
}

func pausing(o *db.Order) bool  { return o.StopRequested != nil && *o.StopRequested == "pause" }
func stopping(o *db.Order) bool { return o.StopRequested != nil && *o.StopRequested != "pause" }

// route sends runs of one state on their way and returns those that take the ledger's.
func (e *Engine) route(runs []*run) (ledger []*run) {
	for _, r := range runs {
		o := &r.order.Order
		p, known := e.policies.of(o.Policy)
		switch {
		case !special(r):
			ledger = append(ledger, r)
		case r.attempt != nil && r.attempt.result != nil && r.attempt.stands(o):
			e.recordAfter(r)
		case pausing(o):
			e.waits.add(r)
		case !known:
			e.leaving.add(r)
		case o.Status == fsm.Pending:
			if e.gate(r, p) {
				ledger = append(ledger, r)
			}
		case p == nil:
			ledger = append(ledger, r)
		case p.Of(stepOf(o.Status)).Executor.Outside():
			e.lane(*o.Policy, stepOf(o.Status), p).add(r)
		case o.Status == fsm.Confirming && p.Reserve.Executor.Outside():
			e.confirmBeside(r)
		default:
			ledger = append(ledger, r)
		}
	}
	return ledger
}

// recordAfter records an answer after all: somebody wrote to the order meanwhile. If that
// was an answer without a call, one that leaves the order waiting has had its time.
func (e *Engine) recordAfter(r *run) {
	if !r.looked && verdictOf(r.attempt, &r.order.Order) == stays {
		e.inbox.add(r)
		return
	}
	e.records.add(r)
}

// confirmBeside confirms in the database what was reserved elsewhere: there is no stock
// of ours to sell.
func (e *Engine) confirmBeside(r *run) {
	o := &r.order.Order
	p, _ := e.policies.of(o.Policy)
	r.attempt = &attempt{lane: e.lane(*o.Policy, fsm.Confirm, p), state: o.Status, generation: o.Generation,
		step: fsm.Confirm, result: beside{}, uncalled: true}
	if stopping(o) {
		r.attempt.result = stop{}
	}
	e.records.add(r)
}

// lookInbox looks for answers that came without a call, before another call is made.
func (e *Engine) lookInbox(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.AnswersWaiting(ctx, numbersOf(set))
	if err != nil {
		e.log.Warn("look for answers", "error", err)
		e.later(set)
		return
	}
	type key struct {
		orderNo int64
		step    fsm.Step
	}
	answers := map[key]db.AnswersWaitingRow{}
	for _, row := range rows {
		answers[key{row.OrderNo, fsm.Step(row.Step)}] = row
	}
	for _, r := range set {
		o := &r.order.Order
		r.looked = true
		if row, ok := answers[key{r.no(), stepOf(o.Status)}]; ok && !o.Status.Undoing() {
			r.attempt = e.answerFor(r, row)
		}
	}
	e.drive(set)
}

// answerFor makes an attempt's answer of one that came without a call.
func (e *Engine) answerFor(r *run, row db.AnswersWaitingRow) *attempt {
	o := &r.order.Order
	p, _ := e.policies.of(o.Policy)
	a := &attempt{lane: e.lane(*o.Policy, stepOf(o.Status), p), state: o.Status, generation: o.Generation,
		step: stepOf(o.Status), operation: step.Do, number: value(o.Attempts), doubted: value(o.Tries) > 0, source: row.Source}
	switch row.Outcome {
	case "done":
		a.result = step.Done{Reference: row.Reference, Data: []byte(row.Data)}
	case "refused":
		a.result = step.Refused{Code: row.Code, Detail: row.Detail}
	default:
		a.result = step.Retry{Code: row.Code, Detail: row.Detail, Counts: true}
	}
	return a
}

// lookVoids finds the keys of earlier generations that must be dead before another
// charge is sent.
func (e *Engine) lookVoids(set []*run) {
	set = slices.Clone(set)
	for _, r := range set {
		ctx, cancel := e.statement()
		rows, err := e.query.AttemptsToVoid(ctx, db.AttemptsToVoidParams{OrderNo: r.no(), Generation: r.order.Order.Generation})
		cancel()
		if err != nil {
			e.log.Warn("look for keys to void", "order_id", r.orderID, "error", err)
			e.later([]*run{r})
			continue
		}
		r.voided, r.voids = true, nil
		for _, row := range rows {
			r.voids = append(r.voids, voidKey{fsm.Step(row.Step), row.Generation, value(row.Policy)})
		}
		e.drive([]*run{r})
	}
}

// fenced keeps an answer that came when the order was no longer ours, or no longer where
// it was. It moves nothing; what it reports may have to be undone.
func (e *Engine) fenced(r *run) {
	a := r.attempt
	r.attempt = nil
	if a == nil || a.result == nil || a.number == 0 || a.source != "" {
		return
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
		e.reportLate(ctx, r.no(), a.generation, a.step, "an attempt that was fenced")
	}
}

// namedResult is a result as it stands in step_attempts.
func namedResult(result step.Result) (outcome string, answer step.Answer) {
	switch result := result.(type) {
	case step.Done:
		return "done", step.Answer{Reference: result.Reference}
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

// leaveSet hands back orders that this process does not go on with.
func (e *Engine) leaveSet(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	if _, err := e.query.LeasesRelease(ctx, db.LeasesReleaseParams{OrderNos: numbersOf(set), Owner: e.owner}); err != nil {
		e.log.Warn("release leases", "orders", len(set), "error", err)
	}
	e.finish(ErrStopping, set...)
}

// now is the database's time as well as this process knows it.
func (e *Engine) now() time.Time { return time.Now().Add(time.Duration(e.clock.Load())) }

// tick notes the database's clock.
func (e *Engine) tick(database time.Time) { e.clock.Store(int64(time.Until(database))) }

// reportLate opens the undoing of an effect that the books say is absent or undone.
func (e *Engine) reportLate(ctx context.Context, orderNo int64, generation int32, of fsm.Step, reason string) {
	if of == fsm.Confirm {
		return
	}
	rows, err := e.query.LateUndoOpen(ctx, db.LateUndoOpenParams{OrderNo: orderNo, Generation: generation, Step: string(of), Reason: reason})
	if err != nil {
		e.log.Error("open the undoing of a late effect", "order_no", orderNo, "step", of, "error", err)
	} else if len(rows) > 0 {
		e.log.Warn("late effect is being undone", "order_no", orderNo, "generation", generation, "step", of, "reason", reason)
	}
}
