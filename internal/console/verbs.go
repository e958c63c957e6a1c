package console

import (
	"slices"
	"strings"

	"pawl/client"
	"pawl/fsm"
)

// verb is what a person can ask of an order.
type verb struct {
	Name, Label string
	operation   string // of the API
	confirm     string // what the button says that does it; empty: Label
	Meaning     string // what it does, in a sentence
	asked       string // that it was asked for, in a sentence
	Danger      bool   // it can't be taken back
	needsReason bool
	Many        *ofMany // nil: it is asked of one order at a time
}

// ofMany is what differs where a verb is asked of many orders at once.
type ofMany struct {
	operation string
	Label     string // stands before "3 orders", and before "all"
	Done      string // stands behind "3 orders", and behind "none can be"
	Meaning   string
}

// verbs are all of them, in the order in which they are offered.
var verbs = []*verb{
	{
		Name: "approve", Label: "Approve", operation: "approveOrder", Meaning: "The order starts.", asked: "The order is approved.",
		Many: &ofMany{"approveOrders", "Approve", "approved", "Orders that wait for an approval start."},
	},
	{
		Name: "reject", Label: "Reject", operation: "rejectOrder", Meaning: "The order ends canceled, and nothing was charged. Its failure is rejected.",
		asked: "The order is rejected.", Danger: true, needsReason: true,
		Many: &ofMany{"rejectOrders", "Reject", "rejected", "Orders that wait for an approval are canceled."},
	},
	{
		Name: "retry", Label: "Retry", operation: "retryOrder",
		Meaning: "A held order tries its step again at once, with all its retries before it. A failed one starts anew, under keys of its own.",
		asked:   "The order tries again.",
		Many:    &ofMany{"retryOrders", "Retry", "retried", "Held orders try their step again at once. Failed ones start anew."},
	},
	{
		Name: "step-result", Label: "Say what became of the step", operation: "settleStepOfOrder",
		Meaning: "Look at the provider first. The order goes on as if the provider itself had said so: if you say that a charge is done which never happened, nobody pays for the order.",
		asked:   "What became of the step is recorded.", Danger: true, needsReason: true,
		Many: &ofMany{"settleStepOfOrders", "Say what became of the step for", "given a result", "You have looked at the provider, and say what became of a step. The orders go on as if the provider had said so."},
	},
	{
		Name: "resume", Label: "Resume", operation: "resumeOrder", Meaning: "The order goes on where it was. What it waited for before, it waits for again.",
		asked: "The order goes on.",
		Many:  &ofMany{"resumeOrders", "Resume", "resumed", "Paused orders go on where they were."},
	},
	{
		Name: "pause", Label: "Pause", operation: "pauseOrder", Meaning: "A step that is under way is finished. Then the order waits until somebody resumes it. Deadlines go on.",
		asked: "The order will pause.",
		Many:  &ofMany{"pauseOrders", "Pause", "paused", "The step under way is finished; then the orders wait until somebody resumes them."},
	},
	{
		Name: "cancel", Label: "Cancel", confirm: "Cancel the order", operation: "cancelOrder", // "Cancel" alone could be the way back
		Meaning: "The step under way is recorded. Then everything that was done, or may have been, is undone, and the order ends canceled.",
		asked:   "The order is being canceled.", Danger: true, needsReason: true,
		Many: &ofMany{"cancelOrders", "Cancel", "canceled", "The orders stop, and all that was done is undone."},
	},
	{
		Name: "refund", Label: "Refund", operation: "refundOrder", Meaning: "Money goes back to the customer. The order stays completed.",
		asked: "The refund is requested.", Danger: true, needsReason: true,
	},
}

// verbNamed is one of some verbs; nil: there is none of that name.
func verbNamed(verbs []*verb, name string) *verb {
	if i := slices.IndexFunc(verbs, func(a *verb) bool { return a.Name == name }); i >= 0 {
		return verbs[i]
	}
	return nil
}

// applies reports whether a verb applies to an order, if this person asks: the approval may be for somebody else to give.
func (v *visit) applies(a *verb, order *client.Order) bool {
	if a.Name == "approve" && order.SubmittedBy == v.me.Name && strings.HasPrefix(order.HoldReason, fsm.AnotherApprover) {
		return false
	}
	return slices.Contains(order.AllowedActions, a.Name)
}

// actions are the verbs that apply to an order and that the person may ask.
func (v *visit) actions(order *client.Order) []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return !v.applies(a, order) || !v.may(a.operation) })
}

// bulkVerbs are the verbs that the person may ask of many orders.
func (v *visit) bulkVerbs() []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return a.Many == nil || !v.may(a.Many.operation) })
}

// bulkActions are those of them that apply to one of the orders at least.
func (v *visit) bulkActions(orders []client.Order) []*verb {
	return slices.DeleteFunc(v.bulkVerbs(), func(a *verb) bool {
		return !slices.ContainsFunc(orders, func(o client.Order) bool { return v.applies(a, &o) })
	})
}
