package simulator

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// answer is the stored answer of an idempotency key.
type answer struct {
	Key     string          `json:"key"`
	Request string          `json:"request"` // its fingerprint
	Status  int             `json:"status"`
	Body    json.RawMessage `json:"body"`
	Outcome string          `json:"outcome"` // in the log of requests

	running bool // not answered yet
	at      time.Time
}

// keyRetention is how long Stripe promises to keep a key: https://docs.stripe.com/api/idempotent_requests.
const keyRetention = 24 * time.Hour

// answer returns the answer of a key, or nil if there is none or it has expired.
func (s *state) answer(key string) *answer {
	known := s.answers[key]
	if known == nil || !known.running && time.Since(known.at) > keyRetention {
		return nil
	}
	return known
}

// enterIntent replaces an intent, and updates the books for each of its steps.
func (s *state) enterIntent(now *intent, at time.Time) {
	was := s.intents[now.ID]
	if was == nil {
		was = &intent{}
		s.references++
	}
	s.enterRefunds(now, was, at)
	s.enterParts(now, was, at)
	s.intents[now.ID] = now
	now.charge, now.capture = was.charge, was.capture
	for _, step := range []struct {
		entry     **entry
		name, key string
		state     State
		effects   int
	}{
		{&now.charge, "charge", now.Key, now.chargeState(), now.Charges},
		{&now.capture, "confirm", now.CaptureKey, now.captureState(), now.Captures},
	} {
		if step.state == "" {
			continue
		}
		if *step.entry == nil {
			*step.entry = &entry{}
		}
		e := &entry{Entry: Entry{Key: cmp.Or((*step.entry).Key, step.key), Subject: now.subject(step.name, now.Amount), State: step.state,
			Effects: step.effects, At: at, Reference: now.ID}}
		if step.name == "charge" && now.Multicapture {
			e.Later, e.Captured = true, stripeDecimal(now.Captured, now.Currency)
			if now.Status == canceled || now.Status == succeeded {
				e.Voided = stripeDecimal(now.Amount-now.Captured, now.Currency)
			}
		}
		if step.state == Refused && now.LastError != nil {
			e.Code, e.Detail = cmp.Or(now.LastError.DeclineCode, now.LastError.Code), now.LastError.Message
		}
		s.enter(*step.entry, e)
	}
}

func (i *intent) subject(step string, units int64) Subject {
	return Subject{OrderID: i.orderID(), Step: step, Generation: i.generation(), Item: i.Metadata["pawl_item"],
		Amount: stripeDecimal(units, i.Currency).String(), Currency: strings.ToUpper(i.Currency)}
}

func (i *intent) generation() int32 {
	generation, err := strconv.ParseInt(i.Metadata["pawl_generation"], 10, 32)
	if err != nil {
		return 0
	}
	return int32(generation)
}

// chargeState is the state of the charge of an intent. An authorization is live. An unconfirmed intent has no charge.
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

// captureState is the state of the separate capture of an intent.
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

// The states of a refund.
const (
	refundPending   = "pending"
	refundSucceeded = "succeeded"
	refundFailed    = "failed"
)

