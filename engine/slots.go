package engine

import (
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/provider"
)

// slots are places for calls in a lane, taken before the commit that begins the attempts
// they are for.
type slots struct {
	lane  *lane // nil: none were taken
	free  int
	asked time.Time // just before the statement that uses them is sent
}

// acquire takes up to most slots. It takes none while orders wait for one: they come first.
func (l *lane) acquire(most int) int {
	if l.e.stopping.Load() || l.usable() != nil || l.breaker.State() != gobreaker.StateClosed {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		return 0
	}
	n := min(max(l.cfg.InFlight-l.calling, 0), most)
	l.calling += n
	return n
}

// call is how long a call may take. lease is how long the lease of its order must last at least:
// were it shorter than the call, another replica would make the same call meanwhile.
func (s *slots) call() time.Duration {
	if s.lane == nil {
		return 0
	}
	return s.lane.cfg.Timeout + leaseMargin
}

func (s *slots) lease() time.Duration {
	if s.lane == nil {
		return 0
	}
	return max(s.lane.e.cfg.Lease, s.call())
}

// start makes the call of an order whose attempt, with this number, has just been committed.
func (s *slots) start(r *run, number int32) {
	o, now := &r.order, s.lane.e.now()
	o.Attempts, o.InDoubtSince, o.WindowFrom = &number, &now, &now
	r.attempt = &attempt{lane: s.lane, slot: s.lane, state: o.Status, step: s.lane.step, generation: o.Generation,
		operation: provider.Do, number: number, fence: o.Fence, report: s.lane.allowed(), asked: s.asked}
	r.moved = false
	s.free--
	s.lane.e.wg.Go(func() { s.lane.call(r) })
}

// giveBack frees the slots that were not used.
func (s *slots) giveBack() {
	for ; s.lane != nil && s.free > 0; s.free-- {
		s.lane.free()
	}
}

// allowed asks the circuit breaker for a call whose attempt is committed already. If the breaker
// has opened meanwhile, the call is made all the same.
func (l *lane) allowed() func(error) {
	report, err := l.breaker.Allow()
	if err != nil {
		return func(error) {}
	}
	return report
}
