package simulator

import (
	"net/http"
	"slices"
	"time"
)

// refund gives all of a charge back.
func (s *Simulator) refund(q *stripeRequest, i *intent) verdict {
	var fault *stripeFault
	switch {
	case i.Status != succeeded:
		fault = invalid("", "payment_intent", "This PaymentIntent ("+i.ID+") does not have a successful charge to refund.")
	case i.Refunded:
		fault = invalid("charge_already_refunded", "", "Charge "+i.Charge+" has already been refunded.")
	case i.Disputed:
		fault = invalid("charge_disputed", "", "Charge "+i.Charge+" has been charged back; cannot issue a refund.")
	case q.rule.Code != "":
		fault = invalid(q.rule.Code, "", "By the fault plan.")
	}
	if fault != nil {
		return verdict{fault: fault, outcome: "refused"}
	}
	i.Refunded = true
	made := &refund{
		ID: s.state.name("re"), Object: "refund", Intent: i.ID, Charge: i.Charge, Amount: i.Amount, Currency: i.Currency, Status: "succeeded",
		Reason: orNull(q.form.Get("reason")), Metadata: q.metadata(), Created: time.Now().Unix(),
	}
	if i.PaymentMethod == methodPendingRefund {
		made.Status = "pending"
	}
	return verdict{after: i, shown: i, refund: made, outcome: "refunded"}
}

func (s *stripeState) refundOf(id string) *refund {
	for _, r := range s.refunds {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// lookAt answers a request that changes nothing.
func (s *Simulator) lookAt(q *stripeRequest) reply {
	if q.rule.Fault == Slow && !s.pause(q.rule.Delay) {
		return closedReply
	}
	return s.durable(s.shown(q))
}

func (s *Simulator) shown(q *stripeRequest) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body any
	switch i := s.state.stripe.intents[q.intent]; {
	case i != nil:
		body = i.json(q.expand())
	case q.refund != "":
		body = s.state.stripe.refundOf(q.refund)
	default:
		body = s.refundsOf(q.form.Get("payment_intent"))
	}
	return reply{status: http.StatusOK, outcome: "read", body: body}
}

// refundsOf lists the refunds of an intent, or all, the newest first; mu is held.
func (s *Simulator) refundsOf(id string) any {
	found := []*refund{}
	for _, made := range slices.Backward(s.state.stripe.refunds) {
		if id == "" || made.Intent == id {
			found = append(found, made)
		}
	}
	return map[string]any{"object": "list", "url": "/v1/refunds", "has_more": false, "data": found}
}
