package stripe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/govalues/decimal"
	"github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-go/v85/webhook"
)

// Hint says that something happened to the charge of an order, but not what, because events come late, twice and out of
// order. The receiver looks it up. The order may not exist, and Installation may be another one.
type Hint struct {
	Installation uuid.UUID
	OrderID      string
	Generation   int32
	Reference    string // the payment intent
	RefundID     string // of the requested refund, if the event is about one
	Ended        bool   // the event says that an authorization has ended

	Dispute *Dispute // if the event is about one; the other fields are empty
}

// Dispute is what an event says about a dispute. Its metadata do not name the order.
type Dispute struct {
	Reference string // of the dispute
	Intent    string // the payment intent
	Charge    string // may be empty
	State     string // opened, won or lost
	Reason    string // such as fraudulent
	At        time.Time
	units     int64
	currency  string
}

// AmountIn is the amount, which is not ok if it is in another currency.
func (d *Dispute) AmountIn(currency string) (amount decimal.Decimal, ok bool) {
	unit, special := currencyUnits[currency]
	if !special {
		unit = currencyUnit{2, 1}
	}
	amount, err := decimal.New(d.units, unit.digits)
	return amount, err == nil && strings.EqualFold(d.currency, currency) && unit.multiple > 0 && amount.IsPos()
}

// disputeStates are the states of disputes that are over. warning_closed: an inquiry that did not become a dispute.
var disputeStates = map[string]string{"won": "won", "warning_closed": "won", "lost": "lost"}

// ErrNotOurs is the error for a genuine event about no order of ours. It must be answered with success, or Stripe
// repeats it for days.
var ErrNotOurs = errors.New("the event is about no order")

// tolerance is how old a signature may be, or how far ahead of our clock.
const tolerance = 5 * time.Minute

// ReadEvent verifies an event that Stripe sent to a webhook endpoint, and returns which order it is about. payload is
// the body, byte by byte; signature the header Stripe-Signature; secret that of the endpoint; now the time of receipt.
// Any error but ErrNotOurs means that the event is not from Stripe, or an old one that was replayed. It accepts every
// API version.
func ReadEvent(payload []byte, signature, secret string, now time.Time) (Hint, error) {
	if secret == "" { // anyone could sign with it
		return Hint{}, errors.New("verify event: no secret")
	}
	// The library uses the wall clock of this machine, which may be wrong: add its difference to now.
	event, err := webhook.ConstructEventWithOptions(payload, signature, secret, webhook.ConstructEventOptions{
		Tolerance: tolerance + time.Since(now.Round(0)), IgnoreAPIVersionMismatch: true,
	})
	if err == nil && isAhead(signature, now) {
		err = errors.New("the signature is from the future")
	}
	if err != nil {
		return Hint{}, fmt.Errorf("verify event: %w", err)
	}
	var object struct {
		ID            string            `json:"id"`
		Object        string            `json:"object"`
		PaymentIntent json.RawMessage   `json:"payment_intent"`
		Metadata      map[string]string `json:"metadata"`
	}
	if event.Data == nil || json.Unmarshal(event.Data.Raw, &object) != nil {
		return Hint{}, ErrNotOurs
	}
	if object.Object == "dispute" {
		return disputeOf(&event)
	}
	reference := object.ID
	if object.Object != "payment_intent" { // a charge or refund, which has its intent or the ID of it
		reference = idOf(object.PaymentIntent)
	}
	hint, err := hintOf(object.Metadata, reference)
	hint.Ended = event.Type == stripe.EventTypePaymentIntentCanceled || event.Type == stripe.EventTypeChargeExpired
	return hint, err
}

// disputeOf reads a charge.dispute.* event. Its other states are those of an open dispute.
func disputeOf(event *stripe.Event) (Hint, error) {
	var object struct {
		ID            string          `json:"id"`
		PaymentIntent json.RawMessage `json:"payment_intent"`
		Charge        json.RawMessage `json:"charge"`
		Amount        int64           `json:"amount"`
		Currency      string          `json:"currency"`
		Reason        string          `json:"reason"`
		Status        string          `json:"status"`
	}
	intent, charge := "", ""
	if json.Unmarshal(event.Data.Raw, &object) == nil {
		intent, charge = idOf(object.PaymentIntent), idOf(object.Charge)
	}
	if !isIntent(intent) || object.ID == "" || max(len(object.ID), len(object.Reason), len(charge)) > 255 {
		return Hint{}, ErrNotOurs
	}
	return Hint{Dispute: &Dispute{
		Reference: object.ID, Intent: intent, Charge: charge, State: cmp.Or(disputeStates[object.Status], "opened"), Reason: object.Reason,
		At: time.Unix(event.Created, 0), units: object.Amount, currency: object.Currency,
	}}, nil
}

// isAhead reports whether a signature is from the future. It would be accepted then, too, and the library rejects only
// old ones.
func isAhead(signature string, now time.Time) bool {
	for part := range strings.SplitSeq(signature, ",") {
		if at, ok := strings.CutPrefix(strings.TrimSpace(part), "t="); ok {
			seconds, err := strconv.ParseInt(at, 10, 64)
			if err != nil || time.Unix(seconds, 0).After(now.Add(tolerance)) {
				return true
			}
		}
	}
	return false
}

func hintOf(metadata map[string]string, reference string) (Hint, error) {
	installation, err := uuid.Parse(metadata["pawl_installation"])
	if err != nil || metadata["pawl_order"] == "" || !isIntent(reference) {
		return Hint{}, ErrNotOurs
	}
	generation, err := strconv.ParseInt(metadata["pawl_generation"], 10, 32)
	if err != nil || generation < 0 {
		return Hint{}, ErrNotOurs
	}
	return Hint{Installation: installation, OrderID: metadata["pawl_order"], Generation: int32(generation), Reference: reference, RefundID: metadata[refundID]}, nil
}

func idOf(reference json.RawMessage) string {
	var object struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(reference, &object.ID) != nil {
		_ = json.Unmarshal(reference, &object) // anything else has no ID
	}
	return object.ID
}
