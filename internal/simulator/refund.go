package simulator

import (
	"github.com/govalues/decimal"
)

const stepRefund = "refund" // in the books

// decideRefund gives back a part of a charge that stands, or refuses for good.
func (s *Simulator) decideRefund(q *request, e *entry) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.running = false
	if e.State != "" {
		return e.answer()
	}
	ev := q.event(eventDone)
	ev.Step, ev.Refunds, ev.ChargeKey = stepRefund, q.body.Reference, q.body.ChargeKey
	ev.Code, ev.Detail = s.refundFault(q)
	if ev.Code == "" {
		ev.Reference = s.state.name("re")
	} else {
		ev.Event = eventRefused
	}
	s.record(ev)
	return e.answer()
}

// refundFault says why a refund is refused; mu is held.
func (s *Simulator) refundFault(q *request) (code, detail string) {
	if q.rule.Code != "" {
		return q.rule.Code, "declined by the fault plan"
	}
	charge := s.state.charged(q.body.Reference, q.body.ChargeKey)
	if charge == nil || charge.OrderID != q.body.OrderID {
		return "unknown_charge", "neither the reference nor the chargeKey is that of a charge of the order that stands"
	}
	whole, _ := decimal.Parse(charge.Amount) // it was checked when it came
	asked, err := charge.refunded.Add(q.amount)
	if err != nil || asked.Cmp(whole) > 0 || charge.Currency != q.body.Currency {
		return "refund_too_large", "more than is left of the charge"
	}
	return "", ""
}

// charged is the charge that a refund is of, if it stands.
func (s *state) charged(reference, key string) *entry {
	e := s.names[reference]
	if e == nil {
		e = s.keys[key]
	}
	if e == nil || e.State != Live || e.Step != "charge" {
		return nil
	}
	return e
}

// refund enters what was given back of a charge.
func (s *state) refund(e *entry, ev event) {
	charge := s.charged(ev.Refunds, ev.ChargeKey)
	if charge == nil {
		return // of Stripe's side, which has its own sums
	}
	if amount, err := decimal.Parse(e.Amount); err == nil {
		charge.refunded, _ = charge.refunded.Add(amount)
	}
}
