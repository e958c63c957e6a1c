package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/access"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
	"pawl/internal/provider"
)

const processPath = "/api/orders/process"

var processOperation = withBody(huma.Operation{
	OperationID: "processOrder", Method: http.MethodPost, Path: processPath, Tags: []string{"orders"},
	Summary: "Process an order",
	Description: "Charges, reserves and confirms the order, each exactly once, and responds when it is final. " +
		"A failed order is a normal response: 200 with status failed. An order that is not final in time gets 202 and continues without the caller.\n\n" +
		"An existing order is not started again: with the same input, the response is its current state, and an unfinished order continues; " +
		"with a different amount, item, quantity, line, currency, customerId, paymentMethod, startAt, completeBy, reservationTtl or concurrencyKey it is a conflict. Omitted fields match what is stored. " +
		"Metadata never conflicts: the stored metadata is kept, and ignoredFields names metadata if it differs. " +
		"If the order ended so long ago that it was forgotten, the response has forgotten: true, its final status, and what the same request says.\n\n" +
		"The 202 is sent at once if the order waits for a person, for a time after the limit, or for the customer to act, " +
		"and if too many of your requests are waiting; a provider's callback is waited for. " +
		"An Idempotency-Key cannot be used for a different request for 30 days; the same request gets the current state.\n\n" +
		"With Content-Type: application/x-ndjson, each line of the body is an order, of up to 65536 bytes. The response has a line for each, in the order in which they end, while the request is still being sent. " +
		"A line that is rejected does not affect the others. Prefer applies to each line; there must be no Idempotency-Key. " +
		"A caller has up to 512 lines in progress, 16 while single orders come, and is not read from while it does not read. " +
		"A response that ends early, or without a line for each order, was cut off: send the orders without a line again.",
}, "invalid_idempotency_key", "idempotency_key_reused", "not_found", "order_conflict", "overloaded", "stopping", "unavailable", "internal")

type processRequest struct {
	Prefer string `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240). handling=strict rejects unknown fields."`
	Key    string `header:"Idempotency-Key" doc:"A name for this request, in quotes or without, so that it can't be used for another one. Callers' keys do not collide."`
	Body   processBody
}

type processBody struct {
	OrderID  string       `json:"orderId" minLength:"1" maxLength:"255" doc:"The name of the order. Any visible Unicode text: no leading or trailing white space, no white space other than U+0020, and no control, invisible, private-use or unassigned characters. Not just a dot, two dots or a slash."`
	Amount   amountInput  `json:"amount" doc:"From 0 to 999999999999999, with no more fraction digits than the currency has; exact to the last digit. A string or a number; many clients round large numbers before sending them."`
	Item     string       `json:"item,omitempty" minLength:"1" maxLength:"255" doc:"What is ordered; or use lines. The same rules apply as for orderId."`
	Quantity int32        `json:"quantity,omitempty" minimum:"1" maximum:"1000000" doc:"Number of units of the item. Defaults to 1."`
	Lines    []lineInput  `json:"lines,omitempty" nullable:"false" minItems:"1" maxItems:"200" doc:"What is ordered, if it is more than one item. The order gets all of them or none. One line without an amount is the same as item and quantity."`
	Currency currencyCode `json:"currency,omitempty" doc:"ISO 4217. Defaults to the currency of the service."`
	Metadata metadata     `json:"metadata,omitempty" doc:"Your own strings, stored with the order: up to 50, with keys of up to 40 characters and values of up to 500."`

	CustomerID     string    `json:"customerId,omitempty" minLength:"1" maxLength:"255" doc:"The customer. Sent to providers, and usable in policy rules."`
	PaymentMethod  string    `json:"paymentMethod,omitempty" minLength:"1" maxLength:"255" doc:"The payment method, in the terms of the provider. Never logged or returned." writeOnly:"true"`
	StartAt        time.Time `json:"startAt,omitempty" doc:"Do not start before this time (RFC 3339 with zone), at most a year ahead."`
	CompleteBy     time.Time `json:"completeBy,omitempty" doc:"The deadline (RFC 3339 with zone). An order that is not completed by then is undone, unless its confirmation is in doubt."`
	ReservationTTL int32     `json:"reservationTtl,omitempty" minimum:"1" maximum:"31536000" doc:"How many seconds a reservation may wait for its confirmation before the order is undone."`
	ConcurrencyKey string    `json:"concurrencyKey,omitempty" minLength:"1" maxLength:"255" doc:"The policy can limit how many orders with the same key are processed at a time."`
}

