package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// lane is the bulkhead of one step of one policy: it takes orders through that step, at its
// executor. It limits how many orders wait and how many calls are under way, so a slow
// provider fills only its own lane.
//
//	add ──▶ queue ──slot free──▶ begins (attempt committed) ──▶ call ──▶ records
//	  └──▶ inbox: an answer may have come without a call ──▶ records
type lane struct {
	e       *Engine
	step    fsm.Step
	policy  *policy.Policy
	cfg     *policy.Step
	exec    provider.Executor // nil: could not be made, and unusable says why
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu       sync.Mutex
	queue    []*run
	calling  int
	unusable error
	checked  time.Time
}

type laneKey struct {
	version int32
	step    fsm.Step
}

// lane returns the one lane of a step of a policy.
func (e *Engine) lane(version int32, of fsm.Step, p *policy.Policy) *lane {
	e.lanesMu.Lock()
	defer e.lanesMu.Unlock()
	key := laneKey{version, of}
	if l, ok := e.lanes[key]; ok {
		return l
	}
	cfg := p.Of(of)
	l := &lane{e: e, step: of, policy: p, cfg: cfg}
	l.exec, l.unusable = provider.New(cfg, of)
	l.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     cfg.Breaker.Open,
		IsExcluded:  func(err error) bool { return errors.Is(err, errUncalled) },
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Breaker.Failures },
	})
	e.lanes[key] = l
	return l
}

// add takes a run that stands in a state of this step.
func (l *lane) add(r *run) {
	o := &r.order
	if r.attempt != nil && !r.attempt.stands(o) {
		l.e.fenced(r)
	}
	switch {
	case r.attempt != nil && r.attempt.result != nil:
		l.e.records.add(r)
	case orders.Stopping(o) && !o.Status.Undoing() && !l.forgotten(o, l.e.now()):
		r.attempt = &attempt{lane: l, state: o.Status, generation: o.Generation, step: l.step, result: stop{}}
		l.e.records.add(r)
	case l.e.stopping.Load():
		l.e.leaving.add(r)
	case (o.InDoubtSince != nil || o.Tries != nil) && !r.looked:
		l.e.inbox.add(r)
	case o.Generation > 0 && !r.voided && !o.Status.Undoing() && !o.Status.Pivot(): // a confirmation has no undo
		l.e.voids.add(r)
	case o.Status.Undoing() && r.undo == nil:
		l.e.undos.add(r)
	default:
		l.enqueue(r)
	}
}

func (l *lane) enqueue(r *run) {
	if err := l.usable(); err != nil {
		l.stay(r, attention{reason: "policy_unusable: " + err.Error()})
		return
	}
	l.mu.Lock()
	full := len(l.queue) >= l.cfg.Queue
	if !full {
		l.queue = append(l.queue, r)
	}
	l.mu.Unlock()
	if full {
		l.stay(r, provider.Retry{Code: "queue_full"})
		return
	}
	l.pump()
}

// usable returns nil if calls can be made, or else the reason. A secret may be corrected while
// the service runs, so it is checked again after a second.
func (l *lane) usable() error {
	if l.exec == nil {
		return l.unusable
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.checked) > time.Second {
		l.unusable, l.checked = l.policy.Usable(l.step), time.Now()
	}
	return l.unusable
}

// pump begins attempts for as many waiting orders as there are free slots.
func (l *lane) pump() {
	for taken := l.next(); len(taken) > 0; taken = l.next() {
		for _, r := range taken {
			l.begin(r)
		}
	}
}

// next takes free slots and returns the orders that get them.
func (l *lane) next() []*run {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(max(l.cfg.InFlight-l.calling, 0), len(l.queue))
	taken := l.queue[:n:n]
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.calling += n
	return taken
}

// begin asks the circuit breaker, prepares the attempt, and queues it to be committed.
func (l *lane) begin(r *run) {
	if l.e.stopping.Load() {
		l.release()
		l.e.leaving.add(r)
		return
	}
	if o := &r.order; o.Status.Undoing() && r.undo.forgotten(l.cfg, o, o.InDoubtSince, l.e.now()) {
		l.release()
		l.stay(r, attention{reason: outcomeUnknown})
		return
	}
	report, err := l.breaker.Allow()
	if err != nil {
		l.release()
		l.stay(r, provider.Retry{Code: "breaker_open", After: l.cfg.Breaker.Open})
		return
	}
	r.attempt = l.prepare(r)
	r.attempt.report = report
	l.e.begins.add(r)
}

// free gives a slot back and lets the next waiting orders begin.
func (l *lane) free() {
	l.release()
	l.pump()
}

func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calling--
}

// stay lets the order wait without a call having been made.
func (l *lane) stay(r *run, why provider.Result) {
	o := &r.order
	r.attempt = &attempt{lane: l, state: o.Status, generation: o.Generation, step: l.step, result: why, uncalled: true}
	l.e.records.add(r)
}

// call makes one call, with no transaction open and no lock held, and queues its answer to be
// recorded. It ends with its own timeout, not when the caller of the order hangs up.
func (l *lane) call(r *run) {
	a := r.attempt
	ctx, cancel := context.WithTimeout(l.e.ctx, a.lane.cfg.Timeout)
	defer cancel()
	c, err := l.e.callOf(ctx, r)
	if err != nil {
		a.result = provider.Retry{Code: "database_unavailable", Detail: err.Error()}
		a.report(errUncalled)
	} else {
		a.result = a.perform(ctx, c)
		a.report(failureOf(a.result))
	}
	l.free()
	l.e.Stats.Attempts.add(a)
	l.e.records.add(r)
}

// failureOf is what the breaker counts: the other side is gone or ill. To refuse, or to
// ask for patience, is no illness.
func failureOf(result provider.Result) error {
	switch result := result.(type) {
	case provider.Unknown:
		return errIll
	case provider.Retry:
		if result.Code == stoodStillCode {
			return errUncalled
		}
		if result.Counts || result.Code == "connection_failed" {
			return errIll
		}
	}
	return nil
}
