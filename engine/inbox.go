package engine

import (
	"slices"

	"pawl/db"
	"pawl/fsm"
	"pawl/provider"
)

// lookInbox looks for answers that came without a call, before another call is made.
func (e *Engine) lookInbox(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.AnswersWaiting(ctx, numbersOf(set))
	if e.standsDown("look for answers", err, set) {
		return
	}
	if err != nil {
		e.log.Warn("look for answers", "error", err)
		e.later(set)
		return
	}
	type key struct {
		orderNo int64
		step    fsm.Step
		op      string
	}
	answers := map[key]db.AnswersWaitingRow{}
	for _, row := range rows {
		answers[key{row.OrderNo, fsm.Step(row.Step), row.Operation}] = row
	}
	for _, r := range set {
		o := &r.order
		r.looked = true
		if row, ok := answers[key{r.no(), o.Status.Step(), string(operationIn(o.Status))}]; ok {
			r.attempt = e.answerFor(r, row)
		}
	}
	e.drive(set)
}

// answerFor makes an attempt out of an answer that came without a call, so that both go one way.
func (e *Engine) answerFor(r *run, row db.AnswersWaitingRow) *attempt {
	o := &r.order
	p, _ := e.policies.of(o.Policy)
	a := &attempt{lane: e.lane(*o.Policy, o.Status.Step(), p), state: o.Status, generation: o.Generation,
		step: o.Status.Step(), operation: operationIn(o.Status), number: value(o.Attempts), doubted: value(o.Tries) > 0, source: row.Source}
	switch row.Outcome {
	case "done":
		a.result = provider.Done{Reference: row.Reference, Data: []byte(row.Data)}
	case "refused":
		a.result = provider.Refused{Code: row.Code, Detail: row.Detail}
	default:
		a.result = provider.Retry{Code: row.Code, Detail: row.Detail, Counts: true}
	}
	return a
}
