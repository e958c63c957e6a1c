package simulator

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
