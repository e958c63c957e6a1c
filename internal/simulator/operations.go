package simulator

import (
	"context"
	"net/http"

	"github.com/govalues/decimal"
)

// ending is how a request that was begun ends.
type ending struct {
	abandon func()
	decide  func() reply
}

// attempt answers a request that changes something: by what is known of its key, or else
// by what is decided when its time has come. Between begin and decide the key is in
// progress; an undo that comes meanwhile does not wait: decide finds the key voided and
// refuses. A caller who leaves changes nothing of it.
func (s *Simulator) attempt(caller context.Context, q *request, known *reply, then ending) reply {
	hang := q.rule.Fault == Hang
	if known != nil && hang && known.outcome != "in_progress" {
		return reply{outcome: "none", delivery: silent}
	}
	if known != nil {
		return s.durable(*known)
	}
	if hang {
		s.untilLeft(caller)
		then.abandon()
		return reply{outcome: "none", delivery: dropped}
	}
	wait := s.cfg.Latency
	if q.rule.Fault == Slow || q.rule.Fault == LateAfterVoid {
		wait += q.rule.Delay
	}
	if !s.pause(wait) {
		then.abandon()
		return closedReply
	}
	return s.durable(then.decide())
}

// begin either finds the answer to a key or takes it on.
func (s *Simulator) begin(q *request) (*entry, *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(q.key)
	e := s.state.entry(q.key)
	_, isUndo := s.state.undos[q.key]
	var known reply
	switch {
	case isUndo || e.body != "" && e.body != q.fingerprint:
		known = mismatch("the key was used for another request")
	case e.running:
		s.counts.suppressed++
		known = reply{status: http.StatusConflict, outcome: "in_progress", body: said{Code: "in_progress", Detail: "a request with this key is being processed"}}
	case e.State == "", q.rule.Fault == LateAfterVoid && (e.State == Voided || e.State == Undone):
		e.running, e.body = true, q.fingerprint
		q.logged.Outcome = "running"
		s.history.change()
		return e, nil
	default:
		known = s.known(e)
		e.body = q.fingerprint // a key that was voided had none
	}
	return e, &known
}

// known is the stored answer of a key; mu is held.
func (s *Simulator) known(e *entry) reply {
	a := e.answer()
	a.replayed = e.body != "" // not if it was voided before anybody asked for it
	if a.replayed {
		s.counts.suppressed++
	}
	if a.outcome == string(Voided) {
		s.counts.refusedAfterUndo++
	}
	return a
}

func (s *Simulator) abandon(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.running = false
	if e.State == "" {
		e.body = ""
	}
}

// decide makes the effect happen, or not. It is one moment: an undo comes before it and
// prevents the effect, or after it and takes it back.
func (s *Simulator) decide(q *request, e *entry) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.running = false
	rule := q.rule
	switch {
	case e.State != "" && rule.Fault != LateAfterVoid:
		s.counts.refusedAfterUndo++
		return e.answer()
	case rule.Fault == ForgetDeclines:
		e.body = ""
		return refusal(rule.Code, "declined by the fault plan, and forgotten")
	case rule.Fault == Async || rule.Fault == CallbackTwice:
		return s.promised(q, e)
	case rule.Code != "":
		ev := q.event(eventRefused)
		ev.Code, ev.Detail = rule.Code, "declined by the fault plan"
		s.record(ev)
	default:
		ev := q.event(eventDone)
		ev.Reference = s.state.name(prefixes[q.step][0])
		s.record(ev)
	}
	return s.calling(q, e)
}

// undo answers a request to take back what was done under another key, or to see to it
// that it never will be. It is one moment: a do that is in progress has had its effect
// and it is taken back, or it will be refused. Nothing is waited for.
func (s *Simulator) undo(q *request) reply {
	wait := s.cfg.Latency
	if q.rule.Fault == Slow {
		wait += q.rule.Delay
	}
	if !s.pause(wait) {
		return closedReply
	}
	return s.durable(s.takeBack(q))
}

func (s *Simulator) takeBack(q *request) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.state.keys[q.key]; other != nil && (other.State != "" || other.running) {
		return mismatch("the key is that of a do")
	}
	body, repeated := s.state.undos[q.key]
	if repeated && body != q.fingerprint {
		return mismatch("the key was used for another request")
	}
	e, ev, wrong := s.meant(q)
	if wrong != nil {
		return *wrong
	}
	if q.rule.Code != "" {
		return refusal(q.rule.Code, "declined by the fault plan")
	}
	if repeated {
		s.counts.suppressed++
	}
	if !repeated || e.State == Live { // live after an undo: the contract was broken
		if e.State == Live {
			ev.Reference = s.state.name(prefixes[q.step][1])
		}
		s.record(ev)
	}
	return e.undone(repeated)
}

// meant finds what an undo is about: what its reference names, or what was done under its
// key. A key that is not known may have been forgotten, and a reference that was never
// given is no reason to say that nothing stands. mu is held.
func (s *Simulator) meant(q *request) (*entry, event, *reply) {
	s.forget(q.body.UndoKey)
	e, ev := s.state.entry(q.body.UndoKey), q.event(eventUndone)
	named := s.state.names[q.body.Reference]
	var wrong reply
	switch {
	case e.State == "" && q.body.Reference != "" && named == nil:
		wrong = refusal("unknown_reference", "neither the reference nor the undoKey is known")
		return e, ev, &wrong
	case e.State == "" && named != nil:
		e, ev.Undoes = named, q.body.Reference
	case named != nil && named != e:
		wrong = mismatch("the reference and the undoKey are of two things")
		return e, ev, &wrong
	}
	if e.State != "" && (e.Step != q.step || e.OrderID != q.body.OrderID) {
		wrong = mismatch("the undoKey is of another step or order")
		return e, ev, &wrong
	}
	return e, ev, nil
}

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
