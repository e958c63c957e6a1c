package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
)

var refundOperation = verbOperation(orders.Refund, "Give back money of a completed order",
	"Refunds a part of the charge, or all that is left of it, where it was charged. The status stays completed; refunded and refunds say what "+
		"was given back. Fields that are not known are refused. It is 200 once the refund is done or failed, and 202 as long as it is open: Pawl goes on with it.")

type refundBody struct {
	Amount     *amountInput `json:"amount,omitempty" doc:"How much, more than zero. All that is left when left out." example:"12.50"`
	Restock    *int32       `json:"restock,omitempty" minimum:"1" maximum:"2147483647" doc:"How many units are put back into stock at once, whatever becomes of the money."`
	OnBehalfOf string       `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept in the history beside the caller, which a token names. Needs the role delegate."`
	Reason     string       `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; kept in the history, and told to an http provider." example:"one is broken"`
	RequestID  string       `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this refund, so that it is done once. Required, here or as Idempotency-Key." example:"ticket-4712"`
}

func (s *server) refund(w http.ResponseWriter, r *http.Request, body fields) (err error) {
	if err = (preference{handling: strict}).judge(body.ignored(), nil); err != nil { // a mistyped amount would give back everything
		return err
	}
	q := requestOf(orders.Refund, body)
	if err = readTarget(w, r, &q); err != nil {
		return err
	}
	if q.Refund, err = s.readRefund(r.Context(), body, &q); err != nil {
		return err
	}
	q.HTTPRequestID = w.Header().Get("X-Request-Id")
	return s.do(w, r, &q, nil)
}

// readRefund reads what is to be given back. How many digits an amount can have depends on the currency of the order.
func (s *server) readRefund(ctx context.Context, body fields, q *engine.Request) (*engine.Refund, error) {
	if q.RequestID == "" {
		return nil, newProblem("invalid_input", "", fieldError{Pointer: "/requestId", Code: "required",
			Detail: "is required if there is no Idempotency-Key: without one, a repeated request would refund twice"})
	}
	refund := &engine.Refund{Restock: int32(body.integer("restock"))}
	text, given := body["amount"].(json.RawMessage)
	if !given {
		return refund, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	o, err := s.engine.Orders.Get(ctx, q.OrderID)
	if err != nil {
		return nil, err
	}
	currency, _ := iso4217.Find(o.Currency) // it was checked when the order came
	amount, code, detail := refundAmount(text, currency)
	if code != "" {
		return nil, newProblem("invalid_input", "", fieldError{Pointer: "/amount", Code: code, Detail: detail})
	}
	refund.Amount = &amount
	return refund, nil
}

// refundAmount reads a number, or a string with one.
func refundAmount(text []byte, currency iso4217.Currency) (amount decimal.Decimal, code, detail string) {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] == '"' {
		var inner string
		_ = json.Unmarshal(text, &inner) // it was read before
		text = []byte(inner)
	}
	amount, code, detail = amountIn(numberIn(text), currency)
	if code == "" && !amount.IsPos() {
		code, detail = "out_of_range", "must be greater than 0"
	}
	return amount, code, strings.TrimSpace(detail)
}

// refundOpen reports whether something is still to come of the refund that a request is about.
func refundOpen(o *orders.Order, q *engine.Request) bool {
	for _, r := range orders.Refunds(o) {
		if q.Refund != nil && r.RequestID == q.RequestID || q.Settle != nil && q.Settle.Refund != nil && r.Number == *q.Settle.Refund {
			return !r.Settled()
		}
	}
	return false
}
