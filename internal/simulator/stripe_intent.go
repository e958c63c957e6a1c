package simulator

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
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

// intent is a payment intent, as it is stored.
type intent struct {
	ID            string            `json:"id"`
	Key           string            `json:"key"` // of the request that created it
	Status        string            `json:"status"`
	Amount        int64             `json:"amount"` // in Stripe's units
	Currency      string            `json:"currency"`
	Manual        bool              `json:"manual,omitempty"` // captured by a separate request
	PaymentMethod string            `json:"paymentMethod,omitempty"`
	Customer      string            `json:"customer,omitempty"`
	Metadata      map[string]string `json:"metadata"`
	Created       int64             `json:"created"`
	Version       int               `json:"version"` // changes so far

	Charge   string `json:"charge,omitempty"` // the latest
	Charges  int    `json:"charges,omitempty"`
	Captures int    `json:"captures,omitempty"`
	Captured int64  `json:"captured,omitempty"` // the sum of its captures
	// Multicapture is set if several captures were asked for. Parts are its captures, and what voided the rest.
	Multicapture bool         `json:"multicapture,omitempty"`
	Parts        []stripePart `json:"parts,omitempty"`
	VoidKey      string       `json:"voidKey,omitempty"` // of the first request to void
	// CaptureKey is the key of the first request to capture. Later ones with other keys are about the same capture.
	CaptureKey string `json:"captureKey,omitempty"`
	Refunded   bool   `json:"refunded,omitempty"` // in full, as the undo of the charge
	Disputed   bool   `json:"disputed,omitempty"`
	Dispute    string `json:"dispute,omitempty"` // the id of the last one that happened
	Lost       bool   `json:"lost,omitempty"`    // that dispute

	Refunds []stripeGiven `json:"refunds,omitempty"`

	LastError   *stripeFault `json:"lastError,omitempty"`
	CanceledAt  int64        `json:"canceledAt,omitempty"`
	CanceledFor string       `json:"canceledFor,omitempty"`
	Promise     *promise     `json:"promise,omitempty"` // of a decision, while it is processing

	busy            bool   // a request holds the lock
	charge, capture *entry // its entries in the books
}

func (i *intent) next() *intent {
	n := *i
	n.Metadata = maps.Clone(i.Metadata)
	n.Version++
	return &n
}

// orderID is the order of the intent, or the intent itself if it has none.
func (i *intent) orderID() string {
	if id := i.Metadata["pawl_order"]; id != "" {
		return id
	}
	return i.ID
}

// standing reports whether money is charged or authorized.
func (i *intent) standing() bool {
	voided := i.Multicapture && (i.Captured > 0 || i.CanceledFor != "") // not undone: only the rest is gone
	return i.Charges > 0 && !i.Refunded && (i.Status != canceled || voided)
}

// json is the intent as Stripe shows it, without what is not simulated.
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
		object["amount_capturable"] = i.Amount - i.Captured
	case canceled:
		object["canceled_at"] = i.CanceledAt
	case needsAction:
		object["next_action"] = map[string]any{"type": "use_stripe_sdk", "use_stripe_sdk": map[string]any{}}
	}
	if i.Status != needsCapture || i.Captured > 0 {
		object["amount_received"] = i.taken()
	}
	if i.Charge != "" && slices.Contains(expand, "latest_charge") {
		object["latest_charge"] = i.charged()
	}
	return object
}

// charged is the charge of the intent as Stripe shows it.
func (i *intent) charged() map[string]any {
	captured, refunded := i.taken(), i.given()
	if i.Status == canceled {
		refunded += i.Amount - captured
	}
	return map[string]any{
		"id": i.Charge, "object": "charge", "payment_intent": i.ID, "amount": i.Amount, "currency": i.Currency, "amount_captured": captured,
		"amount_refunded": refunded, "captured": captured == i.Amount, "refunded": refunded == i.Amount && i.Amount > 0, "disputed": i.Disputed, "paid": true,
		"status": "succeeded", "metadata": i.Metadata, "livemode": false, "created": i.Created,
	}
}

