package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

// cell is a step and what the provider does to it, and how its orders end.
type cell struct {
	name  string
	fault string // the same at all steps
	rules []simulator.Rule
	ends  string // the status, or "held: " and how the reason begins
}

// passing are faults of any request. It is sent again until they have passed.
var passing = []simulator.Rule{
	{Fault: simulator.Error, Times: 2},
	{Fault: simulator.ErrorAfter, Times: 2},
	{Fault: simulator.NotDone, Times: 2},
	{Fault: simulator.RateLimit, Times: 1},
	{Fault: simulator.RefuseConnection, Times: 2},
	{Fault: simulator.Hang, Times: 1},
	{Fault: simulator.TimeoutBefore, Times: 2},
	{Fault: simulator.TimeoutAfter, Times: 2},
	{Fault: simulator.CutAfter, Times: 2},
}

// doing are faults of doing a step, none of which an order that is otherwise good may fail by.
var doing = slices.Concat(passing, []simulator.Rule{
	{Fault: simulator.Slow, Delay: 100 * time.Millisecond},
	{Fault: simulator.Slow, Delay: overlong}, // longer than the time-out: done after the caller has given up
	{Fault: simulator.Async, Delay: 100 * time.Millisecond},
	{Fault: simulator.Async, Delay: longest}, // longer than the callback time-out
	{Fault: simulator.AnswerTwice},
	{Fault: simulator.CallbackTwice, Delay: 50 * time.Millisecond},
	{Fault: simulator.CallbackLate, Delay: 200 * time.Millisecond},
	{Fault: simulator.CallbackLate, Delay: longest},
	{Fault: simulator.CallbackBefore},
	{Fault: simulator.CallbackNever},
})

// refusing are faults of doing a step that is refused in the end.
var refusing = []simulator.Rule{
	{Fault: simulator.Decline},
	{Fault: simulator.TimeoutAfter, Code: "card_declined", Times: 1},
	{Fault: simulator.CutAfter, Code: "card_declined", Times: 1},
	{Fault: simulator.ErrorAfter, Code: "card_declined", Times: 1},
	{Fault: simulator.Slow, Code: "card_declined", Delay: overlong},
	{Fault: simulator.Async, Code: "card_declined", Delay: 100 * time.Millisecond},
	{Fault: simulator.CallbackTwice, Code: "card_declined"},
	{Fault: simulator.CallbackBefore, Code: "card_declined"},
	{Fault: simulator.CallbackNever, Code: "card_declined"},
}

// undoing are faults of undoing a step.
var undoing = slices.Concat(passing, []simulator.Rule{
	{Fault: simulator.Slow, Delay: overlong, Times: 1},
	{Fault: simulator.Decline, Times: 1},
})

// cells are all of them, for an executor that can look up a key or one that can't. The orders of a cell are those whose
// id begins with its name.
func cells(looks bool) (all []cell) {
	for _, step := range []string{"charge", "reserve", "confirm"} {
		for _, rule := range doing {
			all = append(all, newCell(step, "do", rule, "completed"))
		}
		for _, rule := range refusing {
			ends := "failed"
			if step == "confirm" && doubtful(rule.Fault) && !looks {
				ends = "held: refused_in_doubt" // nothing undoes a confirmation, should the first call have been heard
			}
			all = append(all, newCell(step, "do", rule, ends))
		}
		all = append(all, newCell(step, "do", simulator.Rule{Fault: simulator.Error}, "held: retries_exhausted"))
		all = append(all, newCell(step, "do", simulator.Rule{Fault: simulator.TimeoutBefore, Delay: 1}, "held: retries_exhausted"))
	}
	for _, step := range []string{"charge", "reserve"} {
		for _, rule := range undoing {
			ends := "failed"
			if rule.Fault == simulator.Decline {
				ends = "held: undo_refused"
			}
			c := newCell(step, "undo", rule, ends)
			c.rules = append(c.rules, simulator.Rule{Fault: simulator.Decline, Step: "confirm", OrderPrefix: c.name})
			all = append(all, c)
		}
	}
	return all
}

// doubtful tells the faults that leave a refusal in doubt until it is asked for again.
func doubtful(fault simulator.Fault) bool {
	switch fault {
	case simulator.TimeoutAfter, simulator.CutAfter, simulator.ErrorAfter, simulator.Slow, simulator.CallbackNever:
		return true
	default:
		return false
	}
}

func newCell(step, operation string, rule simulator.Rule, ends string) cell {
	rule.Step, rule.Operation = step, operation
	fault := fmt.Sprintf("%s-%d-%s-%s-", rule.Fault, rule.Times, rule.Delay, rule.Code)
	rule.OrderPrefix = fmt.Sprintf("%s-%s-%s", step, operation, fault)
	return cell{rule.OrderPrefix, kindOf(operation) + fault, []simulator.Rule{rule}, ends}
}

// kindOf is the same for what is asked of providers in general and for the requests of Stripe's API that do it.
func kindOf(operation string) string {
	for kind, names := range requests {
		if slices.Contains(names, operation) {
			return kind
		}
	}
	return operation
}

// usualCells are those of a usual run, in which an executor meets every fault at one of the steps. The next
// executor meets it at the next step. A refusal in doubt that nothing can undo comes every time.
func usualCells(all []cell, executor string) (some []cell) {
	var faults []string
	at := map[string][]cell{}
	for _, c := range all {
		if at[c.fault] == nil {
			faults = append(faults, c.fault)
		}
		at[c.fault] = append(at[c.fault], c)
	}
	first := map[string]int{blind: 1, stripeLater: 1}[executor]
	for i, fault := range faults {
		chosen := (first + i) % len(at[fault])
		for n, c := range at[fault] {
			if n == chosen || c.ends == "held: refused_in_doubt" {
				some = append(some, c)
			}
		}
	}
	return some
}

