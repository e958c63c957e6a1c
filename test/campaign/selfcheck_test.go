package campaign

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// checksFindWhatIsWrong runs orders without any fault, which must be in order, and then breaks one thing after the other: a
// check that can't fail is none.
func checksFindWhatIsWrong(t *testing.T, yard *yard, template *postgres) {
	t.Helper()
	f := &field{t: t, yard: yard, row: &row{name: "none", people: true, disturb: nothing}, seed: 1, dice: newDice(1, 1),
		template: template, limit: 2 * time.Second, crowd: usualCrowd}
	f.prepare(t.Context())
	f.fight(t.Context())
	wrong := f.settle(t.Context(), settleLimit)
	if wrong = append(wrong, f.check(t.Context())...); len(wrong) > 0 {
		t.Fatalf("without faults: %q", wrong)
	}
	o := f.anyCompleted(t)
	f.people.act(t.Context(), o, nil, "refund")
	wrong = f.settle(t.Context(), settleLimit)
	if wrong = append(wrong, f.check(t.Context())...); len(wrong) > 0 {
		t.Fatalf("after a refund: %q", wrong)
	}
	for _, c := range []struct {
		name  string
		spoil func()
		found func() []string
	}{
		{"an effect that the provider does not have", func() { f.liveEntry(o).state = "undone" }, func() []string { return f.checkProvider(f.readBooks()) }},
		{"two effects under one key", func() { f.liveEntry(o).happened++ }, func() []string { return f.checkProvider(f.readBooks()) }},
		{"a second key for a step", func() {
			again := f.liveEntry(o).ask
			f.provider.do("another key", nil, &again, "")
		}, func() []string { return f.checkProvider(f.readBooks()) }},
		{"a refund that the provider does not have", func() { f.refundOf(o).state = "refused" }, f.checkRefunds},
		{"an answer that is not true any more", func() {
			f.spoilAnswer(&answer{asked: "order", orderID: o, status: http.StatusOK, order: shown{Status: "canceled", Seq: 1}})
		}, func() []string { return f.checkAnswers(f.readBooks()) }},
		{"an order that was lost", func() { f.callers.orders = append(f.callers.orders, &order{id: "lost", stored: true}) },
			func() []string { return f.checkOrders(f.readBooks()) }},
		{"a verb that was lost", func() {
			f.spoilAnswer(&answer{asked: "pause", orderID: o, requestID: "lost", status: http.StatusOK})
		}, func() []string { return f.checkVerbs(f.readBooks()) }},
		{"stock that was lost", func() { f.people.shelves[0] = shelf{1000, 1000} }, f.checkStock},
		{"a callback that was lost", func() { f.provider.told = append(f.provider.told, callback{url: "api/callbacks/none", accepted: true}) },
			func() []string { return f.checkCallbacks(t.Context()) }},
		{"stock that was sold twice", func() { f.server.exec("UPDATE inventory SET on_hand = on_hand + 1 WHERE item = 'scarce-0'") }, f.checkStock},
		{"a gap in a history", func() {
			f.server.exec("SET LOCAL pawl.archive = on; DELETE FROM transitions AS t USING orders AS o WHERE o.order_no = t.order_no AND t.seq = 2 AND o.order_id = '" + o + "'")
		}, func() []string { return f.checkOrders(f.readBooks()) }},
		{"a charge that is gone", func() {
			f.server.exec("SET LOCAL pawl.archive = on; DELETE FROM charges AS c USING orders AS o WHERE o.order_no = c.order_no AND o.order_id = '" + o + "'")
		}, func() []string { return f.checkOrders(f.readBooks()) }},
	} {
		before := c.found()
		c.spoil()
		if !slices.ContainsFunc(c.found(), func(v string) bool { return !slices.Contains(before, v) }) {
			t.Errorf("%s: not found", c.name)
		}
	}
	if f.verify(t.Context()) == nil {
		t.Error("pawl verify finds nothing of all that")
	}
}

// anyCompleted is a completed order with a charge of the provider's.
func (f *field) anyCompleted(t *testing.T) string {
	t.Helper()
	for id, o := range f.readBooks() {
		if o.Status == "completed" && o.StandingRemote == 1 {
			return id
		}
	}
	t.Fatal("no order was completed with the provider")
	return ""
}

func (f *field) liveEntry(orderID string) *entry {
	entries := f.provider.steps[orderID+"/charge"]
	return entries[slices.IndexFunc(entries, func(e *entry) bool { return e.happened > 0 })]
}

// refundOf is a refund of an order at the provider.
func (f *field) refundOf(orderID string) *entry {
	return f.provider.order[slices.IndexFunc(f.provider.order, func(e *entry) bool {
		return e.ask.OrderID == orderID && e.ask.Step == refundStep && e.state == "live"
	})]
}

func (f *field) spoilAnswer(a *answer) {
	a.sent = time.Now()
	a.at = a.sent
	f.callers.answers = append(f.callers.answers, *a)
}
