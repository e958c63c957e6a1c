package simulator

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// stripeKey is what is known of an idempotency key.
type stripeKey struct {
	body    string // fingerprint of its request
	running bool   // there is no answer yet
	answer  reply
	at      time.Time
}

// keyRetention is how long Stripe promises to keep a key: https://docs.stripe.com/api/idempotent_requests.
const keyRetention = 24 * time.Hour

// applyStripe is apply for an event of Stripe's side.
func (s *state) applyStripe(ev event) {
	c := ev.Stripe
	if c.Status != 0 && ev.Key != "" {
		s.stripeKeys[ev.Key] = &stripeKey{body: ev.Body, at: ev.At, answer: reply{status: c.Status, body: c.Answer, outcome: c.Outcome, replayed: true}}
	}
	if c.Intent == nil {
		return
	}
	now, was := c.Intent, s.intents[c.Intent.ID]
	if was == nil {
		was = &intent{}
		s.references++
	}
	s.enterRefunds(now, was, ev)
	s.intents[now.ID] = now
	now.charge, now.capture = was.charge, was.capture
	if state := now.chargeState(); state != "" {
		now.charge = s.enter(now.charge, now, Entry{Key: now.Key, Subject: now.subject("charge", now.Amount), State: state, Effects: now.Charges, At: ev.At})
	}
	if state := now.captureState(); state != "" {
		now.capture = s.enter(now.capture, now, Entry{Key: now.CaptureKey, Subject: now.subject("confirm", now.Amount), State: state, Effects: now.Captures, At: ev.At})
	}
}

// enter writes into the books what an intent says of a step.
func (s *state) enter(e *entry, i *intent, now Entry) *entry {
	if e == nil {
		e = s.list(&entry{Entry: Entry{Key: now.Key, Subject: now.Subject}})
	}
	if now.Effects > e.Effects {
		s.overlap(e)
	}
	e.State, e.Effects, e.At, e.Reference, e.Code, e.Detail = now.State, now.Effects, now.At, i.ID, "", ""
	if now.State == Refused && i.LastError != nil {
		e.Code, e.Detail = cmp.Or(i.LastError.DeclineCode, i.LastError.Code), i.LastError.Message
	}
	return e
}

// subject is what the books say that something is about which was done with so much of the money of an intent.
func (i *intent) subject(step string, units int64) Subject {
	return Subject{OrderID: i.orderID(), Step: step, Generation: i.generation(), Amount: stripeDecimal(units, i.Currency).String(),
		Currency: strings.ToUpper(i.Currency), Item: i.Metadata["pawl_item"]}
}

func (i *intent) generation() int32 {
	generation, err := strconv.ParseInt(i.Metadata["pawl_generation"], 10, 32)
	if err != nil {
		return 0
	}
	return int32(generation)
}

// chargeState is what the books say of the charge of an intent, money on hold being as good
// as taken. An intent that nobody has confirmed is nothing yet.
func (i *intent) chargeState() State {
	switch {
	case i.standing():
		return Live
	case i.Charges > 0:
		return Undone
	case i.Status == processing || i.Status == needsAction:
		return Pending
	case i.LastError != nil && (i.Status == canceled || i.Status == needsMethod):
		return Refused
	case i.Status == canceled:
		return Voided
	}
	return ""
}

// captureState is what the books say of the capture of an intent that is captured by a
// request of its own.
func (i *intent) captureState() State {
	switch {
	case i.CaptureKey == "":
		return ""
	case i.Captures > 0 && i.standing():
		return Live
	case i.Captures > 0:
		return Undone
	case i.Status == processing:
		return Pending
	case i.Status == canceled:
		return Refused
	}
	return ""
}
