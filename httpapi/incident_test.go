package httpapi

import (
	"fmt"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// A provider that fails under several policies is one incident, with the orders of both directions that are retried at it.
func TestFailingProviders(t *testing.T) {
	t.Parallel()
	first, later := time.Unix(100, 0), time.Unix(200, 0)
	all := failingProviders(&orders.Overview{
		Steps: []orders.ProviderStep{
			{Policy: 1, Step: fsm.Charge, Breaker: "open", FailingSince: &later, Host: "old.example", Failure: "http_503", Budget: time.Hour},
			{Policy: 2, Step: fsm.Charge, Breaker: "half_open", FailingSince: &first, Host: "pay.example", Failure: "connection refused", Budget: time.Minute},
			{Policy: 2, Step: fsm.Reserve, Breaker: "closed"},
		},
		Groups: []orders.HeldGroup{
			{Status: fsm.Charging, Hold: "retry", Currency: "USD", Orders: 2, Amount: "999999999999999.99", TriedSince: later},
			{Status: fsm.Refunding, Hold: "retry", Currency: "USD", Trying: true, Orders: 1, Amount: "999999999999999.99", TriedSince: first},
			{Status: fsm.Charging, Hold: "retry", Currency: "JPY", Orders: 1, Amount: "500"},
			{Status: fsm.Charging, Hold: "attention", Currency: "USD", Orders: 1, Amount: "1.00"},
			{Status: fsm.Reserving, Hold: "retry", Currency: "USD", Orders: 1, Amount: "1.00"},
			{Status: fsm.Charging, Hold: "retry", Route: "of another provider", Currency: "USD", Orders: 1, Amount: "1.00"},
		},
	})
	assert.Require(t, len(all) == 1, all)
	i := all[0]
	assert.Equal(t, i.Step, "charge")
	assert.Equal(t, i.Since.Unix(), first.Unix())
	assert.Equal(t, i.NeedsPerson.Unix(), first.Unix()+60, "when the first budget ends")
	assert.Equal(t, fmt.Sprint(i.Orders, " wait, of which tried again: ", i.Trying), "4 wait, of which tried again: 1")
	assert.Equal(t, fmt.Sprint(i.Host, ": ", i.Detail, ", policy ", i.Policy), "old.example, pay.example: connection refused, policy 2")
	assert.Equal(t, i.Totals[0].Amount+" "+i.Totals[1].Amount, "1999999999999999.98 500")

	steps := orders.Overview{Steps: []orders.ProviderStep{{Policy: 1, Step: fsm.Charge}, {Policy: 2, Step: fsm.Charge, FailedAt: &later}, {Policy: 2, Step: fsm.Reserve}},
		Groups: []orders.HeldGroup{{Status: fsm.Charging, Hold: "retry", Orders: 2}, {Status: fsm.Releasing, Hold: "retry", Orders: 3}}}
	var counts []int64
	for i := range steps.Steps {
		counts = append(counts, retrying(&steps, &steps.Steps[i]))
	}
	assert.Equal(t, counts, []int64{0, 2, 3}, "retried at each step: where it fails, and once")

	held := waitingForPeople(&orders.Overview{Groups: []orders.HeldGroup{{Status: fsm.Charging, Hold: "attention", Reason: "retries_exhausted", Orders: 1},
		{Status: fsm.Refunding, Hold: "attention", Reason: "retries_exhausted", Orders: 2}}}, "attention")
	assert.Equal(t, fmt.Sprintln(len(held), held[1].Step, held[1].Status, held[1].Orders), "2 charge refunding 2\n", "the undo of a step that failed is another incident")

	waiting := waitingOperations([]orders.WaitingOperations{{Kind: "refund", Currency: "JPY", Operations: 1, Amount: "500", Since: later, Next: first, Code: "timeout"},
		{Kind: "refund", Currency: "USD", Operations: 11, Amount: "340.00", Since: first, Next: later, Code: "http_503"}, {Kind: "refund", Unknown: true, Currency: "USD", Operations: 1, Amount: "1.00"}})
	assert.Equal(t, len(waiting), 2, "incidents of refunds: one that is retried, and one that is not")
	assert.Equal(t, fmt.Sprintln(waiting[0].Orders, waiting[0].Since.Unix(), waiting[0].Until.Unix(), waiting[0].Detail, len(waiting[0].Totals), waiting[1].Reason), "12 100 100 timeout 2 outcome_unknown\n")
}
