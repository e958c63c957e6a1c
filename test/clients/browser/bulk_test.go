package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pawl/client"
)

// bulk are the verbs that people ask of many orders, each with an item whose orders let them, and what becomes of these.
var bulk = []struct {
	verb, label, item, becomes string
	done                       string   // as the results name it
	paused                     bool     // the orders were paused before
	fields                     []string // what has to be said before anything is shown
}{
	{verb: "retry", label: "Retry", item: "once-stuck", becomes: "completed", done: "retried"},
	{verb: "approve", label: "Approve", item: "yacht", becomes: "completed", done: "approved"},
	{verb: "reject", label: "Reject", item: "yacht", becomes: "canceled", done: "rejected"},
	{verb: "pause", label: "Pause", item: "yacht", becomes: "paused", done: "paused"},
	{verb: "resume", label: "Resume", item: "yacht", becomes: "approval", done: "resumed", paused: true},
	{verb: "cancel", label: "Cancel", item: "stuck", becomes: "canceled", done: "canceled"},
	{verb: "step-result", label: "Say what became of the step for", item: "stuck", becomes: "failed", done: "given a result",
		fields: []string{"step = charge", "outcome = refused", "code = by_phone", "reason = seen by hand", "press See what would be done"}},
}

// TestBulk asks each verb of three orders that are chosen in the list, one of which is completed and can't be asked.
func TestBulk(t *testing.T) {
	t.Parallel()
	for _, ask := range bulk {
		t.Run(ask.verb, func(t *testing.T) {
			t.Parallel()
			ids := ordersOf(t, "bulk-"+ask.verb, ask.item, ask.item, "widget")
			if ask.paused {
				for _, id := range ids[:2] {
					if _, err := shared.api.PauseOrder(t.Context(), id, nil, client.VerbBody{Reason: "first"}); err != nil {
						t.Fatal(err)
					}
				}
			}
			b := maria(t)
			b.visit("/console/orders?q=customer:bulk-" + ask.verb)
			steps := []string{"verb = " + ask.verb, "choose " + ids[0], "choose " + ids[1], "choose " + ids[2], "press Look what would happen"}
			steps = append(steps, ask.fields...)
			steps = append(steps, "shows Not possible for 1", "reason = seen by hand", "press "+ask.label+" 2 orders", "shows 2 orders "+ask.done)
			for _, step := range steps {
				b.take(step)
			}
			for _, id := range ids[:2] {
				becomes(t, id, ask.becomes)
				asked(t, id, ask.verb)
			}
			becomes(t, ids[2], "completed")
		})
	}
}

// TestErrorGroup retries all orders that failed for the same reason, from their row on the screen of errors.
func TestErrorGroup(t *testing.T) {
	t.Parallel()
	ids := ordersOf(t, "limited", "once-limited", "once-limited")
	b := maria(t)
	b.visit("/console/errors")
	b.pressIn("Retry all of these", "limit_reached")
	for _, step := range []string{"shows " + ids[0], "shows " + ids[1], "reason = seen by hand", "press Retry 2 orders", "shows 2 orders retried"} {
		b.take(step)
	}
	for _, id := range ids {
		becomes(t, id, "completed")
		asked(t, id, "retry")
	}
}

// TestIDsByHand asks a verb of orders whose ids are typed in, one of which nobody has, in a browser without scripts.
func TestIDsByHand(t *testing.T) {
	t.Parallel()
	id := process(t, client.ProcessBody{Item: "yacht"}).OrderID
	b := maria(t)
	b.withoutScript()
	b.visit("/console/bulk")
	for _, step := range []string{"verb = pause", "ids = " + id + "\nnobody's order", "press See what would be done", "shows Not possible for 1", "shows nobody's order",
		"press Pause 1 order", "shows 1 order paused"} {
		b.take(step)
	}
	becomes(t, id, "paused")
}

// ordersOf makes an order of each item for a customer.
func ordersOf(t *testing.T, customer string, items ...string) (ids []string) {
	t.Helper()
	for i, item := range items {
		ids = append(ids, process(t, client.ProcessBody{OrderID: fmt.Sprintf("%s-%d", customer, i+1), Item: item, CustomerID: customer}).OrderID)
	}
	return ids
}

// asked fails the test if the history of an order does not have the verb, with who asked it and why.
func asked(t *testing.T, id, verb string) {
	t.Helper()
	history, err := shared.api.ListTransitions(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(history.Transitions, func(m client.Transition) bool {
		return strings.ReplaceAll(m.Verb, "_", "-") == verb && m.Actor == "token:maria" && m.Reason == "seen by hand"
	}) {
		t.Errorf("nobody has asked to %s %s: %+v", verb, id, history.Transitions)
	}
}
