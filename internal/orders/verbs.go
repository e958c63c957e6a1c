package orders

import (
	"slices"
	"strings"

	"pawl/fsm"
)

// Verb is an action on an order, as named in the history and in paths.
type Verb string

// Actors that are not principals.
const (
	ActorAnonymous = "anonymous" // an unauthenticated caller
	ActorSystem    = "system"    // the service itself
)

// The verbs.
const (
	Cancel     Verb = "cancel"      // stop the order and undo it
	Retry      Verb = "retry"       // retry a held step or the charge operations at once, or restart a failed order as its next generation
	Pause      Verb = "pause"       // hold the order before its next step
	Resume     Verb = "resume"      // continue a paused order
	Approve    Verb = "approve"     // start an order that waits for approval
	Reject     Verb = "reject"      // cancel an order that waits for approval
	StepResult Verb = "step-result" // record the result of a step whose outcome is unknown
	Refund     Verb = "refund"      // refund a completed order, or a part of it
	Capture    Verb = "capture"     // take a part of what the charge authorized
	Void       Verb = "void"        // give up the rest of what the charge authorized
)

// Verbs lists the verbs in display order.
var Verbs = []Verb{Cancel, Retry, Pause, Resume, Approve, Reject, StepResult, Capture, Void, Refund}

// BulkVerbs are those that can be applied to many orders at once.
var BulkVerbs = slices.DeleteFunc(slices.Clone(Verbs), func(v Verb) bool { return v == Capture || v == Void })

// Applies reports whether the verb applies to an order, as far as its row shows. The rest is checked when the verb is
// requested.
func (v Verb) Applies(o *Order) bool { return applicable[v](o) }

var applicable = map[Verb]func(*Order) bool{
	Cancel: func(o *Order) bool {
		return !o.Status.Final() && !confirmInDoubt(o) && !o.Status.Undoing() && !Stopping(o)
	},
	Retry: func(o *Order) bool {
		return o.Status == fsm.Failed && !erased(o) || HeldFor(o, fsm.HoldAttention, fsm.HoldRetry, fsm.HoldCallback) && !HeldAsUnknown(o) ||
			o.Status == fsm.Completed && slices.ContainsFunc(ChargeOperations(o), waitsForRetry)
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
	Capture:    func(o *Order) bool { return Capturable(o).IsPos() },
	Void:       func(o *Order) bool { return Capturable(o).IsPos() && !Capturing(o) },
}

// RefusalFor is the code for a verb that does not apply to an order, as far as its row shows.
func (v Verb) RefusalFor(o *Order) string {
	switch {
	case v == Cancel && confirmInDoubt(o):
		return RefusedConfirmInDoubt
	case v == Retry && o.Status == fsm.Failed:
		return RefusedErased
	case v == Retry && HeldFor(o, fsm.HoldAttention, fsm.HoldRetry):
		return RefusedUnknown
	case v == StepResult && o.Hold == nil && called(o):
		return RefusedBusy
	}
	return RefusedState
}

// AllowedActions lists the verbs that apply to the order or one of its charge operations.
func AllowedActions(o *Order) []string {
	if o.Status == fsm.Completed && o.ChargeOperationList == nil && o.ChargeCapture == nil && refundable(o) { // nearly every answer
		return onlyRefund
	}
	settles := slices.ContainsFunc(ChargeOperations(o), func(r ChargeOperation) bool { return !r.Settled() })
	allowed := []string{}
	for _, v := range Verbs {
		if v.Applies(o) || v == StepResult && settles {
			allowed = append(allowed, string(v))
		}
	}
	return allowed
}

var onlyRefund = []string{string(Refund)}

// refundable reports whether any of the amount can still be refunded.
func refundable(o *Order) bool {
	if o.ChargeOperationList == nil && o.ChargeCapture == nil { // nearly every order
		return o.Amount.IsPos()
	}
	return Refundable(o).IsPos()
}

// waitsForRetry reports whether the last try of the operation failed, and the next one comes by itself.
func waitsForRetry(c ChargeOperation) bool {
	return (c.State == OperationPending || c.State == OperationInDoubt) && c.Code != "" && c.NextAt != nil && !c.Calling
}

// HeldFor reports whether the order has one of these holds.
func HeldFor(o *Order, holds ...string) bool {
	return o.Hold != nil && slices.Contains(holds, *o.Hold)
}

// HeldAsUnknown reports whether the order is held because the outcome of its step can't be found out.
func HeldAsUnknown(o *Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, RefusedUnknown)
}

// Pausing reports whether the order will be paused before its next step.
func Pausing(o *Order) bool { return o.StopRequested != nil && *o.StopRequested == string(Pause) }

// Stopping reports whether the order will be undone, because it was canceled or its deadline has passed.
func Stopping(o *Order) bool { return o.StopRequested != nil && !Pausing(o) }

// Canceling reports whether the order was canceled, and has not ended.
func Canceling(o *Order) bool {
	return o.StopRequested != nil && *o.StopRequested == string(Cancel) && !o.Status.Final()
}

// confirmInDoubt reports whether the confirmation may have been done. Nothing stops such an order.
func confirmInDoubt(o *Order) bool {
	return o.Status.Pivot() && o.InDoubtSince != nil
}

// VoidRefused is the prefix of a hold reason: the provider refused to undo a key of an earlier generation.
const VoidRefused = "void_refused: "

// heldForVoid reports whether the hold concerns an earlier generation and the step has no calls in this one. Recording
// "done" would complete this generation without a charge.
func heldForVoid(o *Order) bool {
	return o.HoldReason != nil && strings.HasPrefix(*o.HoldReason, VoidRefused)
}

// canBeSettled reports whether a person can record the result of the order's step: the order is on hold at a step that
// has calls, or at its undo, and its outcome is in doubt or awaits a person, a callback or a retry.
func canBeSettled(o *Order) bool {
	return called(o) && o.Hold != nil && !heldForVoid(o) &&
		(o.InDoubtSince != nil || o.Retries != nil && HeldFor(o, fsm.HoldAttention, fsm.HoldCallback, fsm.HoldRetry))
}

// called reports whether the order is at a step that has calls.
func called(o *Order) bool {
	return !o.Status.Final() && o.Status != fsm.Pending && o.Calls != nil && *o.Calls > 0
}
