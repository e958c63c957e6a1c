package orders

import (
	"encoding/json"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// ChargeOperation is what was requested to be done to the charge of a completed order: a refund.
type ChargeOperation struct {
	Number     int32           `json:"number"` // 1 for the first of the order
	Kind       string          `json:"kind"`   // OperationRefund
	State      string          `json:"state"`  // one of those below
	Amount     decimal.Decimal `json:"amount"`
	Restock    int32           `json:"restock"` // units returned to stock
	Lines      []OperationLine `json:"lines"`   // what it is about; nil: it does not say
	Reason     string          `json:"reason"`
	RequestID  string          `json:"requestId"`
	CreatedAt  time.Time       `json:"createdAt"`
	FinishedAt *time.Time      `json:"finishedAt"` // when it was done or failed
	Reference  string          `json:"reference"`  // the provider's reference
	Code       string          `json:"code"`       // why it is not done
	Detail     string          `json:"detail"`
}

// The kinds of charge operations.
const OperationRefund = "refund"

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

// ChargeOperations returns the requested operations, oldest first. Orders returned by statements that write have none.
func ChargeOperations(o *Order) []ChargeOperation {
	var operations []ChargeOperation
	if o.ChargeOperationList != nil {
		_ = json.Unmarshal(o.ChargeOperationList, &operations) // our own view
	}
	return operations
}

// Refunded is the amount that was certainly refunded.
func Refunded(o *Order) decimal.Decimal {
	return sum(o, func(r *ChargeOperation) bool { return r.State == OperationDone })
}

// Refundable is the amount of a completed order that can still be refunded.
func Refundable(o *Order) decimal.Decimal {
	asked := sum(o, func(r *ChargeOperation) bool { return r.State != OperationFailed })
	left, err := o.Amount.Sub(asked)
	if err != nil || o.Status != fsm.Completed {
		return decimal.Zero
	}
	return left
}

// Restockable is the number of units of a completed order that can still be returned to stock: none if another system
// reserved them. OperationLines knows how many of each line.
func Restockable(o *Order, reservedHere bool) int32 {
	if !reservedHere {
		return 0
	}
	left := o.Quantity
	for _, r := range ChargeOperations(o) {
		left -= r.Restock
	}
	return left
}

// sum adds up charge operations of an order, with the fraction digits of its amount. They never exceed the amount.
func sum(o *Order, counts func(*ChargeOperation) bool) decimal.Decimal {
	total := decimal.Zero.Pad(o.Amount.Scale())
	for _, operation := range ChargeOperations(o) {
		if counts(&operation) {
			total, _ = total.Add(operation.Amount)
		}
	}
	return total
}
