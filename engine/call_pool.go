package engine

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// callPool is the bulkhead of one step of one policy. It limits how many orders wait for a call of its executor, and by
// permits how many calls are under way, so a slow provider fills only its own pool.
type callPool struct {
	e       *Engine
	step    fsm.Step
	policy  *policy.Policy
	cfg     *policy.Step
	exec    provider.Executor // nil: could not be made, and unusable says why
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu       sync.Mutex
	waiting  []*run
	calling  int // permits that somebody holds: a call, or a statement that is to begin calls
	unusable error
	checked  time.Time
}

type poolKey struct {
	version int32
	step    fsm.Step
}

// errCopied: the provider knows the order by the keys of another installation, and would do it a second time.
var errCopied = errors.New("it is of the installation that this database was copied from, whose providers are not called")

// callPool returns the one pool of a step of a policy.
func (e *Engine) callPool(version int32, of fsm.Step, p *policy.Policy) *callPool {
	e.callPoolsMu.Lock()
	defer e.callPoolsMu.Unlock()
	key := poolKey{version, of}
	if pool, ok := e.callPools[key]; ok {
		return pool
	}
	cfg := p.Step(of)
	pool := &callPool{e: e, step: of, policy: p, cfg: cfg}
	if p.Copied {
		pool.unusable = errCopied
	} else {
		pool.exec, pool.unusable = newExecutor(cfg, of, e.cfg.Bounds)
	}
	pool.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     cfg.Breaker.Open,
		IsExcluded:  func(err error) bool { return errors.Is(err, errUncalled) },
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Breaker.Failures },
	})
	e.callPools[key] = pool
	return pool
}

// poolOf returns the pool of the step that an order is at. Its policy has one, and is known.
func (e *Engine) poolOf(o *orders.Order) *callPool {
	p, _ := e.policies.byVersion(o.Policy)
	return e.callPool(*o.Policy, o.Status.Step(), p)
}

// enqueue has an order wait for a permit. What its call has to know was read.
func (p *callPool) enqueue(r *run) {
	if err := p.usable(); err != nil {
		p.e.withoutCall(r, p, attention{reason: "policy_unusable: " + err.Error()})
		return
	}
	p.mu.Lock()
	full := len(p.waiting) >= p.cfg.Queue
	if !full {
		p.waiting = append(p.waiting, r)
	}
	p.mu.Unlock()
	if full {
		p.e.withoutCall(r, p, provider.Retry{Code: "queue_full"})
		return
	}
	p.pump()
}

// usable returns nil if calls can be made, or else the reason. A secret may be corrected while
// the service runs, so it is checked again after a second.
func (p *callPool) usable() error {
	if p.exec == nil {
		return p.unusable
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.checked) > time.Second {
		p.unusable, p.checked = p.e.cfg.Bounds.Usable(p.policy, p.step), time.Now()
	}
	return p.unusable
}

// pump takes the free permits for the orders that wait, and begins their calls. Each call gives its own back; if
// it is not made, whoever drops it does.
func (p *callPool) pump() {
	if p.e.stopping.Load() {
		p.e.leaves.Add(p.drain()...)
		return
	}
	for taken := p.next(); len(taken) > 0; taken = p.next() {
		for _, r := range taken {
			p.e.prepareCall(r, p)
		}
	}
}

// next takes free permits and returns the orders that get them.
func (p *callPool) next() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(max(p.cfg.InFlight-p.calling, 0), len(p.waiting))
	taken := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
	p.calling += n
	return taken
}

// drain returns all orders that wait: none of them gets a permit any more.
func (p *callPool) drain() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.waiting
	p.waiting = nil
	return waiting
}

// free gives a permit back and lets the next waiting orders begin.
func (p *callPool) free() {
	p.release()
	p.pump()
}

// release gives a permit back and wakes nobody: it is for pump's own loop, which looks for free permits again.
func (p *callPool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calling--
}

// stepKeyExpired reports whether the provider may have forgotten the key of the step in doubt at
// that time. Sending it again could do the step twice, so only a look-up, a callback or a
// person settles the step.
func (p *callPool) stepKeyExpired(o *orders.Order, now time.Time) bool {
	return o.InDoubtSince != nil && now.Sub(*o.InDoubtSince) > p.cfg.KeyRetention-retentionMargin
}

// retentionMargin is how long before a provider may forget a key we stop sending it.
const retentionMargin = time.Hour

// permits are taken before the commit that moves orders into the state of a step and begins their calls with it. Each
// order that was moved takes one along; those that are left are freed after the statement.
type permits struct {
	pool  *callPool // nil: none were taken
	left  int
	asked time.Time // just before the statement that uses them is sent
}

// acquire takes up to most permits, which the caller has to use or to give back: see permits. It takes none while
// orders wait for one: they come first.
func (p *callPool) acquire(most int) int {
	if p.e.stopping.Load() || p.usable() != nil || p.breaker.State() != gobreaker.StateClosed {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		return 0
	}
	n := min(max(p.cfg.InFlight-p.calling, 0), most)
	p.calling += n
	return n
}

// leaseMargin is how much longer than a call the lease of its order lasts: no other
// replica starts the same call meanwhile.
const leaseMargin = time.Second

// leastLease is how long a call of the step may take, with a margin: a lease that ends sooner is extended to lease. Both are
// 0 without permits.
func (p *permits) leastLease() time.Duration {
	if p.pool == nil {
		return 0
	}
	return p.pool.cfg.Timeout + leaseMargin
}

func (p *permits) lease() time.Duration {
	if p.pool == nil {
		return 0
	}
	return max(p.pool.e.cfg.Lease, p.leastLease())
}

// use hands a permit to the call of an order that was committed with its move. If the circuit
// breaker has opened meanwhile, the call is made all the same.
func (p *permits) use(r *run) {
	p.left--
	r.call = p.pool.newCall(r)
	r.call.doubted, r.call.asked = false, p.asked // it is the first call of the step
	r.call.report, _ = p.pool.breaker.Allow()
	if r.call.report == nil {
		r.call.report = func(error) {}
	}
}

// freeUnused frees the permits that were not used.
func (p *permits) freeUnused() {
	for ; p.pool != nil && p.left > 0; p.left-- {
		p.pool.free()
	}
}
