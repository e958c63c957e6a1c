package simulator

import (
	"slices"
	"time"
)

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
	promised.replayed = false
	tell := func() { s.call(s.told(q.body.CallbackURL, told), 1) }
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
	default: // callback_never
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
		s.call(s.told(promise.URL, told), promise.Times)
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
		if e.State == Pending && e.promise != nil {
			s.start(func() { s.fulfil(e) })
		}
	}
	var owed []string // found first: keeping one changes the map
	for id, i := range s.state.stripe.intents {
		if i.Promise != nil {
			owed = append(owed, id)
		}
	}
	for _, id := range owed {
		s.start(func() { s.fulfilStripe(id) })
	}
}
