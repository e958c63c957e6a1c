package orders

import (
	"encoding/json"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// AskedRefund is a requested refund of a completed order.
type AskedRefund struct {
	Number     int32           `json:"refund"` // 1 for the first of the order
	State      string          `json:"state"`  // one of those below
	Amount     decimal.Decimal `json:"amount"`
	Restock    int32           `json:"restock"` // units returned to stock
	Reason     string          `json:"reason"`
	RequestID  string          `json:"requestId"`
	CreatedAt  time.Time       `json:"createdAt"`
	FinishedAt *time.Time      `json:"finishedAt"` // when it was done or failed
	Reference  string          `json:"reference"`  // the provider's reference
	Code       string          `json:"code"`       // why it is not done
	Detail     string          `json:"detail"`
}

// The states of a refund.
const (
	RefundPending  = "pending"  // not refunded yet
	RefundInDoubt  = "in_doubt" // sent, outcome unknown
	RefundAccepted = "accepted" // the provider will do it
	RefundDone     = "done"     // refunded
	RefundFailed   = "failed"   // not refunded, and never will be by this refund
)

// Settled reports whether the refund is done or failed.
func (r *AskedRefund) Settled() bool { return r.State == RefundDone || r.State == RefundFailed }

// Refunds returns the requested refunds, oldest first. Orders returned by statements that write have none.
func Refunds(o *Order) []AskedRefund {
	var refunds []AskedRefund
	if o.RefundList != nil {
		_ = json.Unmarshal(o.RefundList, &refunds) // our own view
	}
	return refunds
}

// Refunded is the amount that was certainly refunded.
func Refunded(o *Order) decimal.Decimal {
	return sum(o, func(r *AskedRefund) bool { return r.State == RefundDone })
}

// Refundable is the amount of a completed order that can still be refunded.
func Refundable(o *Order) decimal.Decimal {
	asked := sum(o, func(r *AskedRefund) bool { return r.State != RefundFailed })
	left, err := o.Amount.Sub(asked)
	if err != nil || o.Status != fsm.Completed {
		return decimal.Zero
	}
	return left
}

// Restockable is the number of units of a completed order that can still be returned to stock: none if another system
// reserved them, or if the order has lines, because a refund does not say which.
func Restockable(o *Order, reservedHere bool) int32 {
	if !reservedHere || o.Lines != nil {
		return 0
	}
	left := o.Quantity
	for _, r := range Refunds(o) {
		left -= r.Restock
	}
	return left
}

// sum adds up refunds of an order, with the fraction digits of its amount. They never exceed the amount.
func sum(o *Order, counts func(*AskedRefund) bool) decimal.Decimal {
	total := decimal.Zero.Pad(o.Amount.Scale())
	for _, refund := range Refunds(o) {
		if counts(&refund) {
			total, _ = total.Add(refund.Amount)
		}
	}
	return total
}
