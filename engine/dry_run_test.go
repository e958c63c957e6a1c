package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// TestDryRunShowsTheOrderAsItWouldBe: where nothing follows from a verb at once, the order is just so afterwards.
func TestDryRunShowsTheOrderAsItWouldBe(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Confirming, "held")
	b.process(t, request("completed"))
	half := decimal.MustParse("4")
	for _, q := range []engine.Request{
		{OrderID: "held", Verb: orders.Resume, Async: true},
		{OrderID: "completed", Verb: orders.Refund, RequestID: "1", Reason: "broken", Refund: &engine.Refund{Amount: &half}},
		{OrderID: "completed", Verb: orders.Refund, RequestID: "2", Reason: "all of it", Refund: &engine.Refund{}},
	} {
		q.DryRun = true
		would := b.do(t, q)
		q.DryRun = false
		is := b.do(t, q)
		if shown(&would) != shown(&is) && q.Verb == orders.Refund || would.Hold != nil {
			t.Errorf("%s\nwould leave %s\nit left     %s", q.Verb, shown(&would), shown(&is))
		}
	}
}

// shown is what a verb changes of an order.
func shown(o *orders.Order) string {
	refunds := orders.Refunds(o)
	for i := range refunds {
		refunds[i].CreatedAt, refunds[i].FinishedAt = o.CreatedAt, nil
	}
	line, _ := json.Marshal([]any{o.Status, o.Hold, o.HoldReason, o.StopRequested, o.FailureCode, o.Generation, o.Policy, orders.AllowedActions(o), refunds})
	return string(line)
}
