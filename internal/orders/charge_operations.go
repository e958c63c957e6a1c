package orders

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// ChargeOperation is what was requested to be done to the charge of a completed order: a refund, or a capture or void
// of a charge that only authorized.
type ChargeOperation struct {
	Number     int32            `json:"number"` // 1 for the first of the order, over all kinds
	Kind       string           `json:"kind"`   // one of those below
	State      string           `json:"state"`  // likewise
	Amount     decimal.Decimal  `json:"amount"`
	Voided     *decimal.Decimal `json:"voided"`  // of a final capture: what it voids of the authorization; nil: more captures may follow
	Restock    int32            `json:"restock"` // units that a refund returned to stock
	Lines      []OperationLine  `json:"lines"`   // what it is about; nil: it does not say
	Calling    bool             `json:"calling"` // a call is under way
	Reason     string           `json:"reason"`
	RequestID  string           `json:"requestId"` // empty: the service asks the provider whether the authorization has ended
	CreatedAt  time.Time        `json:"createdAt"`
	FinishedAt *time.Time       `json:"finishedAt"` // when it was done or failed
	Reference  string           `json:"reference"`  // the provider's reference
	Code       string           `json:"code"`       // why it is not done
	Detail     string           `json:"detail"`
	NextAt     *time.Time       `json:"nextAt"` // when the provider is called next; nil: never, or not before a person has looked
}

// The kinds of charge operations, which are also verbs.
const (
	OperationRefund  = string(Refund)
	OperationCapture = string(Capture)
	OperationVoid    = string(Void)
)

// The states of a charge operation.
const (
	OperationPending  = "pending"  // not done yet
	OperationInDoubt  = "in_doubt" // sent, outcome unknown
	OperationAccepted = "accepted" // the provider will do it
	OperationDone     = "done"     // final, except that a bank may return a refund
	OperationFailed   = "failed"   // not done, and never will be by this operation
)

// Settled reports whether the operation is done or failed.
func (c *ChargeOperation) Settled() bool {
	return c.State == OperationDone || c.State == OperationFailed
}

// ChargeOperations returns the requested operations of these kinds, or of all without any, oldest first. Orders
// returned by statements that write have none.
func ChargeOperations(o *Order, kinds ...string) []ChargeOperation {
	var operations []ChargeOperation
	if o.ChargeOperationList != nil {
		_ = json.Unmarshal(o.ChargeOperationList, &operations) // our own view
	}
	if kinds == nil {
		return operations
	}
	return slices.DeleteFunc(operations, func(c ChargeOperation) bool { return !slices.Contains(kinds, c.Kind) })
}

// captureLater is the capture of a charge that authorizes, and whose captures are requested.
const captureLater = "later"

// CapturedLater reports whether the charge of the order only authorizes, and its captures are requested.
func CapturedLater(o *Order) bool {
	return o.ChargeCapture != nil && *o.ChargeCapture == captureLater && (o.ChargeInDoubt == nil || !*o.ChargeInDoubt)
}

// ChargeTotals are the sums of what was certainly done to the charge of an order, with its fraction digits.
type ChargeTotals struct {
	Refunded, Captured, Voided decimal.Decimal

	refunding, taken decimal.Decimal // the sums of refunds, and of captures and voids, that have not failed
}

// Totals adds up the charge operations of an order.
func Totals(o *Order) ChargeTotals {
	zero := decimal.Zero.Pad(o.Amount.Scale())
	t := ChargeTotals{zero, zero, zero, zero, zero}
	for _, c := range ChargeOperations(o) {
		if c.State == OperationFailed {
			continue
		}
		sum := map[string]*decimal.Decimal{OperationRefund: &t.Refunded, OperationCapture: &t.Captured, OperationVoid: &t.Voided}[c.Kind]
		of := &t.taken
		if c.Kind == OperationRefund {
			of = &t.refunding
		}
		add(of, c.Amount)
		if c.Voided != nil {
			add(&t.taken, *c.Voided)
		}
		if c.State != OperationDone {
			continue
		}
		add(sum, c.Amount)
		if c.Voided != nil {
			add(&t.Voided, *c.Voided)
		}
	}
	if !CapturedLater(o) {
		t.Captured = o.Amount
	}
	return t
}

// add adds an amount to a sum, which never exceeds the amount of the order.
func add(sum *decimal.Decimal, amount decimal.Decimal) { *sum, _ = sum.Add(amount) }

// Refundable is the amount of a completed order that can still be refunded: what was certainly captured, less refunds.
func Refundable(o *Order) decimal.Decimal {
	t := Totals(o)
	return left(o, t.Captured, t.refunding)
}

// Capturable is the amount of a completed order that can still be captured or voided.
func Capturable(o *Order) decimal.Decimal {
	if !CapturedLater(o) {
		return decimal.Zero
	}
	return left(o, o.Amount, Totals(o).taken)
}

func left(o *Order, of, taken decimal.Decimal) decimal.Decimal {
	rest, err := of.Sub(taken)
	if err != nil || o.Status != fsm.Completed {
		return decimal.Zero
	}
	return rest
}

// Capturing reports whether a capture or void of the order is open.
func Capturing(o *Order) bool {
	return slices.ContainsFunc(ChargeOperations(o, OperationCapture, OperationVoid), func(c ChargeOperation) bool { return !c.Settled() })
}

// Restockable is the number of units of a completed order that can still be returned to stock: none if another system
// reserved them. OperationLines knows how many of each line.
func Restockable(o *Order, reservedHere bool) int32 {
	if !reservedHere {
		return 0
	}
	left := o.Quantity
	for _, c := range ChargeOperations(o) {
		left -= c.Restock
	}
	return left
}
