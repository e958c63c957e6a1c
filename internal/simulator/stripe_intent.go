package simulator

import (
	"encoding/json"
	"maps"
	"slices"
)

// The states of a payment intent: https://docs.stripe.com/payments/paymentintents/lifecycle.
const (
	needsMethod       = "requires_payment_method"
	needsConfirmation = "requires_confirmation"
	needsAction       = "requires_action"
	processing        = "processing"
	needsCapture      = "requires_capture"
	succeeded         = "succeeded"
	canceled          = "canceled"
)

// intent is a payment intent of Stripe's, as the file has it.
type intent struct {
	ID            string            `json:"id"`
	Key           string            `json:"key"` // of the request that made it
	Status        string            `json:"status"`
	Amount        int64             `json:"amount"` // in Stripe's units
	Currency      string            `json:"currency"`
	Manual        bool              `json:"manual,omitempty"` // is captured by a request of its own
	PaymentMethod string            `json:"paymentMethod,omitempty"`
	Customer      string            `json:"customer,omitempty"`
	Metadata      map[string]string `json:"metadata"`
	Created       int64             `json:"created"`
	Version       int               `json:"version"` // changes so far

	Charge   string `json:"charge,omitempty"` // the latest
	Charges  int    `json:"charges,omitempty"`
	Captures int    `json:"captures,omitempty"`
	// CaptureKey is the key of the first request to capture. One that is sent with another
	// key afterwards is about the same.
	CaptureKey string `json:"captureKey,omitempty"`
	Refunded   bool   `json:"refunded,omitempty"` // all of it, as the undoing of the charge
	Disputed   bool   `json:"disputed,omitempty"`

	Refunds []stripeGiven `json:"refunds,omitempty"`

	LastError   *stripeFault `json:"lastError,omitempty"`
	CanceledAt  int64        `json:"canceledAt,omitempty"`
	CanceledFor string       `json:"canceledFor,omitempty"`
	Promise     *promise     `json:"promise,omitempty"` // of a decision, while it is processing

	busy            bool   // a request is at work on it: others are locked out
	charge, capture *entry // what the books say of it
}

// next is a copy to be changed.
func (i *intent) next() *intent {
	n := *i
	n.Metadata = maps.Clone(i.Metadata)
	n.Version++
	return &n
}

// orderID is the order that the intent is about. One that names none is one by itself.
func (i *intent) orderID() string {
	if id := i.Metadata["pawl_order"]; id != "" {
		return id
	}
	return i.ID
}

// standing is whether money is taken, or on hold.
func (i *intent) standing() bool {
	return i.Charges > 0 && !i.Refunded && i.Status != canceled
}

// json is the intent as Stripe shows it, as far as it has what is asked for here.
func (i *intent) json(expand []string) map[string]any {
	object := map[string]any{
		"id": i.ID, "object": "payment_intent", "status": i.Status, "amount": i.Amount, "currency": i.Currency, "created": i.Created,
		"livemode": false, "client_secret": i.ID + "_secret_simulated", "capture_method": "automatic", "confirmation_method": "automatic",
		"metadata": i.Metadata, "payment_method_types": []string{"card"}, "amount_capturable": 0, "amount_received": 0,
		"customer": orNull(i.Customer), "payment_method": orNull(i.PaymentMethod), "latest_charge": orNull(i.Charge),
		"cancellation_reason": orNull(i.CanceledFor), "canceled_at": nil, "last_payment_error": i.LastError, "next_action": nil,
	}
	if i.Manual {
		object["capture_method"] = "manual"
	}
	switch i.Status {
	case needsCapture:
		object["amount_capturable"] = i.Amount
	case succeeded:
		object["amount_received"] = i.Amount
	case canceled:
		object["canceled_at"] = i.CanceledAt
	case needsAction:
		object["next_action"] = map[string]any{"type": "use_stripe_sdk", "use_stripe_sdk": map[string]any{}}
	}
	if i.Charge != "" && slices.Contains(expand, "latest_charge") {
		object["latest_charge"] = i.charged()
	}
	return object
}

// charged is the charge of the intent as Stripe shows it.
func (i *intent) charged() map[string]any {
	captured, refunded := int64(0), i.given()
	if i.Captures > 0 || !i.Manual {
		captured = i.Amount
	}
	if i.Status == canceled {
		refunded = i.Amount
	}
	return map[string]any{
		"id": i.Charge, "object": "charge", "payment_intent": i.ID, "amount": i.Amount, "currency": i.Currency, "amount_captured": captured,
		"amount_refunded": refunded, "captured": captured == i.Amount, "refunded": refunded == i.Amount, "disputed": i.Disputed, "paid": true,
		"status": "succeeded", "metadata": i.Metadata, "livemode": false, "created": i.Created,
	}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// change is what a line of the file says of Stripe's side: the intent as it is from
// then on, and the answer that is kept for the key of the request.
type change struct {
	Intent  *intent         `json:"intent,omitempty"`
	Status  int             `json:"status,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"`
	Outcome string          `json:"outcome,omitempty"` // in the log of requests
}
