package orders

import (
	"slices"
	"strings"

	"pawl/fsm"
)

// Verb is what a person or a program can ask of an order. It is the word of the history
// and of the path, too.
type Verb string

// Actors that are no principal's name.
const (
	ActorAnonymous = "anonymous" // a caller that was not identified
	ActorSystem    = "system"    // the service by itself
)

// The verbs.
const (
	Cancel     Verb = "cancel"      // stop the order and undo it
	Retry      Verb = "retry"       // try a held step again at once, or a failed order as its next generation
	Pause      Verb = "pause"       // hold the order before its next step
	Resume     Verb = "resume"      // go on with a paused order
	Approve    Verb = "approve"     // let an order start that waits for it
	Reject     Verb = "reject"      // cancel an order that waits for approval
	StepResult Verb = "step-result" // say what became of a step whose outcome is not known
	Refund     Verb = "refund"      // give back money of a completed order
)

// Verbs lists them in the order in which they are shown.
var Verbs = []Verb{Cancel, Retry, Pause, Resume, Approve, Reject, StepResult, Refund}

// Applies reports whether the verb applies to an order as its row is. What takes more than the row to know is judged
// when the verb is asked for.
func (v Verb) Applies(o *Order) bool { return applicable[v](o) }

var applicable = map[Verb]func(*Order) bool{
	Cancel: func(o *Order) bool {
		return !o.Status.Final() && !confirmInDoubt(o) &&
			(o.Hold != nil || !o.Status.Undoing() && !Stopping(o)) // held on the way back it is driven again
	},
	Retry: func(o *Order) bool {
		return o.Status == fsm.Failed || HeldFor(o, fsm.HoldAttention, fsm.HoldRetry, fsm.HoldCallback) && !HeldAsUnknown(o)
	},
	Pause: func(o *Order) bool {
		return !o.Status.Final() && o.StopRequested == nil && !HeldFor(o, fsm.HoldPaused, fsm.HoldAttention)
	},
	Resume: func(o *Order) bool {
		return !o.Status.Final() && (HeldFor(o, fsm.HoldPaused) || Pausing(o))
	},
	Approve:    func(o *Order) bool { return HeldFor(o, fsm.HoldApproval) },
	Reject:     func(o *Order) bool { return HeldFor(o, fsm.HoldApproval) },
	StepResult: canBeSettled,
	Refund:     func(o *Order) bool { return o.Status == fsm.Completed && refundable(o) },
}

// RefusalFor is the code of what stands in the way of a verb that does not apply to an order as its row is.
func (v Verb) RefusalFor(o *Order) string {
	switch {
	case v == Cancel && confirmInDoubt(o):
		return RefusedConfirmInDoubt
	case v == Retry && HeldFor(o, fsm.HoldAttention, fsm.HoldRetry):
		return RefusedUnknown
	case v == StepResult && o.Hold == nil && called(o):
		return RefusedBusy
	}
	return RefusedState
}

// AllowedActions lists the verbs that apply to the order as it is, or to a refund of it.
func AllowedActions(o *Order) []string {
	if o.Status == fsm.Completed && o.RefundList == nil && refundable(o) { // nearly every answer
		return onlyRefund
	}
	settles := slices.ContainsFunc(Refunds(o), func(r AskedRefund) bool { return !r.Settled() })
	allowed := []string{}
	for _, v := range Verbs {
		if v.Applies(o) || v == StepResult && settles {
			allowed = append(allowed, string(v))
		}
	}
	return allowed
}

var onlyRefund = []string{string(Refund)}

// refundable reports whether something of the amount is left to be given back.
func refundable(o *Order) bool {
	if o.RefundList == nil { // nearly every order
		return o.Amount.IsPos()
	}
	return Refundable(o).IsPos()
}

// HeldFor reports whether the order waits for one of these.
func HeldFor(o *Order, holds ...string) bool {
	return o.Hold != nil && slices.Contains(holds, *o.Hold)
}

// HeldAsUnknown reports whether the order is held because the outcome of its step can't be found out.
func HeldAsUnknown(o *Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, RefusedUnknown)
}

// Pausing reports whether the order is to be held before its next step.
func Pausing(o *Order) bool { return o.StopRequested != nil && *o.StopRequested == string(Pause) }

// Stopping reports whether the order is to be undone, because it was canceled or its time is up.
func Stopping(o *Order) bool { return o.StopRequested != nil && !Pausing(o) }

// confirmInDoubt: nothing stops an order whose confirmation may have been done.
func confirmInDoubt(o *Order) bool {
	return o.Status.Pivot() && o.InDoubtSince != nil
}

// VoidRefused begins the reason of a hold: the provider refused to undo the key of an earlier generation.
const VoidRefused = "void_refused: "

// heldForVoid: the hold concerns an earlier generation, and the step was not called for in this one. "done" here would
// complete this generation uncharged.
func heldForVoid(o *Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, VoidRefused)
}

// canBeSettled: the order is at rest in a step that was called for, or in its undoing, and
// what came of it is in doubt or has come to a person, a callback or another try.
func canBeSettled(o *Order) bool {
	return called(o) && o.Hold != nil && !heldForVoid(o) &&
		(o.InDoubtSince != nil || o.Retries != nil && HeldFor(o, fsm.HoldAttention, fsm.HoldCallback, fsm.HoldRetry))
}

// called: the order is at a step, and calls were made for it.
func called(o *Order) bool {
	return !o.Status.Final() && o.Status != fsm.Pending && o.Calls != nil && *o.Calls > 0
}
