package orders

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
)

// Requested is an order to which a request with an id was applied, as it is now.
type Requested struct {
	Order                     Order
	Verb                      Verb
	Actor, OnBehalfOf, Reason string
	At                        time.Time
	State                     RequestState
	Code, Detail              string           // why it failed, or what it is held for
	Refund                    *ChargeOperation // of a refund
}

// RequestState is how far an order is with what was requested.
type RequestState string

// The states of requests.
const (
	RequestDone       RequestState = "done"
	RequestFailed     RequestState = "failed"      // the order, or its refund
	RequestInProgress RequestState = "in_progress" // a replica drives the order, or a refund is open
	RequestWaiting    RequestState = "waiting"     // the order is on hold, and continues by itself
	RequestHeld       RequestState = "held"        // the order waits for a person
)

// RequestTotal is how many orders of a request are in a state. The amount is that of the refunds, if they are what was
// requested.
type RequestTotal struct {
	State    RequestState
	Currency string
	Orders   int64
	Amount   decimal.Decimal
}

// stateOf follows from the verb, the order and the state of its charge operation. An order that was to be canceled,
// rejected or paused is done when it is.
func (v Verb) stateOf(status fsm.State, hold *string, refund string) RequestState {
	stops := v == Cancel || v == Reject
	switch {
	case refund == OperationDone, status == fsm.Canceled, v == Pause && hold != nil && *hold == fsm.HoldPaused:
		return RequestDone
	case refund == OperationFailed:
		return RequestFailed
	case refund != "":
		return RequestInProgress
	case status == fsm.Completed, status == fsm.Failed && stops:
		return RequestDone
	case status == fsm.Failed:
		return RequestFailed
	case hold == nil:
		return RequestInProgress
	case slices.Contains([]string{fsm.HoldAttention, fsm.HoldApproval, fsm.HoldPaused}, *hold):
		return RequestHeld
	}
	return RequestWaiting
}

// OfRequest reads the orders to which a request was applied, by number, after a given one, as they are now. next is 0 after
// the last page. What was refused is not there: nothing was written. Errors: ErrUnavailable.
func (r *Reader) OfRequest(ctx context.Context, requestID string, after int64, limit int32) (page []Requested, next int64, err error) {
	rows, err := Read(ctx, r, r.query.RequestPage, db.RequestPageParams{RequestID: requestID, After: after, Most: limit + 1})
	if err != nil {
		return nil, 0, Unavailable("read orders of request", err)
	}
	more := len(rows) > int(limit)
	rows = rows[:min(len(rows), int(limit))]
	how, numbers := map[int64]db.RequestPageRow{}, []int64{}
	for _, row := range rows {
		how[row.OrderNo] = row
		numbers = append(numbers, row.OrderNo)
	}
	if more {
		next = numbers[len(numbers)-1]
	}
	found, cut, err := r.readPage(ctx, numbers)
	for _, order := range found {
		page = append(page, requestedOf(order, how[order.OrderNo], requestID))
	}
	return page, cmp.Or(cut, next), err
}

func requestedOf(o Order, row db.RequestPageRow, requestID string) Requested {
	q := Requested{Order: o, Verb: Verb(row.Verb), Actor: row.Actor, OnBehalfOf: row.OnBehalfOf, Reason: row.Reason, At: row.At}
	refund := ""
	for _, asked := range ChargeOperations(&o) {
		if asked.Kind == string(q.Verb) && asked.RequestID == requestID {
			q.Refund, refund = &asked, asked.State
		}
	}
	q.State = q.Verb.stateOf(o.Status, o.Hold, refund)
	switch {
	case q.Refund != nil:
		q.Code, q.Detail = q.Refund.Code, q.Refund.Detail
	case o.HoldReason != nil && o.Hold != nil:
		code, detail, _ := strings.Cut(*o.HoldReason, ": ")
		q.Code, q.Detail = code, detail
	case o.FailureCode != nil && q.State == RequestFailed:
		q.Code = *o.FailureCode
		if o.FailureDetail != nil {
			q.Detail = *o.FailureDetail
		}
	}
	return q
}

// RequestTotals adds up the orders of a request, up to CountsMost of them, by state and currency. more: there are others.
// Errors: ErrUnavailable.
func (r *Reader) RequestTotals(ctx context.Context, requestID string) (totals []RequestTotal, more bool, err error) {
	rows, err := Read(ctx, r, r.query.RequestTotals, db.RequestTotalsParams{RequestID: requestID, Most: CountsMost})
	if err != nil {
		return nil, false, Unavailable("count orders of request", err)
	}
	all := int64(0)
	for _, row := range rows {
		all += row.Orders
		state := Verb(row.Verb).stateOf(row.Status, row.Hold, row.Refund)
		totals = addTotal(totals, RequestTotal{state, row.Currency, row.Orders, row.Amount})
	}
	slices.SortFunc(totals, func(a, b RequestTotal) int {
		return strings.Compare(a.Currency+" "+string(a.State), b.Currency+" "+string(b.State))
	})
	return totals, all >= CountsMost, nil
}

func addTotal(totals []RequestTotal, t RequestTotal) []RequestTotal {
	for i := range totals {
		if sum := &totals[i]; sum.State == t.State && sum.Currency == t.Currency {
			sum.Orders += t.Orders
			sum.Amount, _ = sum.Amount.Add(t.Amount) // at most CountsMost amounts
			return totals
		}
	}
	return append(totals, t)
}
