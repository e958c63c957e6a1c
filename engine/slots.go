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

// acquire takes up to so many slots, if nobody waits for one.
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

// call is how long a call may take, and lease how long its order is ours at least.
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
	o, now := &r.order.Order, s.lane.e.now()
	o.Attempts, o.InDoubtSince, o.WindowFrom = &number, &now, &now
	r.attempt = &attempt{lane: s.lane, slot: s.lane, state: o.Status, step: s.lane.step, generation: o.Generation,
		operation: provider.Do, number: number, fence: o.Fence, report: s.lane.allowed(), asked: s.asked}
	r.moved = false
	s.free--
	s.lane.e.wg.Go(func() { s.lane.call(r) })
}

// giveBack frees what was not used.
func (s *slots) giveBack() {
	for ; s.lane != nil && s.free > 0; s.free-- {
		s.lane.free()
	}
}

// allowed asks the breaker on behalf of a call that is committed already: should it have
// opened in between, the call is made all the same.
func (l *lane) allowed() func(error) {
	report, err := l.breaker.Allow()
	if err != nil {
		return func(error) {}
	}
	return report
}