func (c cell) wrong(o outcome) bool {
	if reason, held := strings.CutPrefix(c.ends, "held: "); held {
		return o.Hold != "attention" || !strings.HasPrefix(o.Reason, reason)
	}
	return o.Status != c.ends
}

// TestMatrixOfFaults sends an order into every cell at once, round by round, and looks at the books of the provider when
// they have ended.
func TestMatrixOfFaults(t *testing.T) {
	build(t)
	t.Parallel()
	for _, c := range []struct {
		name, executor string
		replicas       int
		repeated       bool // only where faults are repeated
	}{
		{"a replica that asks before it calls again", looking, 1, false},
		{"replicas that ask before they call again", looking, several(), true},
		{"a replica that can only call again", blind, 1, true},
		{"replicas that can only call again", blind, several(), false},
		{"a replica that takes the money at once", stripeNow, 1, true},
		{"replicas that take the money at once", stripeNow, several(), false},
		{"a replica that captures it at the end", stripeLater, 1, false},
		{"replicas that capture it at the end", stripeLater, several(), true},
	} {
		if !c.repeated || repeated() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				openShop(t, c.executor, callLimit).meetFaults(c.executor, c.replicas)
			})
		}
	}
}

func (s *shop) meetFaults(executor string, n int) {
	t := s.t
	t.Helper()
	all, perCell := cells(executor == looking), rounds(t, 1)
	if executor == stripeNow || executor == stripeLater {
		all = stripeCells(executor)
	}
	if !repeated() {
		all = usualCells(all, executor)
	}
	var rules []simulator.Rule
	for _, c := range all {
		rules = append(rules, c.rules...)
	}
	s.faults(rules...)
	s.open(n)
	var took time.Duration
	for round := range perCell { // thousands of calls at once would time out of themselves
		each(len(all), 8, func(i int) { s.order(fmt.Sprint(all[i].name, round)) })
		took += s.settle(3 * patience)
	}
	s.proveCells(all, perCell)
	s.prove()
	sum := s.provider.Summary()
	t.Logf("%d cells, %d orders ended in %s; %d requests, %d duplicates suppressed, %d refused after an undo",
		len(all), len(all)*perCell, took, sum.Requests, sum.DuplicatesSuppressed, sum.RefusedAfterUndo)
	assert.True(t, sum.DuplicatesSuppressed != 0, "the fault did not bite")
}

// proveCells looks at how the orders of every cell have ended.
func (s *shop) proveCells(all []cell, perCell int) {
	s.t.Helper()
	orders := s.outcomes()
	for _, c := range all {
		shown := false
		for i := range perCell {
			o, found := orders[fmt.Sprint(c.name, i)]
			if !found || c.wrong(o) {
				s.t.Errorf("%s%d: ended %s, want %s", c.name, i, o, c.ends)
				if !shown {
					s.t.Log(s.trace(o.ID))
					shown = true
				}
			}
		}
	}
}

// stripeCells are those of a charge by Stripe: for each of its requests what may go wrong with it, and how orders end. The
// other steps have cells of their own, but for a capture.
func stripeCells(executor string) (all []cell) {
	undo := "refund" // of money that was taken
	if executor == stripeLater {
		undo = "cancel" // of money that is on hold
		all = append(all, stripeDoing("confirm", "capture")...)
	}
	all = append(all, stripeDoing("charge", "confirm")...)
	asks := executor == stripeNow || repeated() // the requests that are the same whenever the money is taken
	for _, rule := range undoing {              // an intent that is made is no effect: what goes wrong with it is what goes wrong with an undo
		ends := "completed"
		switch rule.Fault {
		case simulator.Decline, simulator.Error, simulator.ErrorAfter: // with this key there will never be one
			ends = "failed"
		default:
		}
		if asks {
			all = append(all, newCell("charge", "create", rule, ends))
		}
	}
	for _, rule := range undoing {
		if rule.Fault != simulator.Decline {
			all = append(all, newCell("charge", undo, rule, "failed").refusedAt("reserve"))
		}
		if asks && rule.Fault != simulator.Decline && rule.Fault != simulator.Slow { // the charge is unknown, and then its state
			c := newCell("charge", "read", rule, "completed")
			c.rules = append(c.rules, simulator.Rule{Fault: simulator.TimeoutAfter, Times: 1, Step: "charge", Operation: "confirm", OrderPrefix: c.name})
			all = append(all, c)
		}
	}
	never := map[string]string{"refund": "held: undo_refused", "cancel": "held: retries_exhausted"}[undo] // what can't be canceled may be charged yet
	return append(all, newCell("charge", undo, simulator.Rule{Fault: simulator.Decline}, never).refusedAt("reserve"))
}

func stripeDoing(step, request string) (all []cell) {
	for _, rule := range doing {
		all = append(all, newCell(step, request, rule, "completed"))
	}
	for _, rule := range refusing {
		all = append(all, newCell(step, request, rule, "failed"))
	}
	return append(all,
		newCell(step, request, simulator.Rule{Fault: simulator.Error}, "held: retries_exhausted"),
		newCell(step, request, simulator.Rule{Fault: simulator.Error, Status: 503, Delay: 1}, "held: retries_exhausted"))
}

// refusedAt has the orders of a cell refused at a step, so that what was done before it is undone.
func (c cell) refusedAt(step string) cell {
	c.rules = append(c.rules, simulator.Rule{Fault: simulator.Decline, Step: step, OrderPrefix: c.name})
	return c
}
