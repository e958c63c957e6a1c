package simulator

import "time"

// forget forgets a key that is older than keys are remembered, as far as nothing is being
// done under it. What was done is still in the books, and is known by its name; a do that
// comes with the key is new. mu is held.
func (s *Simulator) forget(key string) {
	e := s.state.keys[key]
	if s.cfg.KeyRetention == 0 || e == nil || e.State == "" || e.State == Pending || e.running || time.Since(e.At) < s.cfg.KeyRetention {
		return
	}
	s.record(event{Event: eventForgot, Key: key})
}