// orderAnswer documents an answer with an order.
type orderAnswer struct {
	ETag              string `header:"ETag" doc:"The order's seq, in quotes."`
	Location          string `header:"Location" doc:"The URL of the order. With 202."`
	RetryAfter        string `header:"Retry-After" doc:"Seconds to wait before reading the order. With 202."`
	PreferenceApplied string `header:"Preference-Applied" doc:"The preferences that were applied."`
	Body              order
}

// process is the hot route: its answer is written by hand.
func (s *server) process(w http.ResponseWriter, r *http.Request) error {
	if hasOrderLines(r) {
		return s.processStream(w, r)
	}
	q := s.submissionOf(w, r)
	in, ignored, err := q.read(w, r)
	if err != nil {
		return err
	}
	note(w, in.OrderID, "")
	s.singleAt.Store(time.Now().UnixMicro())
	place := q.want.placeToWait(w, r)
	defer place.leave()
	o, err := q.run(r.Context(), in)
	if f, ok := errors.AsType[*orders.Forgotten](err); ok {
		writeOrderStatus(w, forgottenOrder(f, in, ignored), http.StatusOK)
		return nil
	}
	if err != nil {
		return err
	}
	s.writeOrder(w, o, q.want, withMetadata(ignored, in, o))
	return nil
}

// read reads the request. While the caller waits, its body takes no memory.
func (s *submission) read(w http.ResponseWriter, r *http.Request) (in *engine.Input, ignored []string, err error) {
	body := newBuffer()
	defer body.free()
	if err := body.read(w, r); err != nil {
		return nil, nil, err
	}
	return s.input(r.Context(), body.Bytes(), r.Header)
}

// submission is what a request says beside its orders.
type submission struct {
	*server
	principal *access.Principal
	requestID string
	want      preference
}

func (s *server) submissionOf(w http.ResponseWriter, r *http.Request) submission {
	return submission{s, principalOf(w), w.Header().Get("X-Request-Id"), preferenceOf(r.Header["Prefer"], s.ResponseTimeout)}
}

// input reads an order from a body, or from a line of it. header has the Idempotency-Key; it is nil for a line.
func (s *submission) input(ctx context.Context, body []byte, header http.Header) (in *engine.Input, ignored []string, err error) {
	in, ignored, err = decodeInput(body, s.currency, s.clock)
	err = s.want.judge(ignored, err)
	var onlyNew *rejectIfNew
	if errors.As(err, &onlyNew) {
		in = onlyNew.order
	} else if err != nil {
		return nil, nil, err
	}
	if err := s.ownOrder(in.OrderID); err != nil {
		return nil, nil, err
	}
	in.SubmittedBy, in.HTTPRequestID = submitterOf(s.principal), s.requestID
	key, keyErr := idempotencyKey(header)
	switch {
	case keyErr != nil:
		return nil, nil, keyErr
	case key != "":
		in.SetKey(s.principal.Name, key)
	}
	if onlyNew != nil {
		err = s.onlyIfStored(ctx, in, err)
	}
	return in, ignored, err
}

// onlyIfStored returns nil if the order is stored, and otherwise the error, whose faults only matter for a new order. The
// input is then compared in the currency of the stored order.
func (s *server) onlyIfStored(ctx context.Context, in *engine.Input, refused error) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	stored, err := s.engine.Orders.Get(ctx, in.OrderID)
	forgotten, ended := errors.AsType[*orders.Forgotten](err)
	switch {
	case ended:
		stored.Currency = forgotten.Currency
	case errors.Is(err, orders.ErrNotFound):
		return refused
	case err != nil:
		return err
	}
	in.Currency = cmp.Or(in.Currency, stored.Currency)
	return nil
}

