package simulator

import (
	"context"
	"net/http"

	"github.com/govalues/decimal"
)

// ending is how a request ends that was begun.
type ending struct {
	abandon func()
	decide  func() reply
}

// attempt answers a request that changes something: with the known answer of its key, or with the answer of decide
// after some time, during which the key is in progress. An undo in between does not wait: decide finds the key voided,
// and refuses. attempt continues if the caller leaves.
func (s *Simulator) attempt(caller context.Context, q *request, known *reply, then ending) reply {
	hang := q.rule.Fault == Hang
	switch {
	case known != nil && hang && known.outcome != "in_progress":
		return reply{outcome: "none", delivery: silent}
	case known != nil:
		return s.durable(*known)
	case hang:
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

// begin returns the answer of a key, or begins to process it.
func (s *Simulator) begin(q *request) (*entry, *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(q.key)
	e := s.state.entry(q.key)
	_, isUndo := s.state.undos[q.key]
	var known reply
	switch {
	case isUndo || e.Body != "" && e.Body != q.fingerprint:
		known = mismatch("the key was used for another request")
	case e.running:
		s.counts.suppressed++
		known = reply{status: http.StatusConflict, outcome: "in_progress",
			body: said{Code: "in_progress", Detail: "a request with this key is being processed"}}
	case e.State == "", q.rule.Fault == LateAfterVoid && (e.State == Voided || e.State == Undone):
		e.running, e.Body = true, q.fingerprint
		q.logged.Outcome = "running"
		s.history.change()
		return e, nil
	default:
		known = s.known(e)
		e.Body = q.fingerprint // a key that was voided had none
	}
	return e, &known
}

// known is the stored answer of a key. The caller holds mu.
func (s *Simulator) known(e *entry) reply {
	a := e.answer()
	a.replayed = e.Body != "" // not if it was voided before it was requested
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
		e.Body = ""
	}
}

const byPlan = "declined by the fault plan"

// decide makes the effect happen, or refuses it. It is atomic: an undo comes before it and prevents the effect, or
// after it and undoes it.
func (s *Simulator) decide(q *request, e *entry) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.running = false
	now := q.entry(e)
	switch rule := q.rule; {
	case e.State != "" && rule.Fault != LateAfterVoid:
		s.counts.refusedAfterUndo++
		return e.answer()
	case rule.Fault == ForgetDeclines:
		e.Body = ""
		return refusal(rule.Code, byPlan+", and forgotten")
	case rule.Fault == Async || rule.Fault == CallbackTwice:
		now.State, now.Reference, now.Promise = Pending, s.state.name(prefixes[q.step][0]), q.promise()
		s.record(record{Entries: []*entry{now}})
		a := e.answer()
		a.then = func() { s.fulfil(now.Promise, s.keeping(e)) } // by then, other requests may have changed e
		return a
	case rule.Code != "":
		now.refuse(rule.Code, byPlan)
	default:
		now.State, now.Reference = Live, s.state.name(prefixes[q.step][0])
		now.Effects++
	}
	s.record(record{Entries: []*entry{now}})
	a := e.answer()
	switch q.rule.Fault {
	case CallbackLate, CallbackNever, CallbackBefore:
		a = e.promised()
	case AnswerTwice:
	default:
		return a // no callback
	}
	return s.telling(q, s.told(q.body.CallbackURL, e), a)
}

// entry returns a copy of an entry, to be changed by the request and recorded.
func (q *request) entry(e *entry) *entry {
	now := *e
	if e.State == "" {
		now.Subject = q.body.Subject
	}
	return &now
}

func (e *entry) refuse(code, detail string) { e.State, e.Code, e.Detail = Refused, code, detail }

// undo undoes the effect of another key, or prevents it for good. It is atomic and waits for no do in progress: either
// its effect has happened and is undone, or it will be refused.
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
		return mismatch("the key was used for a do")
	}
	body, repeated := s.state.undos[q.key]
	if repeated && body != q.fingerprint {
		return mismatch("the key was used for another request")
	}
	e, wrong := s.meant(q)
	if wrong != nil {
		return *wrong
	}
	if q.rule.Code != "" {
		return refusal(q.rule.Code, byPlan)
	}
	if repeated {
		s.counts.suppressed++
	}
	if !repeated || e.State == Live { // live after an undo: the contract was broken
		now := q.entry(e)
		switch e.State {
		case Live:
			now.State, now.UndoName = Undone, s.state.name(prefixes[q.step][1])
		case Refused, Undone, Voided:
		default:
			now.State = Voided
		}
		s.record(record{Entries: []*entry{now}, Undo: &undo{q.key, q.fingerprint, q.body.UndoKey}})
	}
	return e.undone(repeated)
}

// meant finds the entry that an undo is about, by its undoKey or, if the key was forgotten, by its reference. An
// unknown reference does not prove that there was no effect. The caller holds mu.
func (s *Simulator) meant(q *request) (*entry, *reply) {
	s.forget(q.body.UndoKey)
	e, named := s.state.entry(q.body.UndoKey), s.state.names[q.body.Reference]
	wrong := mismatch("the undoKey belongs to another step or order")
	switch {
	case e.State == "" && q.body.Reference != "" && named == nil:
		wrong = refusal("unknown_reference", "neither the reference nor the undoKey is known")
		return e, &wrong
	case e.State == "" && named != nil:
		e = named
	case named != nil && named != e:
		wrong = mismatch("the reference and the undoKey do not match")
		return e, &wrong
	}
	if e.State != "" && (e.Step != q.step || e.OrderID != q.body.OrderID) {
		return e, &wrong
	}
	return e, nil
}

const stepRefund = "refund" // in the books

// decideRefund refunds a part of a live charge, or refuses for good.
func (s *Simulator) decideRefund(q *request, e *entry) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.running = false
	if e.State != "" {
		return e.answer()
	}
	now, charge := q.entry(e), s.state.names[q.body.Reference]
	if charge == nil {
		charge = s.state.keys[q.body.ChargeKey]
	}
	now.Step = stepRefund
	if code, detail := q.refundFault(charge); code != "" {
		now.refuse(code, detail)
		s.record(record{Entries: []*entry{now}})
		return e.answer()
	}
	left := *charge
	left.Refunded, _ = charge.Refunded.Add(q.amount) // refundFault has added them
	now.State, now.Reference, now.Effects = Live, s.state.name("re"), 1
	s.record(record{Entries: []*entry{now, &left}})
	return e.answer()
}

// refundFault says why a refund of a charge is refused.
func (q *request) refundFault(charge *entry) (code, detail string) {
	switch {
	case q.rule.Code != "":
		return q.rule.Code, byPlan
	case charge == nil || charge.State != Live || charge.Step != "charge" || charge.OrderID != q.body.OrderID:
		return "unknown_charge", "neither the reference nor the chargeKey belongs to a live charge of the order"
	}
	whole, _ := decimal.Parse(charge.Amount) // it was checked on arrival
	refunded, err := charge.Refunded.Add(q.amount)
	if err != nil || refunded.Cmp(whole) > 0 || charge.Currency != q.body.Currency {
		return "refund_too_large", "exceeds what is left of the charge"
	}
	return "", ""
}