// stripeGiven is a refund of a payment intent.
type stripeGiven struct {
	ID       string            `json:"id"`
	Key      string            `json:"key"` // of the request that made it
	Amount   int64             `json:"amount"`
	Status   string            `json:"status"`
	Reason   string            `json:"reason,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Created  int64             `json:"created"`
}

// asked reports whether a shop requested the refund. Otherwise it is the undo of a charge.
func (g *stripeGiven) asked() bool { return g.Metadata["pawl_refund"] != "" }

func (g *stripeGiven) json(i *intent) map[string]any {
	object := map[string]any{
		"id": g.ID, "object": "refund", "payment_intent": i.ID, "charge": i.Charge, "amount": g.Amount, "currency": i.Currency,
		"status": g.Status, "reason": orNull(g.Reason), "metadata": g.Metadata, "created": g.Created,
	}
	if g.Status == refundFailed {
		object["failure_reason"] = "lost_or_stolen_card"
	}
	return object
}

// given is the refunded amount of an intent, including pending refunds.
func (i *intent) given() (units int64) {
	for n := range i.Refunds {
		if i.Refunds[n].Status != refundFailed {
			units += i.Refunds[n].Amount
		}
	}
	return units
}

// refund refunds a part of a charge, or the rest of it.
func (s *Simulator) refund(q *stripeRequest, i *intent) verdict {
	left := i.taken() - i.given()
	units := left
	if q.amount > 0 {
		units = q.amount
	}
	if fault := refundStripeFault(q, i, left, units); fault != nil {
		return verdict{fault: fault, outcome: "refused"}
	}
	made := stripeGiven{ID: s.state.name("re"), Key: q.idempotency, Amount: units, Status: refundSucceeded, Reason: q.form.Get("reason"),
		Metadata: q.metadata(), Created: time.Now().Unix()}
	if i.PaymentMethod == methodPendingRefund {
		made.Status = refundPending
	}
	i.Refunds = append(slices.Clone(i.Refunds), made)
	i.Refunded = i.Refunded || !made.asked() && units == left
	return verdict{after: i, shown: i, refund: made.json(i), outcome: "refunded"}
}

func refundStripeFault(q *stripeRequest, i *intent, left, units int64) *stripeFault {
	switch {
	case i.Status != succeeded && i.taken() == 0:
		return invalid("", "payment_intent", "This PaymentIntent ("+i.ID+") does not have a successful charge to refund.")
	case left == 0:
		return invalid("charge_already_refunded", "", "Charge "+i.Charge+" has already been refunded.")
	case units > left:
		return invalid("", "amount", "Refund amount is greater than unrefunded amount on charge.")
	case i.Disputed:
		return invalid("charge_disputed", "", "Charge "+i.Charge+" has been charged back; cannot issue a refund.")
	case q.rule.Code != "":
		return invalid(q.rule.Code, "", "By the fault plan.")
	}
	return nil
}

// refundHappens simulates the bank, which pays the last refund or returns the money.
func (i *intent) refundHappens(what string) bool {
	n := len(i.Refunds) - 1
	if n < 0 || i.Refunds[n].Status == refundFailed || what == RefundPaid && i.Refunds[n].Status != refundPending {
		return false
	}
	i.Refunds = slices.Clone(i.Refunds)
	i.Refunds[n].Status = map[string]string{RefundPaid: refundSucceeded, RefundReturned: refundFailed}[what]
	i.Refunded = i.Refunded && what != RefundReturned
	return true
}

// refundEvent is the event for a change of an intent's refunds, if there is one.
func refundEvent(before, after *intent) (kind string, object map[string]any) {
	for n := range after.Refunds {
		now := &after.Refunds[n]
		switch {
		case n >= len(before.Refunds) && now.asked():
			return "refund.created", now.json(after)
		case n < len(before.Refunds) && now.Status != before.Refunds[n].Status:
			return map[string]string{refundSucceeded: "refund.updated", refundFailed: "refund.failed"}[now.Status], now.json(after)
		}
	}
	return "", nil
}

// enterRefunds updates the books for the refunds of an intent, except the undo of its charge.
func (s *state) enterRefunds(now, was *intent, at time.Time) {
	s.references += len(now.Refunds) - len(was.Refunds)
	for n := range now.Refunds {
		g := &now.Refunds[n]
		if !g.asked() {
			continue
		}
		e := s.refunds[g.ID]
		if e == nil {
			e = &entry{Entry: Entry{At: at}}
			s.refunds[g.ID] = e
		}
		then := &entry{Entry: Entry{Key: g.Key, Subject: now.subject(operationRefund, g.Amount), Reference: g.ID, At: e.At, Effects: e.Effects,
			State: map[string]State{refundPending: Pending, refundSucceeded: Live, refundFailed: Refused}[g.Status]}}
		if then.State == Live {
			then.Effects = 1
		}
		s.enter(e, then)
	}
}

func (s *Simulator) lookAtRefunds(q *stripeRequest) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.state.intents[q.intent]
	list := []any{}
	for n := range i.Refunds {
		if i.Refunds[n].ID == q.refund {
			return reply{status: http.StatusOK, outcome: "read", body: i.Refunds[n].json(i)}
		}
		list = append(list, i.Refunds[n].json(i))
	}
	slices.Reverse(list) // the newest first
	refunds := map[string]any{"object": "list", "url": "/v1/refunds", "has_more": false, "data": list}
	return reply{status: http.StatusOK, outcome: "read", body: refunds}
}

// ofRefund is the id of a refund's intent.
func (s *state) ofRefund(id string) string {
	for _, i := range s.intents {
		if slices.ContainsFunc(i.Refunds, func(g stripeGiven) bool { return g.ID == id }) {
			return i.ID
		}
	}
	return ""
}
