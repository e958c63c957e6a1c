package simulator

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// do answers a request for an effect. Between begin and decide the key is in progress;
// an undo that comes meanwhile does not wait: decide finds the key voided and refuses.
// A caller who leaves changes nothing of it.
func (s *Simulator) do(caller context.Context, q *request) reply {
	e, known := s.begin(q)
	switch {
	case known != nil && q.rule.Fault == Hang && known.status != http.StatusConflict:
		return reply{outcome: "none", delivery: silent}
	case known != nil:
		return s.durable(e, *known)
	case q.rule.Fault == Hang:
		s.untilLeft(caller)
		s.abandon(e)
		return reply{outcome: "none", delivery: dropped}
	}
	wait := s.latency
	if q.rule.Fault == Slow || q.rule.Fault == LateAfterVoid {
		wait += q.rule.Delay
	}
	if !s.pause(wait) {
		s.abandon(e)
		return closedReply
	}
	return s.durable(e, s.decide(q, e))
}

// begin either finds the answer to a key or takes it on.
func (s *Simulator) begin(q *request) (*entry, *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.state.entry(q.key)
	_, isUndo := s.state.undos[q.key]
	var known reply
	switch {
	case isUndo || e.body != "" && e.body != q.fingerprint:
		known = mismatch("the key was used for another request")
	case e.running:
		s.counts.suppressed++
		known = reply{status: http.StatusConflict, outcome: "in_progress", body: problem{Code: "in_progress", Detail: "a request with this key is being processed"}}
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
		a := e.answer()
		a.replayed = false
		return a
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
	a := e.answer()
	a.replayed = false
	return s.calling(q, e, a)
}

// promised takes a do on and leaves the decision to a job; mu is held.
func (s *Simulator) promised(q *request, e *entry) reply {
	ev := q.event(eventPending)
	ev.Reference = s.state.name(prefixes[q.step][0])
	ev.Promise = &promise{URL: q.body.CallbackURL, Delay: q.rule.Delay, Times: 1, Code: q.rule.Code}
	if q.rule.Fault == CallbackTwice {
		ev.Promise.Times = 2
	}
	s.record(ev)
	a := e.answer()
	a.replayed = false
	a.then = func() { s.fulfil(e) }
	return a
}

// calling turns the answer of a decided do into one that is told by callback.
func (s *Simulator) calling(q *request, e *entry, a reply) reply {
	if !slices.Contains(byCallback, q.rule.Fault) {
		return a
	}
	promised, told := e.promised(), e.callback()
	tell := func() { s.call(q.body.CallbackURL, told, 1) }
	switch q.rule.Fault {
	case AnswerTwice:
		a.then = tell
		return a
	case CallbackBefore:
		promised.before = tell
	case CallbackLate:
		promised.then = func() {
			if s.pause(q.rule.Delay) {
				tell()
			}
		}
	}
	return promised
}

// fulfil decides a pending key when its time has come, and tells.
func (s *Simulator) fulfil(e *entry) {
	s.mu.Lock()
	promise, written := e.promise, e.written
	wait := time.Until(e.At.Add(promise.Delay))
	s.mu.Unlock()
	if written.wait() != nil || !s.pause(wait) {
		return
	}
	told, written := s.keep(e)
	if written.wait() == nil {
		s.call(promise.URL, told, promise.Times)
	}
}

// keep decides a pending key, unless an undo was there first.
func (s *Simulator) keep(e *entry) (told callback, written *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.State == Pending {
		ev := event{Event: eventDone, Key: e.Key, Body: e.body}
		if e.promise.Code != "" {
			ev.Event, ev.Code, ev.Detail = eventRefused, e.promise.Code, "declined by the fault plan"
		}
		s.record(ev)
	}
	return e.callback(), e.written
}

// resume goes on with what was promised before the start.
func (s *Simulator) resume() {
	for _, e := range s.state.entries {
		if e.State == Pending {
			s.start(func() { s.fulfil(e) })
		}
	}
}

// answer is what the state of a key says to a do; replayed, as it was decided before.
func (e *entry) answer() reply {
	a := reply{replayed: true}
	switch e.State {
	case Live:
		data, _ := json.Marshal(e.data())
		a.status, a.outcome, a.body = http.StatusOK, "done", done{Reference: e.Reference, Data: data}
	case Pending:
		return e.promised()
	case Refused:
		a = refusal(e.Code, e.Detail)
		a.replayed = true
	default:
		a = refusal("voided", "the key was undone")
		a.outcome, a.replayed = string(Voided), e.body != ""
	}
	return a
}

func (e *entry) promised() reply {
	return reply{status: http.StatusAccepted, outcome: string(Pending), body: done{Reference: e.Reference}, replayed: true}
}

// data is what a provider tells beside its reference.
func (e *entry) data() map[string]any {
	switch e.Step {
	case "charge":
		return map[string]any{"amount": e.Amount, "currency": e.Currency}
	case "reserve":
		return map[string]any{"item": e.Item, "quantity": e.Quantity}
	default:
		return map[string]any{"orderId": e.OrderID}
	}
}
