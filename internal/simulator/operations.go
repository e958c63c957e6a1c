package simulator

import (
	"context"
	"fmt"
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
		now.Subject, now.Later = q.body.Subject, q.body.Capture == "later"
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

// chargeOperations are what can be done to a live charge; also their steps in the books.
var chargeOperations = []string{operationRefund, operationCapture, operationVoid}

// decideOperation refunds or captures a part of a live charge, voids the rest of it, or refuses for good.
func (s *Simulator) decideOperation(q *request, e *entry) reply {
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
	now.Step = q.operation
	after, code, detail := q.operate(charge)
	if code != "" {
		now.refuse(code, detail)
		s.record(record{Entries: []*entry{now}})
		return e.answer()
	}
	prefix := map[string]string{operationRefund: "re", operationCapture: "cp", operationVoid: "vd"}[q.operation]
	now.State, now.Reference, now.Effects = Live, s.state.name(prefix), 1
	s.record(record{Entries: []*entry{now, after}})
	return e.answer()
}

// operate returns a charge after a charge operation, or why it is refused.
func (q *request) operate(charge *entry) (after *entry, code, detail string) {
	switch {
	case q.rule.Code != "":
		return nil, q.rule.Code, byPlan
	case charge == nil || charge.State != Live || charge.Step != "charge" || charge.OrderID != q.body.OrderID || charge.Currency != q.body.Currency:
		return nil, "unknown_charge", "neither the reference nor the chargeKey belongs to a live charge of the order"
	case q.operation == operationRefund && q.amount.Cmp(minus(charge.taken(), charge.Refunded)) > 0:
		return nil, "refund_too_large", "exceeds what is left of the charge"
	case q.operation != operationRefund && charge.rest().IsZero() && !charge.Voided.IsZero():
		return nil, codeAuthorizationExpired, "nothing of the authorization is left"
	case q.operation != operationRefund && q.amount.Cmp(charge.rest()) > 0:
		return nil, q.operation + "_too_large", "exceeds what is left of the authorization"
	}
	now := *charge
	switch {
	case q.operation == operationRefund:
		now.Refunded = plus(charge.Refunded, q.amount)
	case q.operation == operationCapture:
		now.Captured = plus(charge.Captured, q.amount)
	}
	if q.operation == operationVoid || q.operation == operationCapture && q.body.Final {
		now.Voided = plus(now.Voided, now.rest())
	}
	return &now, "", ""
}

const codeAuthorizationExpired = "authorization_expired"

// Expire ends the authorization of an order, as time does: what is not captured is voided. It returns an error if the
// order has none.
func (s *Simulator) Expire(orderID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.state.orders[orderID] {
		if e.Step == "charge" && e.State == Live && e.rest().IsPos() {
			now := *e
			now.Voided = plus(e.Voided, e.rest())
			s.record(record{Entries: []*entry{&now}})
			return nil
		}
	}
	return fmt.Errorf("order %q has no authorization", orderID)
}

// taken is the money that a live charge has taken.
func (e *entry) taken() decimal.Decimal {
	if e.Later {
		return e.Captured
	}
	return e.whole()
}

// rest is what can still be captured of a live charge.
func (e *entry) rest() decimal.Decimal {
	if !e.Later {
		return decimal.Zero
	}
	return minus(minus(e.whole(), e.Captured), e.Voided)
}

func (e *entry) whole() decimal.Decimal {
	whole, _ := decimal.Parse(e.Amount) // it was checked on arrival
	return whole
}

// plus and minus are exact for amounts, which have few digits.
func plus(a, b decimal.Decimal) decimal.Decimal {
	sum, _ := a.Add(b)
	return sum
}

func minus(a, b decimal.Decimal) decimal.Decimal {
	difference, _ := a.Sub(b)
	return difference
}