// run processes the order and waits for its end. With no time to wait, it returns as soon as the order is stored,
// because a 202 promises that.
func (s *submission) run(ctx context.Context, in *engine.Input) (o *orders.Order, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.want.atMost, readLimit))
	defer cancel()
	if s.want.atMost == 0 {
		o, err = s.engine.Admit(ctx, *in)
	} else {
		o, err = s.engine.Process(ctx, *in)
	}
	return o, withheld(s.principal, o, err)
}

// withMetadata adds metadata to the ignored fields if it differs from what is stored.
func withMetadata(ignored []string, in *engine.Input, o *orders.Order) []string {
	if in.Metadata != nil && !sameMetadata(in.Metadata, o.Metadata) {
		ignored = append(ignored, "metadata")
	}
	return ignored
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
	writeOrderStatus(w, s.answerOf(o, ignored), http.StatusOK)
}

// answerOf is the order as the API shows it, with the ignored fields of the request.
func (s *server) answerOf(o *orders.Order, ignored []string) *order {
	wire := s.orderOf(o)
	wire.IgnoredFields = ignored
	return &wire
}

// orderOf is the order as the API shows it, with what its policy says.
func (s *server) orderOf(o *orders.Order) order {
	wire := orderOf(o)
	if wire.OrderTerms != nil && orders.HeldFor(o, fsm.HoldApproval) {
		if wire.ApprovalRule, wire.OnTimeout = s.engine.Approval(o); wire.ApprovalUntil == nil {
			wire.OnTimeout = ""
		}
	} else if wire.OrderTerms != nil {
		wire.Retry = (*retries)(s.engine.Retries(o))
	}
	return wire
}

