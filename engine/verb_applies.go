package engine

import (
	"slices"
	"strings"

	"pawl/db"
	"pawl/fsm"
)

// applicable says of each verb whether it applies to an order as its row is. What takes
// more than the row to know is judged when the verb is asked for: see refusals.
var applicable = map[Verb]func(*db.Order) bool{
	Cancel: func(o *db.Order) bool {
		return !o.Status.Final() && !confirmInDoubt(o) &&
			(o.Hold != nil || !o.Status.Undoing() && !stopping(o)) // held on the way back it is driven again
	},
	Retry: func(o *db.Order) bool {
		return o.Status == fsm.Failed || heldFor(o, holdAttention, holdRetry) && !heldAsUnknown(o)
	},
	Pause: func(o *db.Order) bool {
		return !o.Status.Final() && o.StopRequested == nil && !heldFor(o, holdPaused, holdAttention)
	},
	Resume: func(o *db.Order) bool {
		return !o.Status.Final() && (heldFor(o, holdPaused) || pausing(o))
	},
	Approve:    func(o *db.Order) bool { return heldFor(o, holdApproval) },
	Reject:     func(o *db.Order) bool { return heldFor(o, holdApproval) },
	StepResult: canBeSettled,
}

// AllowedActions lists the verbs that apply to the order as it is.
func AllowedActions(o *Order) []string {
	allowed := []string{}
	if o.Order.Status == fsm.Completed { // nearly every answer
		return allowed
	}
	for _, v := range Verbs {
		if applicable[v](&o.Order) {
			allowed = append(allowed, string(v))
		}
	}
	return allowed
}

func heldFor(o *db.Order, holds ...string) bool {
	return o.Hold != nil && slices.Contains(holds, *o.Hold)
}

// confirmInDoubt: nothing stops an order whose confirmation may have been done.
func confirmInDoubt(o *db.Order) bool {
	return o.Status.Pivot() && o.InDoubtSince != nil
}

func heldAsUnknown(o *db.Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, RefusedUnknown)
}

// heldForVoid: the hold concerns an earlier generation, and the step was not called for in this one. "done" here would
// complete this generation uncharged.
func heldForVoid(o *db.Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, voidRefused)
}

// canBeSettled: the order is at rest in a step that was called for, or in its undoing, and
// what came of it is in doubt or has come to a person, a callback or another try.
func canBeSettled(o *db.Order) bool {
	called := !o.Status.Final() && o.Status != fsm.Pending && value(o.Attempts) > 0
	return called && o.Hold != nil && !heldForVoid(o) &&
		(o.InDoubtSince != nil || o.Tries != nil && heldFor(o, holdAttention, holdCallback, holdRetry))
}
