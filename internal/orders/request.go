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

// requestLooked is how many orders of a request are looked at for a page in one state.
const requestLooked = 1000

// RequestFilter selects orders of a request.
type RequestFilter struct {
	State RequestState // empty: any
	After int64        // the cursor: the number of the last order of the previous page
	Limit int32        // 1 or more
}

// OfRequest reads the orders to which a request was applied, by number, as they are now. next is 0 after the last page; a page may be short, because it looks at a thousand orders.
// Errors: ErrUnavailable.
func (r *Reader) OfRequest(ctx context.Context, requestID string, f RequestFilter) (page []Requested, next int64, err error) {
	most := f.Limit + 1
	if f.State != "" {
		most = requestLooked
	}
	rows, err := Read(ctx, r, r.query.RequestPage, db.RequestPageParams{RequestID: requestID, After: f.After, Most: most})
	if err != nil {
		return nil, 0, Unavailable("read orders of request", err)
	}
	how, numbers := map[int64]db.RequestPageRow{}, []int64{}
	for i, row := range rows {
		if len(numbers) == int(f.Limit) {
			next = rows[i-1].OrderNo
			break
		}
		if f.State == "" || Verb(row.Verb).stateOf(row.Status, row.Hold, row.Refund) == f.State {
			how[row.OrderNo] = row
			numbers = append(numbers, row.OrderNo)
		}
	}
	if next == 0 && f.State != "" && len(rows) == requestLooked {
		next = rows[len(rows)-1].OrderNo
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

// Refusals are what a bulk request was refused.
type Refusals struct {
	Verb          Verb
	At            time.Time // of the last request with this id
	Actor, Reason string
	Orders        []Refusal // by id
}

// Refusal is an order to which a verb was not applied, and the code and detail of the problem. Only RefusalsOf knows the
// amount; if it is empty, there is no such order.
type Refusal struct{ OrderID, Code, Detail, Amount, Currency string }

// RefusalsOf reads what bulk requests with an id were refused in the last month, without the orders to which one of them
// was applied since. Errors: ErrUnavailable.
func (r *Reader) RefusalsOf(ctx context.Context, requestID string) (refused Refusals, err error) {
	rows, err := Read(ctx, r, r.query.BulkRefusals, db.BulkRefusalsParams{RequestID: requestID, Most: CountsMost})
	for _, row := range rows {
		refused.Verb, refused.At, refused.Actor, refused.Reason = Verb(row.Verb), row.At, row.Actor, row.Reason
		refused.Orders = append(refused.Orders, Refusal{row.OrderID, row.Code, row.Detail, row.Amount, row.Currency})
	}
	return refused, Unavailable("read refusals of request", err)
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
