package orders_test

import (
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// TestAllowedActions shows what people can ask of an order, by where it stands.
func TestAllowedActions(t *testing.T) {
	t.Parallel()
	held := func(hold string) orders.Order { return orders.Order{Status: fsm.Charging, Hold: &hold} }
	completed := func(refunds string) orders.Order {
		return orders.Order{Status: fsm.Completed, Amount: decimal.Ten, RefundList: []byte(refunds)}
	}
	now, one, cancel, pause, paused := time.Now(), int32(1), "cancel", "pause", fsm.HoldPaused
	attention, unknown, void := fsm.HoldAttention, orders.RefusedUnknown+": asked", orders.VoidRefused+"closed"
	for _, c := range []struct {
		order string
		is    orders.Order
		want  []string
	}{
		{"driven", orders.Order{Status: fsm.Charging}, []string{"cancel", "pause"}},
		{"driven, to be paused", orders.Order{Status: fsm.Charging, StopRequested: &pause}, []string{"cancel", "resume"}},
		{"driven, to be canceled", orders.Order{Status: fsm.Charging, StopRequested: &cancel}, nil},
		{"on its way back", orders.Order{Status: fsm.Refunding}, []string{"pause"}},
		{"confirming, in doubt", orders.Order{Status: fsm.Confirming, InDoubtSince: &now}, []string{"pause"}},
		{"completed", orders.Order{Status: fsm.Completed}, nil},
		{"completed, paid", orders.Order{Status: fsm.Completed, Amount: decimal.Ten}, []string{"refund"}},
		{"completed, a refund in doubt", completed(`[{"refund":1,"state":"in_doubt","amount":"7"}]`), []string{"step-result", "refund"}},
		{"completed, all of it being refunded", completed(`[{"refund":1,"state":"accepted","amount":"10"}]`), []string{"step-result"}},
		{"completed, all of it refunded", completed(`[{"refund":1,"state":"done","amount":"10"}]`), nil},
		{"completed, a refund failed", completed(`[{"refund":1,"state":"failed","amount":"10"}]`), []string{"refund"}},
		{"failed", orders.Order{Status: fsm.Failed}, []string{"retry"}},
		{"canceled", orders.Order{Status: fsm.Canceled}, nil},
		{"scheduled", held(fsm.HoldScheduled), []string{"cancel", "pause"}},
		{"queued", held(fsm.HoldQueued), []string{"cancel", "pause"}},
		{"waits for approval", held(fsm.HoldApproval), []string{"cancel", "pause", "approve", "reject"}},
		{"waits to be tried again", held(fsm.HoldRetry), []string{"cancel", "retry", "pause"}},
		{"needs attention", held(fsm.HoldAttention), []string{"cancel", "retry"}},
		{"paused", held(fsm.HoldPaused), []string{"cancel", "resume"}},
		{"paused, in doubt", orders.Order{Status: fsm.Charging, Hold: &paused, InDoubtSince: &now, Calls: &one}, []string{"cancel", "resume", "step-result"}},
		{"waits for a callback", orders.Order{Status: fsm.Charging, Hold: new(fsm.HoldCallback), Calls: &one, Retries: &one}, []string{"cancel", "retry", "pause", "step-result"}},
		{"held as unknown", orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &unknown, InDoubtSince: &now, Calls: &one}, []string{"cancel", "step-result"}},
		{"held for a refused void", orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &void, Calls: &one, Retries: &one}, []string{"cancel", "retry"}},
	} {
		assert.Equal(t, orders.AllowedActions(&c.is), c.want, c.order, "allowed")
	}
}

// TestRefusalFor names what is in the way where more than the state is.
func TestRefusalFor(t *testing.T) {
	t.Parallel()
	now, one, attention, unknown := time.Now(), int32(1), fsm.HoldAttention, orders.RefusedUnknown+": asked"
	for _, c := range []struct {
		verb orders.Verb
		is   orders.Order
		want string
	}{
		{orders.Cancel, orders.Order{Status: fsm.Confirming, InDoubtSince: &now}, orders.RefusedConfirmInDoubt},
		{orders.Retry, orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &unknown}, orders.RefusedUnknown},
		{orders.StepResult, orders.Order{Status: fsm.Charging, Calls: &one}, orders.RefusedBusy},
		{orders.Approve, orders.Order{Status: fsm.Charging}, orders.RefusedState},
	} {
		if got := c.verb.RefusalFor(&c.is); c.verb.Applies(&c.is) || got != c.want {
			t.Errorf("%s: refused as %q, want %q", c.verb, got, c.want)
		}
	}
}
