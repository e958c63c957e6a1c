package orders

import (
	"encoding/json"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// AskedRefund is one that was asked for, of an order that is completed.
type AskedRefund struct {
	Number     int32           `json:"refund"` // 1 for the first of the order
	State      string          `json:"state"`  // one of those below
	Amount     decimal.Decimal `json:"amount"`
	Restock    int32           `json:"restock"` // units that were put back into stock
	Reason     string          `json:"reason"`
	RequestID  string          `json:"requestId"`
	CreatedAt  time.Time       `json:"createdAt"`
	FinishedAt *time.Time      `json:"finishedAt"` // when it was done or had failed
	Reference  string          `json:"reference"`  // the provider's name for it
	Code       string          `json:"code"`       // why it is not done
	Detail     string          `json:"detail"`
}

// The states of a refund.
const (
	RefundPending  = "pending"  // nothing was given back yet
	RefundInDoubt  = "in_doubt" // it was sent, and its outcome is not known
	RefundAccepted = "accepted" // the provider will do it
	RefundDone     = "done"     // the money is back
	RefundFailed   = "failed"   // it is not, and never will be by this refund
)

// Settled reports whether nothing more is to come of it.
func (r *AskedRefund) Settled() bool { return r.State == RefundDone || r.State == RefundFailed }

// Refunds are those that were asked for, the first one first. Of an order that a statement returned which writes orders
// there are none.
func Refunds(o *Order) []AskedRefund {
	var refunds []AskedRefund
	if o.RefundList != nil {
		_ = json.Unmarshal(o.RefundList, &refunds) // our own view
	}
	return refunds
}

// Refunded is how much of an order was given back, beyond doubt.
func Refunded(o *Order) decimal.Decimal {
	return sum(o, func(r *AskedRefund) bool { return r.State == RefundDone })
}

// Refundable is how much of a completed order can still be given back.
func Refundable(o *Order) decimal.Decimal {
	asked := sum(o, func(r *AskedRefund) bool { return r.State != RefundFailed })
	left, err := o.Amount.Sub(asked)
	if err != nil || o.Status != fsm.Completed {
		return decimal.Zero
	}
	return left
}

// Restockable is how many units of a completed order can still be put back into stock: none that another system reserved.
func Restockable(o *Order, reservedHere bool) int32 {
	if !reservedHere {
		return 0
	}
	left := o.Quantity
	for _, r := range Refunds(o) {
		left -= r.Restock
	}
	return left
}

// sum adds up refunds of an order, with the fraction digits of its amount. They are never more than that.
func sum(o *Order, counts func(*AskedRefund) bool) decimal.Decimal {
	total := decimal.Zero.Pad(o.Amount.Scale())
	for _, refund := range Refunds(o) {
		if counts(&refund) {
			total, _ = total.Add(refund.Amount)
		}
	}
	return total
}
