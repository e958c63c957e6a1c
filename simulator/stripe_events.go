package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// stripeEvent is one that is sent to a webhook endpoint: https://docs.stripe.com/api/events.
type stripeEvent struct {
	ID         string         `json:"id"`
	Object     string         `json:"object"`
	APIVersion string         `json:"api_version"`
	Created    int64          `json:"created"`
	Livemode   bool           `json:"livemode"`
	Pending    int            `json:"pending_webhooks"`
	Type       string         `json:"type"`
	Data       map[string]any `json:"data"`
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

// eventOf is what there is to tell of a change, nil if there is nothing.
func eventOf(before, after *intent) *stripeEvent {
	if after == nil {
		return nil
	}
	ev := &stripeEvent{
		ID: fmt.Sprintf("evt_%s_%d", strings.TrimPrefix(after.ID, "pi_"), after.Version), Object: "event", APIVersion: "simulated",
		Created: time.Now().Unix(), Pending: 1, Type: eventTypes[after.Status], Data: map[string]any{"object": after.json(nil)},
	}
	var refund map[string]any
	if before != nil {
		var kind string
		if kind, refund = refundEvent(before, after); refund != nil {
			ev.Type, ev.Data["object"] = kind, refund
		}
	}
	switch {
	case before == nil, refund != nil:
	case after.Refunded && !before.Refunded:
		ev.Type, ev.Data["object"] = "charge.refunded", after.charged()
	case after.Status == before.Status:
		return nil
	}
	return ev
}

// eventMessage is an event as it is sent, signed as https://docs.stripe.com/webhooks/signature
// says. Without an event, or an address, nobody is told.
func (s *Simulator) eventMessage(ev *stripeEvent) message {
	if ev == nil {
		return message{}
	}
	body := encode(ev)
	return message{s.cfg.StripeWebhook, ev.ID, body, func(header http.Header, at time.Time) {
		mac := hmac.New(sha256.New, []byte(s.cfg.StripeWebhookSecret))
		fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
		header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil))))
	}}
}

// telling has the endpoint told of a change: once, when the answer is out, or as the fault
// plan says.
func (s *Simulator) telling(q *stripeRequest, v verdict, before *intent, a reply) reply {
	told, times, delay := s.eventMessage(eventOf(before, v.after)), 1, time.Duration(0)
	switch q.rule.Fault {
	case AnswerTwice:
		times = 2
	case CallbackLate:
		delay = q.rule.Delay
	case CallbackNever:
		times = 0
	case CallbackBefore:
		a.before = func() { s.call(told, 1) }
		return a
	default:
	}
	a.then = func() {
		if s.pause(delay) {
			s.call(told, times)
		}
		if v.after != nil && v.after.Promise != nil && (before == nil || before.Promise == nil) {
			s.fulfil(v.after.Promise, s.keepingIntent(v.after.ID))
		}
	}
	return a
}

// keepingIntent decides an intent that is being processed, if it still is.
func (s *Simulator) keepingIntent(id string) func() message {
	return func() message {
		promise, what := s.state.intents[id].Promise, Approved
		if promise == nil {
			return message{}
		}
		if promise.Code != "" {
			what = Declined
		}
		ev, _ := s.happen(id, what, promise.Code) // both can happen to what is being processed
		return s.eventMessage(ev)
	}
}
