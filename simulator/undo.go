package simulator

// undo answers a request to take back what was done under another key, or to see to it
// that it never will be. It is one moment: a do that is in progress has had its effect
// and it is taken back, or it will be refused. Nothing is waited for.
func (s *Simulator) undo(q *request) reply {
	wait := s.latency
	if q.rule.Fault == Slow {
		wait += q.rule.Delay
	}
	if !s.pause(wait) {
		return closedReply
	}
	e, a := s.takeBack(q)
	return s.durable(e, a)
}

func (s *Simulator) takeBack(q *request) (*entry, reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.state.keys[q.key]; other != nil && (other.State != "" || other.running) {
		return other, mismatch("the key is that of a do")
	}
	body, repeated := s.state.undos[q.key]
	if repeated && body != q.fingerprint {
		return s.state.entry(q.body.UndoKey), mismatch("the key was used for another request")
	}
	e := s.state.entry(q.body.UndoKey)
	if e.State != "" && (e.Step != q.step || e.OrderID != q.body.OrderID) {
		return e, mismatch("the undoKey is of another step or order")
	}
	if q.rule.Code != "" {
		return e, refusal(q.rule.Code, "declined by the fault plan")
	}
	if repeated {
		s.counts.suppressed++
	}
	if !repeated || e.State == Live { // live after an undo: the contract was broken
		ev := q.event(eventUndone)
		if e.State == Live {
			ev.Reference = s.state.name(prefixes[q.step][1])
		}
		s.record(ev)
	}
	return e, e.undone(repeated)
}
