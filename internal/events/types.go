package events

import (
	"slices"
	"strings"

	"pawl/fsm"
)

// What happened to an order that kept its status, by the verb of its row in the history. A row without a verb is a move. A
// hold that is named as a verb of people is told from it by the actor.
var typesOfVerbs = map[string]string{
	// What people ask for.
	"cancel": "order.cancel_requested", "pause": "order.pause_requested", "resume": "order.resumed", "approve": "order.approved",
	"reject": "order.rejected", "step-result": "order.step_result", "refund": "order.refund_requested",
	// What an order waits for.
	"callback": "order.awaiting_callback", "scheduled": "order.awaiting_start", "queued": "order.awaiting_permit",
	"approval": "order.awaiting_approval", "paused": "order.paused", "hold": "order.needs_attention", "attention": "order.needs_attention",
	// What the service does.
	"call": "order.step_called", "answer": "order.step_answered", "deadline": "order.deadline_exceeded", "permit": "order.permit_granted",
	"wake": "order.woken", "take_over": "order.taken_over", "release_lease": "order.released", "late_undo": "order.late_undo_requested",
	// What becomes of a refund.
	"refund_pending": "order.refund_pending", "refund_in_doubt": "order.refund_in_doubt", "refund_accepted": "order.refund_accepted",
	"refund_done": "order.refund_done", "refund_failed": "order.refund_failed",
}

const (
	typeAwaitingRetry  = "order.awaiting_retry"
	typeRetryRequested = "order.retry_requested"
	typeChanged        = "order.changed" // of a verb that this program does not know: a newer one wrote it
)

// Types lists the types of events, sorted. Newer versions may have more.
func Types() []string {
	all := []string{typeAwaitingRetry, typeRetryRequested, typeChanged, "stock.set", "stock.adjustment", "stock.restock"}
	for _, status := range fsm.States() {
		all = append(all, "order."+string(status))
	}
	for _, name := range typesOfVerbs {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// KnownType reports whether a filter on types can match: it is a type, or "order.*" or "stock.*".
func KnownType(filter string) bool {
	return filter == "order.*" || filter == "stock.*" || slices.Contains(Types(), filter)
}

// MatchesType reports whether an event of a type passes a filter on types: one that names it, or its first part as "order.*".
// No filter lets all pass.
func MatchesType(filter []string, name string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool {
		prefix, all := strings.CutSuffix(f, "*")
		return f == name || all && strings.HasPrefix(name, prefix)
	})
}

// typeOf is the type of an event about an order.
func typeOf(from, to, verb, actor string) string {
	switch {
	case from != to:
		return "order." + to
	case verb == "retry" && actor == "":
		return typeAwaitingRetry
	case verb == "retry":
		return typeRetryRequested
	case typesOfVerbs[verb] != "":
		return typesOfVerbs[verb]
	default:
		return typeChanged
	}
}
