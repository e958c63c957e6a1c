package orders

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pawl/fsm"
)

// The answers that are not an order. Each is a normal outcome for a caller to
// tell apart with errors.Is or errors.As; anything else is a fault.
var (
	// ErrNotFound: what was asked for is not there; which thing, NotFound says.
	ErrNotFound = errors.New("not found")
	// ErrForgotten: the order has ended, and its details were removed after the retention of orders. See Forgotten.
	ErrForgotten = errors.New("order was forgotten")
	// ErrOverloaded: the backlog is too long to take another order now. Nothing
	// was stored; try again later.
	ErrOverloaded = errors.New("overloaded")
	// ErrStopping: this replica is shutting down. Nothing of the request was
	// stored by it; another replica can take it.
	ErrStopping = errors.New("stopping")
	// ErrUnavailable: the database did not answer in time and the outcome is not
	// known. Asking again is safe: it finds out, and does nothing twice.
	ErrUnavailable = errors.New("database unavailable")
	// ErrPrecondition: the order or item is no longer at the version asked for.
	ErrPrecondition = errors.New("version has changed")
	// ErrKeyReused: the idempotency key, or request id, was used for another request.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrStockTooHigh: more than StockMost units would be on hand.
	ErrStockTooHigh = errors.New("stock exceeds 1,000,000,000,000 units")
)

// NotFound says what is not there. It is an ErrNotFound.
type NotFound struct {
	What string // such as order
	Name string // empty: nothing can have the name that was given
}

func (e *NotFound) Error() string {
	if e.Name == "" {
		return "there is no such " + e.What
	}
	return fmt.Sprintf("there is no %s %q", e.What, e.Name)
}

// Is reports whether target is ErrNotFound.
func (e *NotFound) Is(target error) bool { return target == ErrNotFound }

// KeyReused says in what a request differs from the first one with its idempotency key, or request id. It is an ErrKeyReused.
type KeyReused struct {
	Members []string // of the request body; none where it is not known
	Verb    bool     // it was another verb
}

func (e *KeyReused) Error() string { return ErrKeyReused.Error() }

// Is reports whether target is ErrKeyReused.
func (e *KeyReused) Is(target error) bool { return target == ErrKeyReused }

// Conflict says that the order exists with other input. Nothing was written. Of an order that was forgotten, only the
// id is known.
type Conflict struct {
	Order       Order
	Differences []Difference
}

// Difference is one field in which the stored order and the request differ.
type Difference struct {
	Pointer      string // JSON pointer (RFC 6901) into the request body
	Stored, Sent string // as text; amounts with all their digits
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("order %q already exists with different input", c.Order.OrderID)
}

// NotApplicable says that the verb does not apply to the order as it is now. Nothing was
// written.
type NotApplicable struct {
	Verb  Verb
	Code  string // why: one of the codes below
	Order Order
}

// Why a verb does not apply.
const (
	RefusedState             = "not_applicable"        // it is not a verb for an order like this
	RefusedConfirmInDoubt    = "confirm_in_doubt"      // the confirmation may have been done, and can't be undone
	RefusedUnknown           = "outcome_unknown"       // the provider may have forgotten the key of a step in doubt
	RefusedStillUndoing      = "still_undoing"         // an effect of the order stands, or is still being undone
	RefusedPolicySwitch      = "policy_switch_refused" // a step that stands has to be undone under the pinned policy
	RefusedBusy              = "busy"                  // the step is being done right now
	RefusedAnswered          = "already_answered"      // an answer is there, and was not used yet
	RefusedNoLateUndo        = "no_late_undo"          // no undo of a late effect is open for that step and generation
	RefusedNotCalled         = "not_called"            // the step was not called for yet, in this generation
	RefusedOtherStep         = "other_step"            // the order is at another step than the one that was named
	RefusedGeneration        = "other_generation"      // the order is at another generation than the one that was named
	RefusedRetried           = "retried_before"        // the failed order was retried before: the request must say which retry it means
	RefusedPaymentMethod     = "payment_method_in_use" // what was sent with it is not void: only a failed order can have another one
	RefusedRefundTooLarge    = "refund_too_large"      // more was to be given back than is left of the charge
	RefusedCaptureTooLarge   = "capture_too_large"     // more was to be captured than is left of the authorization
	RefusedCaptureOpen       = "capture_open"          // the rest can't be voided while a capture or void is open
	RefusedNoCaptureURL      = "no_capture_url"        // the policy of the order does not say where its charge is captured or voided
	RefusedRestockTooLarge   = "restock_too_large"     // more units were to be put back than the order took from this stock
	RefusedNoRefundURL       = "no_refund_url"         // the policy of the order does not say where its charge is refunded
	RefusedOwnOrder          = "own_order"             // the approver has submitted the order, and the policy requires another one
	RefusedErased            = "customer_erased"       // the customer was erased, and with it what the order would be charged to
	RefusedNoChargeOperation = "no_charge_operation"   // there is no refund, capture or void of that number which is not settled
)