// disputed is the last dispute of the charge as Stripe shows it.
func (i *intent) disputed(status string) map[string]any {
	return map[string]any{
		"id": i.Dispute, "object": "dispute", "charge": i.Charge, "payment_intent": i.ID, "amount": i.taken(), "currency": i.Currency,
		"reason": "general", "status": status, "metadata": map[string]string{}, "livemode": false, "created": time.Now().Unix(),
	}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// verdict is the result of a request.
type verdict struct {
	after   *intent      // the new state; nil: unchanged
	shown   *intent      // the state in the answer
	refund  any          // the new refund, which is the answer
	fault   *stripeFault // the error, which is the answer
	outcome string       // in the log of requests
	unsaved bool         // refused before it began: the key is free
}

func refused(fault *stripeFault, i *intent) verdict {
	return verdict{shown: i, fault: fault, outcome: "refused"}
}

func (v *verdict) status() int {
	if v.fault != nil {
		return v.fault.httpStatus
	}
	return http.StatusOK
}

func (v *verdict) body(q *stripeRequest) any {
	switch {
	case v.fault != nil:
		if v.shown != nil && v.fault.httpStatus < http.StatusInternalServerError {
			v.fault.PaymentIntent = v.shown.json(q.expand())
		}
		return v.fault.reply().body
	case v.refund != nil:
		return v.refund
	}
	return v.shown.json(q.expand())
}

// verdict decides a request. The caller holds mu.
func (s *Simulator) verdict(q *stripeRequest) (v verdict) {
	if q.broken() && q.rule.Fault == Error {
		return verdict{after: s.asked(q), fault: serverFault(q.rule.Status), outcome: "error"}
	}
	switch q.operation {
	case stripeCreate:
		v = s.create(q)
	case stripeConfirm:
		v = s.confirm(q, s.state.intents[q.intent].next())
	case stripeCapture:
		v = s.capture(q, s.state.intents[q.intent].next())
	case stripeCancel:
		v = s.cancel(q, s.state.intents[q.intent].next())
	case stripeRefund:
		v = s.refund(q, s.state.intents[q.intent].next())
	}
	if q.broken() && !v.unsaved {
		v.fault = serverFault(q.rule.Status)
	}
	return v
}

// asked records that a capture or void was begun with this key, whatever its result.
func (s *Simulator) asked(q *stripeRequest) *intent {
	if q.operation == stripeCancel && q.form.Get("cancellation_reason") != "" {
		i := s.state.intents[q.intent].next()
		i.VoidKey = cmp.Or(i.VoidKey, q.key)
		return i
	}
	if q.operation != stripeCapture || s.state.intents[q.intent].CaptureKey != "" {
		return nil
	}
	i := s.state.intents[q.intent].next()
	i.CaptureKey = q.key
	return i
}

func (s *Simulator) create(q *stripeRequest) verdict {
	if q.rule.Code != "" && q.means != operationDo {
		v := refused(invalid(q.rule.Code, "", "By the fault plan."), nil)
		v.unsaved = true
		return v
	}
	i := &intent{
		ID: s.state.name("pi"), Key: q.key, Status: needsConfirmation, Amount: q.amount, Currency: q.currency,
		Manual: q.form.Get("capture_method") == "manual", PaymentMethod: q.form.Get("payment_method"), Customer: q.form.Get("customer"),
		Metadata: q.metadata(), Created: time.Now().Unix(), Version: 1,
		Multicapture: q.form.Get("payment_method_options[card][request_multicapture]") == "if_available",
	}
	if i.PaymentMethod == "" {
		i.Status = needsMethod
	}
	if q.form.Get("confirm") == "true" {
		return s.confirm(q, i)
	}
	return verdict{after: i, shown: i, outcome: "created"}
}

// confirm charges, authorizes, or refuses. LateAfterVoid charges in any state.
func (s *Simulator) confirm(q *stripeRequest, i *intent) verdict {
	if method := q.form.Get("payment_method"); method != "" && (i.Status == needsMethod || i.Status == needsConfirmation) {
		i.PaymentMethod, i.Status = method, needsConfirmation
	}
	switch late := q.rule.Fault == LateAfterVoid; {
	case i.Status == needsMethod && !late:
		return refused(invalid("payment_intent_unexpected_state", "",
			"You cannot confirm this PaymentIntent because it's missing a payment method."), s.state.intents[i.ID])
	case i.Status != needsConfirmation && !late:
		if i.Status == canceled {
			s.counts.refusedAfterUndo++
		}
		return refused(unexpected(i, "confirmed"), s.state.intents[i.ID])
	case q.rule.Fault == Async || q.rule.Fault == CallbackTwice:
		return promisedStripe(q, i)
	case q.rule.Code != "":
		return hidden(q, decline(i, q.rule.Code))
	case declinedMethod(i.PaymentMethod) != "":
		return hidden(q, decline(i, declinedMethod(i.PaymentMethod)))
	case slices.Contains(methodsWithAction, i.PaymentMethod):
		i.Status = needsAction
		return verdict{after: i, shown: i, outcome: string(Pending)}
	case i.PaymentMethod == methodProcessing:
		i.Status = processing
		return verdict{after: i, shown: i, outcome: string(Pending)}
	}
	s.charge(i)
	return hidden(q, verdict{after: i, shown: i, outcome: "done"})
}

// charge takes the money, or authorizes it.
func (s *Simulator) charge(i *intent) {
	i.Charge = fmt.Sprintf("ch_%s_%d", strings.TrimPrefix(i.ID, "pi_"), i.Charges+1)
	i.Charges++
	i.Status, i.LastError, i.Promise, i.Disputed = succeeded, nil, nil, i.PaymentMethod == methodDisputed
	if i.Disputed {
		i.dispute()
	}
	if i.Manual {
		i.Status = needsCapture
	}
}

func (i *intent) dispute() {
	i.Dispute = fmt.Sprintf("dp_%s_%d", strings.TrimPrefix(i.ID, "pi_"), i.Version)
}

// decline is a decline of the bank. The next attempt needs another payment method.
func decline(i *intent, code string) verdict {
	fault := declined(code, i)
	kept := *fault
	i.Status, i.LastError, i.PaymentMethod, i.Promise = needsMethod, &kept, "", nil
	return verdict{after: i, shown: i, fault: fault, outcome: "refused"}
}

// promisedStripe accepts a request and leaves the decision to a job.
func promisedStripe(q *stripeRequest, i *intent) verdict {
	i.Status, i.Promise = processing, q.promise()
	return verdict{after: i, shown: i, outcome: string(Pending)}
}

// hidden answers that a decided request is still processing. The decision is reported later, if at all.
func hidden(q *stripeRequest, v verdict) verdict {
	if !slices.Contains([]Fault{CallbackLate, CallbackNever, CallbackBefore}, q.rule.Fault) {
		return v
	}
	shown := *v.after
	shown.Status, shown.LastError = processing, nil
	v.shown, v.fault, v.outcome = &shown, nil, string(Pending)
	return v
}

// capture captures an authorization. If it is declined, the authorization has expired, and the intent is canceled:
// https://docs.stripe.com/payments/place-a-hold-on-a-payment-method.
func (s *Simulator) capture(q *stripeRequest, i *intent) verdict {
	if q.form.Has("amount_to_capture") {
		return s.capturePart(q, i)
	}
	if i.CaptureKey == "" {
		i.CaptureKey = q.key
	}
	switch {
	case i.Status != needsCapture:
		return refused(unexpected(i, "captured"), s.state.intents[i.ID])
	case q.rule.Fault == Async || q.rule.Fault == CallbackTwice:
		return promisedStripe(q, i)
	case q.rule.Code != "":
		return hidden(q, expire(i))
	}
	take(i)
	return hidden(q, verdict{after: i, shown: i, outcome: "done"})
}

func take(i *intent) {
	i.Captures++
	i.Status, i.Captured, i.Promise = succeeded, i.Amount, nil
}

func expire(i *intent) verdict {
	i.Status, i.CanceledAt, i.CanceledFor, i.Promise = canceled, time.Now().Unix(), "automatic", nil
	fault := invalid(codeExpired, "", "The authorization has expired, and can no longer be captured.")
	return verdict{after: i, shown: i, fault: fault, outcome: "refused"}
}

// cancelable are the states in which an intent can be canceled. A few processing ones can be, too:
// https://docs.stripe.com/api/payment_intents/cancel.
var cancelable = []string{needsMethod, needsConfirmation, needsAction, needsCapture}

func (s *Simulator) cancel(q *stripeRequest, i *intent) verdict {
	switch {
	case !slices.Contains(cancelable, i.Status) && (i.Status != processing || i.PaymentMethod != methodProcessing):
		return refused(unexpected(i, "canceled"), s.state.intents[i.ID])
	case q.rule.Code != "":
		v := refused(invalid(q.rule.Code, "", "By the fault plan."), s.state.intents[i.ID])
		v.after = s.asked(q)
		return v
	}
	i.Status, i.CanceledAt, i.CanceledFor, i.Promise = canceled, time.Now().Unix(), q.form.Get("cancellation_reason"), nil
	if i.Multicapture && i.CanceledFor != "" { // the others undo the charge
		i.Parts = append(slices.Clone(i.Parts), stripePart{cmp.Or(i.VoidKey, q.key), operationVoid, i.Amount - i.Captured})
	}
	return verdict{after: i, shown: i, outcome: string(Voided)}
}

// Events at a payment intent without a request.
const (
	Approved  = "approve"   // the customer has authenticated, the bank has paid
	Declined  = "decline"   // the customer has not authenticated, or the bank has declined
	Expired   = "expire"    // an authorization was not captured in time
	Disputed  = "dispute"   // the customer disputes the charge
	Undispute = "undispute" // the dispute is over, and won; with the code lost, it is lost

	RefundPaid     = "refund-paid"     // the last refund, which was pending, has reached the customer
	RefundReturned = "refund-returned" // the customer's bank has returned it
)

// Happen simulates an action of the customer, the bank or time on a payment intent, and sends the event. code is that
// of a decline; empty: card_declined, or a missing authentication. For the end of a dispute, see Undispute. It returns an error if the state of the intent does
// not allow it.
func (s *Simulator) Happen(id, what, code string) error {
	if !s.enter() {
		return errors.New("the simulator is being stopped")
	}
	defer s.work.Done()
	s.mu.Lock()
	told, err := s.happen(id, what, code)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.journal.sync(); err != nil {
		return fmt.Errorf("write simulator file: %w", err)
	}
	s.start(func() { s.call(told, 1) })
	return nil
}

// happen does it, and returns the event. The caller holds mu.
func (s *Simulator) happen(id, what, code string) (message, error) {
	before := s.state.intents[id]
	if before == nil {
		return message{}, fmt.Errorf("no payment intent %q", id)
	}
	i := before.next()
	waits := i.Status == needsAction || i.Status == processing
	switch {
	case what == Approved && waits && i.Charges > 0:
		take(i)
	case what == Approved && waits:
		s.charge(i)
	case what == Declined && waits && i.Charges > 0, what == Expired && i.Status == needsCapture:
		expire(i)
	case what == Declined && waits:
		otherwise := "card_declined"
		if i.Status == needsAction {
			otherwise = codeUnauthenticated
		}
		decline(i, cmp.Or(code, otherwise))
	case slices.Contains([]string{Disputed, Undispute}, what) && i.Charges > 0:
		if i.Disputed = what == Disputed; i.Disputed {
			i.dispute()
		}
		i.Lost = code == "lost"
	case slices.Contains([]string{RefundPaid, RefundReturned}, what) && i.refundHappens(what):
	default:
		return message{}, fmt.Errorf("%s: does not happen to a payment intent that is %s", what, i.Status)
	}
	s.record(record{Intent: i})
	return s.eventMessage(before, i), nil
}

func (s *Simulator) postHappening(w http.ResponseWriter, r *http.Request) {
	if err := s.Happen(r.PathValue("intent"), r.PathValue("what"), r.URL.Query().Get("code")); err != nil {
		s.deliver(w, r, reply{status: http.StatusConflict, body: said{Code: "bad_request", Detail: err.Error()}})
		return
	}
	happened := map[string]string{"at": time.Now().UTC().Format(time.RFC3339)}
	if s.cfg.StripeWebhook == "" {
		happened["note"] = "No event is sent: the simulator was started without --stripe-webhook."
	}
	s.deliver(w, r, ok(happened))
}

// The payment methods of https://docs.stripe.com/testing with an effect. With all others a charge is approved.
const (
	methodDisputed      = "pm_card_createDispute"       // charged, and then disputed
	methodPendingRefund = "pm_card_pendingRefund"       // charged; its refund is pending
	methodOneCapture    = "pm_card_oneCapture"          // charged; allows only one capture (not one of Stripe's)
	methodProcessing    = "pm_usBankAccount_processing" // processing until it is canceled or Happen decides
)

var methodsWithAction = []string{"pm_card_authenticationRequired", "pm_card_threeDSecureRequired", "pm_card_threeDSecure2Required"}

var declines = map[string]string{
	"InsufficientFunds":     "insufficient_funds",
	"LostCard":              "lost_card",
	"StolenCard":            "stolen_card",
	"ExpiredCard":           "expired_card",
	"IncorrectCvc":          "incorrect_cvc",
	"ProcessingError":       "processing_error",
	"VelocityLimitExceeded": "card_velocity_exceeded",
}

// declinedMethod is the code with which a payment method is always declined, or empty.
func declinedMethod(name string) string {
	_, why, ok := strings.Cut(name, "_chargeDeclined")
	if !ok || !strings.HasPrefix(name, "pm_card_") {
		return ""
	}
	return cmp.Or(declines[why], "card_declined")
}

var eventTypes = map[string]string{
	needsMethod:       "payment_intent.payment_failed",
	needsConfirmation: "payment_intent.created",
	needsAction:       "payment_intent.requires_action",
	processing:        "payment_intent.processing",
	needsCapture:      "payment_intent.amount_capturable_updated",
	succeeded:         "payment_intent.succeeded",
	canceled:          "payment_intent.canceled",
}

// eventOf is the event of a change, if there is one.
func eventOf(before, after *intent) (kind string, object map[string]any) {
	if before == nil {
		before = &intent{}
	}
	kind, object = refundEvent(before, after)
	switch {
	case object != nil:
		return kind, object
	case after.Refunded && !before.Refunded:
		return "charge.refunded", after.charged()
	case after.Status != before.Status:
		return eventTypes[after.Status], after.json(nil)
	case after.Dispute != before.Dispute:
		return "charge.dispute.created", after.disputed("needs_response")
	case after.Dispute != "" && before.Disputed && !after.Disputed && after.Lost:
		return "charge.dispute.closed", after.disputed("lost")
	case after.Dispute != "" && before.Disputed && !after.Disputed:
		return "charge.dispute.closed", after.disputed("won")
	case after.Captured > before.Captured:
		return "charge.captured", after.charged()
	}
	return "", nil
}

// eventMessage is the event of a change (https://docs.stripe.com/api/events) for the webhook endpoint, signed
// (https://docs.stripe.com/webhooks/signature). It is empty if there is no event or endpoint.
func (s *Simulator) eventMessage(before, after *intent) message {
	kind, object := eventOf(before, after)
	if object == nil {
		return message{}
	}
	return s.event(after, "", kind, object)
}

// event is an event about an intent. which tells it from the other one of the same change.
func (s *Simulator) event(of *intent, which, kind string, object map[string]any) message {
	id, now := fmt.Sprintf("evt_%s_%d%s", strings.TrimPrefix(of.ID, "pi_"), of.Version, which), time.Now().Unix()
	body := encode(map[string]any{
		"id": id, "object": "event", "api_version": "simulated", "created": now, "livemode": false, "pending_webhooks": 1, "type": kind,
		"data": map[string]any{"object": object},
	})
	return message{s.cfg.StripeWebhook, id, body, func(header http.Header, at time.Time) {
		mac := hmac.New(sha256.New, []byte(s.cfg.StripeWebhookSecret))
		fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
		header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil))))
	}}
}

// keepingIntent decides an intent, if it is still processing.
func (s *Simulator) keepingIntent(id string) func() message {
	return func() message {
		promise, what := s.state.intents[id].Promise, Approved
		if promise == nil {
			return message{}
		}
		if promise.Code != "" {
			what = Declined
		}
		told, _ := s.happen(id, what, promise.Code) // both are possible while it is processing
		return told
	}
}
