package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

var processOperation = withBody(huma.Operation{
	OperationID: "processOrder", Method: http.MethodPost, Path: "/api/orders/process", Tags: []string{"orders"},
	Summary: "Take an order through its steps",
	Description: "Charges, reserves and confirms the order, each exactly once, and answers when it is final. " +
		"An order that exists is not started again: with the same input the answer is its current state, and what is unfinished goes on; " +
		"with another amount, item, quantity, currency, customerId, paymentMethod, startAt, completeBy, reservationTtl or concurrencyKey it is a conflict. Fields left out match what is stored. " +
		"Metadata never conflicts: what is stored stays, and ignoredFields names metadata that is another. " +
		"A field whose name is one letter off one of these is refused. " +
		"An order that failed is an answer like any other, 200 with status failed. " +
		"An order that is not final in time is answered with 202 and goes on without the caller: at once when it waits for a person, or until a time after the caller's. " +
		"With an Idempotency-Key, the same key with any other request is refused for 30 days; with this one the answer is the current state. " +
		"One that waits for the callback of a provider is waited for, unless the customer has to act first. " +
		"While too many requests of the caller wait, the answer is 202 at once.",
}, "invalid_idempotency_key", "idempotency_key_reused", "not_found", "order_conflict", "overloaded", "stopping", "unavailable", "internal")

// processRequest documents what decodeInput reads.
type processRequest struct {
	Prefer string `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240). handling=strict refuses fields that are not known."`
	Key    string `header:"Idempotency-Key" doc:"A name for this request, in quotes or without, so that it can't be used for another one. Callers' keys do not collide."`
	Body   processBody
}

type processBody struct {
	OrderID  string      `json:"orderId" minLength:"1" maxLength:"255" doc:"The name of the order: any Unicode text whose characters everybody can see: no blanks at its ends or other ones than U+0020, and no control, invisible, private-use or unassigned characters. Emoji are fine. Not one or two dots, nor a slash, alone." example:"order-123"`
	Amount   amountInput `json:"amount" doc:"From 0 to 999999999999999, with no more fraction digits than the currency has; exact to the last digit. A string, or a number: many clients round large numbers before they send them." example:"99.99"`
	Item     string      `json:"item" minLength:"1" maxLength:"255" doc:"What is ordered: a name by the same rules." example:"widget"`
	Quantity int32       `json:"quantity,omitempty" minimum:"1" maximum:"1000000" doc:"1 when left out."`
	Currency string      `json:"currency,omitempty" pattern:"^[A-Z]{3}$" doc:"ISO 4217. The service's default when left out."`
	Metadata metadataMap `json:"metadata,omitempty" doc:"Strings of your own, kept with the order: up to 50, names of up to 40 characters, values of up to 500."`

	CustomerID     string    `json:"customerId,omitempty" minLength:"1" maxLength:"255" doc:"Who buys. Handed to providers, and what rules of a policy can go by."`
	PaymentMethod  string    `json:"paymentMethod,omitempty" minLength:"1" maxLength:"255" doc:"What the charge is made with, in words of the provider's. Never logged, and never answered." writeOnly:"true"`
	StartAt        time.Time `json:"startAt,omitempty" doc:"Do not start before this time (RFC 3339 with zone), at most a year ahead."`
	CompleteBy     time.Time `json:"completeBy,omitempty" doc:"The deadline (RFC 3339 with zone). An order that is not completed by then is undone, unless its confirmation is in doubt."`
	ReservationTTL int32     `json:"reservationTtl,omitempty" minimum:"1" maximum:"31536000" doc:"Seconds that a reservation waits for its confirmation, before the order is undone."`
	ConcurrencyKey string    `json:"concurrencyKey,omitempty" minLength:"1" maxLength:"255" doc:"Orders with the same key take turns, where the policy limits how many of them are under way."`
}

// orderAnswer documents an answer with an order.
type orderAnswer struct {
	ETag              string `header:"ETag" doc:"The order's seq, in quotes."`
	Location          string `header:"Location" doc:"Where the order can be read. With 202."`
	RetryAfter        string `header:"Retry-After" doc:"Seconds until it is worth asking again. With 202."`
	PreferenceApplied string `header:"Preference-Applied" doc:"What of Prefer shaped the answer."`
	Body              order
}

// process is the hot route: it is read and written by hand.
func (s *server) process(w http.ResponseWriter, r *http.Request) error {
	want := preferenceOf(r.Header["Prefer"], s.ResponseTimeout)
	in, ignored, err := s.requestedInput(w, r, want)
	if err != nil {
		return err
	}
	in.HTTPRequestID = w.Header().Get("X-Request-Id")
	note(w, in.OrderID, "")
	o, err := s.run(w, r, in, &want)
	if err = withheld(principalOf(w), &o, err); err != nil {
		return err
	}
	if in.Metadata != nil && !sameMetadata(in.Metadata, o.Metadata) {
		ignored = append(ignored, "metadata")
	}
	s.writeOrder(w, &o, want, ignored)
	return nil
}