// sentences say so to people, where it is not just the state of the order.
var sentences = map[string]string{
	RefusedConfirmInDoubt: "the order may already be confirmed: wait for the answer of the provider",
	RefusedUnknown: "the outcome of the step is unknown, and the provider may have forgotten its idempotency key: " +
		"only a look-up, a callback or a step-result can settle it",
	RefusedStillUndoing: "an effect of the order has not been undone yet",
	RefusedPolicySwitch: "a step that was performed under the order's own policy could not be undone under the active one",
	RefusedBusy:         "the step is in progress",
	RefusedAnswered:     "the step already has an answer, which has not been used yet",
	RefusedNoLateUndo:   "there is no open undo of a late effect for this step and generation",
	RefusedNotCalled:    "the step has not been called in this generation of the order",
	RefusedRetried: "the order was retried before: to say which retry is meant, send the generation that failed, " +
		"the ETag in If-Match, or a requestId",
	RefusedPaymentMethod:     "the payment method can only be changed once the order has failed",
	RefusedRefundTooLarge:    "all refunds of the order that have not failed count",
	RefusedCaptureTooLarge:   "all captures and voids of the order that have not failed count",
	RefusedCaptureOpen:       "a capture or void of the order is not settled yet",
	RefusedNoCaptureURL:      "the policy of the order has no captureUrl or voidUrl for its charge",
	RefusedRestockTooLarge:   "the restocks of all refunds of the order count",
	RefusedNoRefundURL:       "the policy of the order has no refundUrl for its charge",
	RefusedOwnOrder:          "the policy requires approval by someone other than the submitter",
	RefusedErased:            "the customer of the order was erased, and with it the payment method",
	RefusedNoChargeOperation: "there is no open refund, capture or void with this number: it does not exist, or has already succeeded or failed",
}

func (n *NotApplicable) Error() string {
	if sentence := cmp.Or(n.nothingLeft(), sentences[n.Code]); sentence != "" {
		return sentence
	}
	switch n.Code {
	case RefusedOtherStep:
		return fmt.Sprintf("the order is at the step %s", n.Order.Status.Step())
	case RefusedGeneration:
		return fmt.Sprintf("the order is at generation %d", n.Order.Generation)
	}
	text := "the order " + ofState[n.Order.Status]
	if n.Verb == Cancel && Canceling(&n.Order) {
		text = "the order is already being canceled"
	}
	if n.Order.Hold != nil {
		text += ", and " + ofHold[*n.Order.Hold]
	}
	return strings.TrimSuffix(text+". "+cmp.Or(n.instead(), allowing[n.Verb]), ". ")
}

