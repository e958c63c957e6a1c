package simulator

import (
	"context"
	"net/http"
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
