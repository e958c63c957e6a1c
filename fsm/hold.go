package fsm

// What an order can wait for while nobody drives it. The text is the same in SQL, JSON and the docs.
const (
	HoldRetry     = "retry"     // for the next call of its step
	HoldCallback  = "callback"  // for an answer that comes without a call
	HoldScheduled = "scheduled" // for its time to start
	HoldQueued    = "queued"    // for others of its concurrency key to end
	HoldApproval  = "approval"  // for a person to let it start
	HoldPaused    = "paused"    // for whoever paused it
	HoldAttention = "attention" // for a person to find out what is wrong
)

// AnotherApprover begins the reason of an order that waits for an approval that whoever submitted it may not give.
const AnotherApprover = "another_approver"

// Holds lists the values of orders.hold.
func Holds() []string {
	return []string{HoldRetry, HoldCallback, HoldScheduled, HoldQueued, HoldApproval, HoldPaused, HoldAttention}
}