// nothingLeft says so of the money of an order; empty: something is left.
func (n *NotApplicable) nothingLeft() string {
	switch o := &n.Order; {
	case n.Code == RefusedCaptureTooLarge && Capturable(o).IsZero():
		return "all of what was authorized is captured or voided, or is about to be"
	case n.Code != RefusedRefundTooLarge || Refundable(o).IsPos() || o.Amount.IsZero():
		return ""
	case Totals(o).Captured.IsZero():
		return "nothing is captured of what was authorized, so nothing can go back: capture a part of it first, or void it"
	default:
		refunds := slices.DeleteFunc(ChargeOperations(o, OperationRefund), func(c ChargeOperation) bool { return c.State == OperationFailed })
		last, said := refunds[len(refunds)-1], "was refunded"
		if Totals(o).Refunded.Cmp(Totals(o).Captured) < 0 {
			said += ", or is on its way back"
		}
		if len(refunds) > 1 {
			said += ", the last " + last.Amount.String()
		}
		return fmt.Sprintf("nothing is left: %s %s %s on %s UTC", Totals(o).Captured, o.Currency, said, last.CreatedAt.UTC().Format("2006-01-02 at 15:04"))
	}
}

// instead says what becomes of the money of an order that can't be refunded, captured or voided as it is; empty: nothing to say.
func (n *NotApplicable) instead() string {
	switch o := &n.Order; {
	case n.Verb != Refund && n.Verb != Capture && n.Verb != Void:
		return ""
	case o.Status == fsm.Completed:
		return "It authorizes nothing: its whole amount was charged at once, and can only be refunded"
	case o.Status.Final() && o.Generation == 0 && o.ChargedAt == nil && o.RefundedAt == nil:
		return "It was not charged"
	case o.Status.Final():
		return "Nothing is kept of its charge"
	case HeldFor(o, fsm.HoldAttention) && (o.Status.Undoing() || Stopping(o)):
		return "What was charged goes back once a retry of the undo succeeds"
	case o.Status.Undoing() || Stopping(o):
		return "What was charged goes back by itself"
	case n.Verb != Capture && o.Status == fsm.Pending && Cancel.Applies(o):
		return "Cancel it instead: it was not charged yet"
	case n.Verb != Capture && Cancel.Applies(o):
		return "Cancel it instead: what was charged, or may have been, goes back by itself"
	}
	return "It can be " + strings.TrimSuffix(string(n.Verb), "e") + "ed once it is completed"
}

// ofState and ofHold say to people how an order is.
var ofState = map[fsm.State]string{
	fsm.Pending: "has not started", fsm.Charging: "is still being charged", fsm.Reserving: "is charged, and its goods are being reserved",
	fsm.Confirming: "is charged and reserved, and is being confirmed", fsm.Completed: "is completed",
	fsm.Releasing: "is being undone", fsm.Refunding: "is being undone", fsm.Failed: "has failed", fsm.Canceled: "is canceled",
}

var ofHold = map[string]string{
	fsm.HoldRetry: "waits for its next try", fsm.HoldCallback: "waits for the answer of the provider", fsm.HoldScheduled: "waits for its time",
	fsm.HoldQueued: "waits for its turn", fsm.HoldApproval: "waits for approval", fsm.HoldPaused: "is paused", fsm.HoldAttention: "needs a person",
}

// allowing says which orders a verb is for.
var allowing = map[Verb]string{
	Cancel:     "Only an order that has not ended, and is not being undone, can be canceled; a completed one can be refunded",
	Retry:      "Only an order that has failed, needs a person, or waits for its next try or the provider can be retried",
	Pause:      "Only an order that goes on by itself can be paused",
	Resume:     "Only a paused order can be resumed",
	Approve:    "Only an order that waits for approval can be approved",
	Reject:     "Only an order that waits for approval can be rejected",
	StepResult: "Only a step that was tried and has no result yet can have one recorded",
}

// StockTooLow says that fewer units would be on hand than are reserved.
type StockTooLow struct {
	Item    Stock
	Pointer string // JSON pointer (RFC 6901) into the request body
}

func (s *StockTooLow) Error() string {
	return fmt.Sprintf("item %q has %d units reserved", s.Item.Item, s.Item.Reserved)
}
