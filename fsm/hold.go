package fsm

// The holds: what an order waits for while no replica drives it. The text is the same in SQL, JSON and the docs.
const (
	HoldRetry     = "retry"     // for the next call of its step
	HoldCallback  = "callback"  // for the answer that the provider will send
	HoldScheduled = "scheduled" // for its time to start
	HoldQueued    = "queued"    // for others of its concurrency key to end
	HoldApproval  = "approval"  // for a person to let it start
	HoldPaused    = "paused"    // for a person to resume it
	HoldAttention = "attention" // for a person to find out what is wrong
)

// AnotherApprover begins the hold reason of an order that its submitter may not approve.
const AnotherApprover = "another_approver"

// Holds lists the values of orders.hold.
func Holds() []string {
	return []string{HoldRetry, HoldCallback, HoldScheduled, HoldQueued, HoldApproval, HoldPaused, HoldAttention}
}