// writeAccepted answers 202, with Location and Retry-After.
func (s *server) writeAccepted(w http.ResponseWriter, o *orders.Order, want preference, ignored []string) {
	header := w.Header()
	if applied := want.applied(false); applied != "" {
		header.Set("Preference-Applied", applied)
	}
	header.Set("Location", "/api/orders/"+url.PathEscape(o.OrderID))
	header.Set("Retry-After", retryAfter(o, s.clock))
	writeOrderStatus(w, s.answerOf(o, ignored), http.StatusAccepted)
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

// askAgain is the longest Retry-After for each hold.
var askAgain = map[string]time.Duration{
	fsm.HoldRetry: time.Hour, fsm.HoldScheduled: time.Hour, // nothing happens before it is due
	fsm.HoldCallback: 5 * time.Second, fsm.HoldQueued: 5 * time.Second, // may end at any moment
	fsm.HoldApproval: time.Minute, fsm.HoldPaused: time.Minute, fsm.HoldAttention: time.Minute, // people take their time
}

// retryAfter is a second while the order is in progress or a refund of it is open. For a held order it is the time until it is
// due by the clock, or less if it may continue sooner.
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

// termNames are the fields that say what is bought, and when.
var termNames = slices.DeleteFunc(slices.Clone(fieldsOf(reflect.TypeFor[processBody]()).names),
	func(name string) bool { return name == "metadata" })

// decodeInput reads and checks the body of a process request. Without a currency, the amount is checked in the
// fallback currency, and Currency stays empty. Times are compared with the clock. ignored are the unknown fields. If
// all faults matter only for a new order, the error is a *rejectIfNew. The result does not alias data.
func decodeInput(data []byte, fallback iso4217.Currency, clock func() time.Time) (order *engine.Input, ignored []string, err error) {
	var body processBody
	order = &engine.Input{}
	onlyIfNew := 0 // faults that only matter for a new order
	ignored, err = decodeFields(data, &body, func(d *decoder, body *processBody) {
		d.refuseMisspelled(termNames...)
		body.fill(order)
		for _, term := range [][2]string{{"/customerId", body.CustomerID}, {"/paymentMethod", body.PaymentMethod}} {
			if orders.Pseudonym(term[1]) {
				d.fault(term[0], "reserved", "has the form of a pseudonym of an erased customer")
				onlyIfNew++
			}
		}
		if d.has("startAt") || d.has("completeBy") {
			onlyIfNew += checkTimes(d, &order.Terms, clock())
		}
		if body.Amount != nil {
			onlyIfNew += checkAmount(d, body, fallback, &order.Amount)
		}
		onlyIfNew += checkItems(d, body, fallback, order)
	})
	if err == nil {
		return order, ignored, nil
	}
	// A syntax error after the object is an error of its own.
	if p := problemOf(err); p.Code == "invalid_input" && len(p.Errors) == onlyIfNew {
		err = &rejectIfNew{order: order, error: err}
	}
	return nil, ignored, err
}

// rejectIfNew is an error that applies only if the order is new. A stored order may have a deadline that has passed
// since, or an amount with the digits of a former default currency.
type rejectIfNew struct {
	order *engine.Input
	error
}

func (n *rejectIfNew) Unwrap() error { return n.error }

func (b *processBody) fill(order *engine.Input) {
	*order = engine.Input{
		OrderID: b.OrderID, Item: b.Item, Quantity: b.Quantity, Currency: string(b.Currency), Metadata: b.Metadata,
		Terms: engine.Terms{
			CustomerID: b.CustomerID, PaymentMethod: b.PaymentMethod, ConcurrencyKey: b.ConcurrencyKey,
			StartAt: b.StartAt, CompleteBy: b.CompleteBy, ReservationTTL: time.Duration(b.ReservationTTL) * time.Second,
		},
	}
}

// checkAmount parses the amount after the whole body was read, because the currency may follow it. It returns the
// number of faults that only matter for a new order.
func checkAmount(d *decoder, body *processBody, fallback iso4217.Currency, to *decimal.Decimal) (onlyIfNew int) {
	amount, code, detail := amountIn(body.Amount, currencyOf(d, body, fallback))
	if code != "" {
		d.fault("/amount", code, detail+shownAmount(body.Amount))
	}
	if code == tooManyDigits && body.Currency == "" {
		if amount, code, _ = parseAmount(body.Amount, iso4217.MostDigits); code == "" {
			amount = amount.Trim(0)
			onlyIfNew++
		}
	}
	*to = amount
	return onlyIfNew
}

// currencyOf is the currency in which amounts are checked.
func currencyOf(d *decoder, body *processBody, fallback iso4217.Currency) iso4217.Currency {
	if !d.has("currency") {
		return fallback
	}
	if known, ok := iso4217.Find(string(body.Currency)); ok {
		return known
	}
	return iso4217.Currency{Digits: iso4217.MostDigits} // reported as a fault of the currency
}

// shownAmount is the end of a fault: the number that was sent, if it was one.
func shownAmount(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	return ", not " + shownNumber(text)
}

// name reads the name of an order or an item. It rejects names that a path can't carry: clients and proxies remove a
// segment of one or two dots, even if it is percent-encoded, and treat a slash as the end of a segment.
func (d *decoder) name(pointer string) string {
	name := d.visibleText(pointer)
	if name == "." || name == ".." || name == "/" {
		d.fault(pointer, "reserved", "must not be \".\", \"..\" or \"/\"")
	}
	return name
}

// currencyCode is a known currency.
type currencyCode string

func (c *currencyCode) read(d *decoder, pointer string) {
	code, ok := d.stringOf(pointer)
	if _, known := iso4217.Find(string(code)); known {
		*c = currencyCode(code)
	} else if ok {
		d.fault(pointer, "unknown_currency", "must be an ISO 4217 currency code in capital letters")
	}
}

// Schema implements huma.SchemaProvider.
func (currencyCode) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: "^[A-Z]{3}$"}
}

const maxAhead = 365 * 24 * time.Hour