// requestedInput is all that a request says of an order.
func (s *server) requestedInput(w http.ResponseWriter, r *http.Request, want preference) (in engine.Input, ignored []string, err error) {
	in, ignored, err = s.readInput(w, r)
	err = want.judge(ignored, err)
	var ifKnown *rejectIfNew
	if errors.As(err, &ifKnown) {
		in = ifKnown.order
	} else if err != nil {
		return in, nil, err
	}
	p := principalOf(w)
	in.SubmittedBy = submitterOf(p)
	key, keyErr := idempotencyKey(r.Header)
	switch {
	case keyErr != nil:
		return in, nil, keyErr
	case key != "":
		in.SetKey(p.Name, key)
	}
	if ifKnown != nil {
		in, err = s.knownInput(r.Context(), in, err)
	}
	return in, ignored, err
}

func (s *server) readInput(w http.ResponseWriter, r *http.Request) (in engine.Input, ignored []string, err error) {
	body := newBuffer()
	defer body.free()
	if err := body.read(w, r); err != nil {
		return engine.Input{}, nil, err
	}
	return decodeInput(body.Bytes(), s.currency, s.clock)
}

// knownInput is the input of an order that was refused for what only a new one must not
// have, if the order exists: it is compared in the currency it was stored in. With no such
// order that is the error.
func (s *server) knownInput(ctx context.Context, in engine.Input, refused error) (engine.Input, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	stored, err := s.engine.Orders.Get(ctx, in.OrderID)
	switch {
	case errors.Is(err, orders.ErrNotFound):
		return engine.Input{}, refused
	case err != nil:
		return engine.Input{}, err
	}
	in.Currency = cmp.Or(in.Currency, stored.Currency)
	return in, nil
}

// run waits for the end of the order, or with no time to wait only until it is
// stored: an order that is answered with 202 exists.
func (s *server) run(w http.ResponseWriter, r *http.Request, in engine.Input, want *preference) (orders.Order, error) {
	place := want.placeToWait(w, r)
	defer place.leave()
	ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(want.atMost, readLimit))
	defer cancel()
	if want.atMost == 0 {
		return s.engine.Admit(ctx, in)
	}
	return s.engine.Process(ctx, in)
}

const jsonMedia = "application/json"

var jsonType = []string{jsonMedia}

// writeOrder answers with an order: 200 when it is final, 202 when it is not.
func (s *server) writeOrder(w http.ResponseWriter, o *orders.Order, want preference, ignored []string) {
	if !o.Status.Final() {
		s.writeAccepted(w, o, want, ignored)
		return
	}
	if applied := want.applied(true); applied != "" {
		w.Header().Set("Preference-Applied", applied)
	}
	writeOrderStatus(w, answerOf(o, ignored), http.StatusOK)
}

// answerOf is the order as it is answered to a request with such fields that are not known.
func answerOf(o *orders.Order, ignored []string) *order {
	wire := orderOf(o)
	wire.IgnoredFields = ignored
	return &wire
}

// writeAccepted answers that something is still to come, and when it is worth asking again.
func (s *server) writeAccepted(w http.ResponseWriter, o *orders.Order, want preference, ignored []string) {
	header := w.Header()
	if applied := want.applied(false); applied != "" {
		header.Set("Preference-Applied", applied)
	}
	header.Set("Location", "/api/orders/"+url.PathEscape(o.OrderID))
	header.Set("Retry-After", retryAfter(o, s.clock))
	writeOrderStatus(w, answerOf(o, ignored), http.StatusAccepted)
}

func writeOrderStatus(w http.ResponseWriter, o *order, status int) {
	note(w, o.OrderID, string(o.Status))
	header := w.Header()
	header["Content-Type"] = jsonType
	header["Etag"] = []string{entityTag(o.Seq)}
	body := newBuffer()
	defer body.free()
	body.Write(o.append(body.AvailableBuffer()))
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // the caller has gone
}

// askAgain is after how long it is worth asking again for an order that waits for this at most.
var askAgain = map[string]time.Duration{
	fsm.HoldRetry: time.Hour, fsm.HoldScheduled: time.Hour, // until it is due: nothing comes before
	fsm.HoldCallback: 5 * time.Second, fsm.HoldQueued: 5 * time.Second, // at any moment
	fsm.HoldApproval: time.Minute, fsm.HoldPaused: time.Minute, fsm.HoldAttention: time.Minute, // people take their time
}

// retryAfter is a second while somebody drives the order, or a refund of it is open, and for one that is held
// the time until it is due by the clock, or less where it may go on sooner.
func retryAfter(o *orders.Order, clock func() time.Time) string {
	if o.Hold == nil {
		return "1"
	}
	seconds := int64(askAgain[*o.Hold] / time.Second)
	if due := o.DueAt; due != nil {
		seconds = min(max(int64(due.Sub(clock())/time.Second)+1, 1), seconds)
	}
	return strconv.FormatInt(seconds, 10)
}
