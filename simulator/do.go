package simulator

import (
	"context"
	"net/http"
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
	}
	if undecided := s.hold(caller, &q.rule, closedReply); undecided != nil {
		s.abandon(e)
		return *undecided
	}
	return s.durable(e, s.decide(q, e))
}

// hold keeps a request back for as long as its rule says. What it returns is for one that
// is never decided: its caller has left, or the simulator is being closed.
func (s *Simulator) hold(caller context.Context, rule *Rule, closed reply) *reply {
	if rule.Fault == Hang {
		s.untilLeft(caller)
		return &reply{outcome: "none", delivery: dropped}
	}
	wait := s.latency
	if rule.Fault == Slow || rule.Fault == LateAfterVoid {
		wait += rule.Delay
	}
	if !s.pause(wait) {
		return &closed
	}
	return nil
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
