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

var eventTypes = map[string]string{
	needsMethod:       "payment_intent.payment_failed",
	needsConfirmation: "payment_intent.created",
	needsAction:       "payment_intent.requires_action",
	processing:        "payment_intent.processing",
	needsCapture:      "payment_intent.amount_capturable_updated",
	succeeded:         "payment_intent.succeeded",
	canceled:          "payment_intent.canceled",
}

// eventOf is what there is to tell of a change, or nothing.
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
	}
	return "", nil
}

// eventMessage is the event of a change as it is sent to a webhook endpoint (https://docs.stripe.com/api/events), signed as
// https://docs.stripe.com/webhooks/signature says. Without an event, or an address, nobody is told.
func (s *Simulator) eventMessage(before, after *intent) message {
	kind, object := eventOf(before, after)
	if object == nil {
		return message{}
	}
	id, now := fmt.Sprintf("evt_%s_%d", strings.TrimPrefix(after.ID, "pi_"), after.Version), time.Now().Unix()
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

// telling has the endpoint told of a change: once, when the answer is out, or as the fault
// plan says.
func (s *Simulator) telling(q *stripeRequest, before, after *intent, a reply) reply {
	told, times, delay := s.eventMessage(before, after), 1, time.Duration(0)
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
		if after.Promise != nil && (before == nil || before.Promise == nil) {
			s.fulfil(after.Promise, s.keepingIntent(after.ID))
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
		told, _ := s.happen(id, what, promise.Code) // both can happen to what is being processed
		return told
	}
}
