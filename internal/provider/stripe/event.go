package stripe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
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
}

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
	reference := object.ID
	if object.Object != "payment_intent" { // a charge or refund, which has its intent or the ID of it
		reference = idOf(object.PaymentIntent)
	}
	return hintOf(object.Metadata, reference)
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
	return Hint{installation, metadata["pawl_order"], int32(generation), reference, metadata[refundID]}, nil
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