// checkTimes compares times with each other and with now. A deadline that has passed only matters for a new order:
// the caller may be asking how a stored one ended. It returns the number of such faults.
func checkTimes(d *decoder, t *engine.Terms, now time.Time) (onlyIfNew int) {
	if t.StartAt.After(now.Add(maxAhead)) {
		d.fault("/startAt", "out_of_range", "must be at most one year in the future, not "+t.StartAt.Format(time.RFC3339Nano))
	}
	switch {
	case t.CompleteBy.IsZero():
	case !t.CompleteBy.After(t.StartAt):
		d.fault("/completeBy", "out_of_range", "must be after startAt, not "+t.CompleteBy.Format(time.RFC3339Nano))
	case !t.CompleteBy.After(now):
		d.fault("/completeBy", "in_the_past", "must be in the future, not "+t.CompleteBy.Format(time.RFC3339Nano))
		onlyIfNew++
	}
	return onlyIfNew
}

// readTime returns the zero time for a text that is not a time an order can have.
func readTime(raw []byte) (at time.Time) {
	if err := at.UnmarshalText(raw); err != nil || bytes.ContainsRune(raw, ',') || at.Year() < 1970 || at.Year() > 9998 {
		return time.Time{}
	}
	return at
}

// time reads a time with its zone (RFC 3339), to the microsecond.
func (d *decoder) time(pointer string) time.Time {
	raw, ok := d.stringOf(pointer)
	if !ok {
		return time.Time{}
	}
	at := readTime(raw)
	if at.IsZero() {
		d.fault(pointer, "not_time", "must be an RFC 3339 time with a time zone, from 1970 to 9998")
		return at
	}
	return at.UTC().Truncate(time.Microsecond)
}

// The limits of an order's metadata; lengths are in characters.
const (
	maxPairs = 50
	maxKey   = 40
	maxValue = 500
)

// metadata is a JSON object of strings with its keys in the order of jsonb, or nil if it is empty.
type metadata []byte

// read mentions keys in pointers only if they are valid.
func (m *metadata) read(d *decoder, _ string) {
	if d.kind() != '{' {
		d.fault("/metadata", "wrong_type", "must be an object of strings")
		d.skip()
		return
	}
	pairs := map[string]string{}
	noted := len(d.faults)
	d.members(func(name []byte) {
		key := string(name)
		if code, detail := checkText(name, maxKey); code != "" {
			d.fault("/metadata", "key_"+code, "has a key that "+detail)
		} else {
			d.at = "metadata/" + pointerEscape.Replace(key)
		}
		pointer := "/" + d.at
		if value, ok := d.stringOf(pointer); ok {
			if code, detail := checkText(value, maxValue); code != "" && code != "empty" {
				d.fault(pointer, code, detail)
			}
			pairs[key] = string(value)
		}
		d.at = "metadata"
	})
	if len(pairs) > maxPairs {
		d.fault("/metadata", "too_many", "must have at most "+strconv.Itoa(maxPairs)+" keys, not "+strconv.Itoa(len(pairs)))
	}
	if len(d.faults) == noted && len(pairs) > 0 {
		*m = provider.AppendMetadata(nil, pairs)
	}
}

// Schema implements huma.SchemaProvider.
func (metadata) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, MaxProperties: new(maxPairs),
		Extensions:           map[string]any{"propertyNames": map[string]any{"minLength": 1, "maxLength": maxKey}},
		AdditionalProperties: &huma.Schema{Type: huma.TypeString, MaxLength: new(maxValue)},
	}
}

// sameMetadata reports whether two JSON objects of strings have the same members.
func sameMetadata(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y map[string]string
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && maps.Equal(x, y)
}

// pointerEscape writes a name as a token of a JSON pointer (RFC 6901, section 3).
var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// compact returns JSON without the spaces that jsonb puts between its tokens.
func compact(text []byte) []byte {
	if len(text) == 0 {
		return nil
	}
	out := bytes.NewBuffer(make([]byte, 0, len(text)))
	if err := json.Compact(out, text); err != nil { // only what is not from a jsonb column
		return text
	}
	return out.Bytes()
}
