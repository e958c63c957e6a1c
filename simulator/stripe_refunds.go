package simulator

import (
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
	made := map[string]any{
		"id": s.state.name("re"), "object": "refund", "payment_intent": i.ID, "charge": i.Charge, "amount": i.Amount, "currency": i.Currency,
		"status": "succeeded", "reason": orNull(q.form.Get("reason")), "metadata": q.metadata(), "created": time.Now().Unix(),
	}
	if i.PaymentMethod == methodPendingRefund {
		made["status"] = "pending"
	}
	return verdict{after: i, shown: i, refund: made, outcome: "refunded"}
}
