package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
	"pawl/internal/provider/stripe"
)

// remote extends core for handlers of remote steps, with the call pools and our identity towards providers.
type remote struct {
	core
	callPools callPools
	identity  atomic.Pointer[identity]
	stock     stockLook
}

// callPools are the pools of this replica. A pool is a queue that sends an order on as soon as it has a permit for it.
type callPools struct {
	send func([]*run)    // Engine.dispatch: a permit may become free outside of any handler
	over *http.Transport // of all endpoints: connections to a host that does several steps serve them all

	mu     sync.Mutex
	byStep map[poolKey]*callPool
}

// callPool is the bulkhead of one step of one policy, or of one route of its charge. It limits the orders that wait for
// a call and, by permits, the calls under way, so a slow provider fills only its own pool.
type callPool struct {
	e        *remote
	step     fsm.Step
	route    string // empty: the step has only one
	policy   *policy.Policy
	cfg      *policy.Step
	exec     provider.Executor // nil: see unusable
	breaker  *gobreaker.TwoStepCircuitBreaker[struct{}]
	opened   atomic.Pointer[time.Time] // when the breaker opened last; nil: never
	hastened atomic.Int64              // when a success last hastened charge operations, in Unix nanoseconds; 0: never
	outage   outage

	mu       sync.Mutex
	waiting  []*run
	calling  int       // permits in use, by calls and by statements that begin calls
	used     time.Time // when the last call ended
	unusable error
	checked  time.Time
}

type poolKey struct {
	version int32
	place   policy.Place
}

// errCopied is the error of policies in a copied database. The provider knows their orders by the keys of the original
// installation, and would repeat the steps under ours.
var errCopied = errors.New("the policy belongs to the installation that this database was copied from, whose providers are not called")

// callPool returns the one pool of a step of a policy, for orders with a route.
func (e *remote) callPool(version int32, p *policy.Policy, of fsm.Step, route string) *callPool {
	e.callPools.mu.Lock()
	defer e.callPools.mu.Unlock()
	key := poolKey{version, p.Place(of, route)}
	if pool, ok := e.callPools.byStep[key]; ok {
		return pool
	}
	cfg := p.Step(of, route)
	pool := &callPool{e: e, step: of, route: key.place.Route, policy: p, cfg: cfg}
	pool.outage.lasts = cfg.Retry.Cap + time.Minute
	if p.Copied {
		pool.unusable = errCopied
	} else {
		pool.exec, pool.unusable = newExecutor(cfg, of, e.cfg.Bounds, e.callPools.over)
	}
	pool.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout: cfg.Breaker.Open,
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				pool.opened.Store(new(time.Now()))
				pool.outage.begin()
			} else if to == gobreaker.StateClosed {
				e.wg.Go(func() { e.hasten(pool) })
			}
		},
		IsExcluded:  func(err error) bool { return errors.Is(err, errUncalled) },
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Breaker.Failures },
	})
	e.callPools.byStep[key] = pool
	return pool
}

// newExecutor makes the executor that a policy names for a remote step. Its answers are masked.
func newExecutor(s *policy.Step, of fsm.Step, within policy.Bounds, over *http.Transport) (provider.Executor, error) {
	switch s.Executor {
	case policy.HTTP, policy.Simulator:
		return provider.Masking(endpoint.New(s, of, within, over)), nil
	case policy.Stripe:
		return provider.Masking(stripe.New(s, of, within)), nil
	default:
		return nil, fmt.Errorf("make executor: %q does not run remote steps", s.Executor)
	}
}

// poolOf returns the pool of the step that an order is at. The step must be remote, and its policy loaded.
func (e *remote) poolOf(o *orders.Order) *callPool {
	p, _ := e.policies.byVersion(o.Policy)
	return e.callPool(*o.Policy, p, o.Status.Step(), or(o.Route))
}

// poolOfCall returns the pool of the next call of an order, which may void a key at another provider. So a provider
// that hangs delays only its own calls.
func (e *remote) poolOfCall(r *run) *callPool {
	if r.preflight != nil && len(r.preflight.voids) > 0 && !r.status().Undoing() {
		key := &r.preflight.voids[0]
		if p, ok := e.policies.byVersion(&key.policy); ok && p != nil && p.Step(key.step, key.route).Executor.Remote() {
			return e.callPool(key.policy, p, key.step, key.route)
		}
	}
	return e.poolOf(&r.order)
}

// waitForPermit adds orders to the pools of their calls. It returns those that a pool rejects, with the reason as their
// result.
func (e *remote) waitForPermit(runs []*run) (refused []*run) {
	for _, r := range runs {
		pool := e.poolOfCall(r)
		if result := pool.enqueue(r); result != nil {
			r.next = r.withoutCall(pool, result)
			refused = append(refused, r)
		}
	}
	return refused
}

// enqueue adds an order to the pool, or returns why the pool rejects it.
func (p *callPool) enqueue(r *run) provider.Result {
	if err := p.usable(); err != nil {
		return attention{reason: "policy_unusable: " + err.Error()}
	}
	p.mu.Lock()
	full := len(p.waiting) >= p.cfg.Queue
	if !full {
		p.waiting = append(p.waiting, r)
	}
	p.mu.Unlock()
	if full {
		return provider.Retry{Code: "queue_full"}
	}
	p.pump()
	return nil
}

// usable returns why no calls can be made, or nil. Secrets can be corrected while the service runs, so it checks again
// every second.
func (p *callPool) usable() error {
	if p.exec == nil {
		return p.unusable
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.checked) > time.Second {
		p.unusable, p.checked = p.e.cfg.Bounds.Usable(p.policy, policy.Place{Step: p.step, Route: p.route}), time.Now()
	}
	return p.unusable
}

// pump sends on as many waiting orders as there are free permits. A call returns its permit when it ends or is dropped.
func (p *callPool) pump() {
	send := p.e.callPools.send
	if p.e.stopping.Load() {
		send(goTo(toRelease, p.drain()...))
		return
	}
	for taken := p.takePermitted(); len(taken) > 0; taken = p.takePermitted() {
		for _, r := range taken {
			r.next = p.prepareCall(r)
		}
		send(taken)
	}
}

// prepareCall prepares the call of an order that has a permit, if the circuit breaker allows it.
func (p *callPool) prepareCall(r *run) destination {
	if o := &r.order; o.Status.Undoing() && r.preflight.own.undoKeyExpired(p.cfg, o, o.InDoubtSince, p.e.now()) {
		p.release()
		return r.withoutCall(p, attention{reason: outcomeUnknown})
	}
	report, err := p.breaker.Allow()
	if err != nil {
		p.release()
		p.outage.note(r.no())
		return r.withoutCall(p, provider.Retry{Code: "breaker_open", After: p.openFor()})
	}
	r.call = p.newCall(r)
	r.call.report = report
	return toBegin
}

// noteFailure keeps why a call failed. Only codes: what a provider says may name a customer, whom an erasure would not
// find here.
func (p *callPool) noteFailure(result provider.Result) {
	_, answer := namedResult(result)
	if answer.Code == "connection_failed" { // whose detail is ours, and ends with the cause
		answer.Code = answer.Detail[strings.LastIndex(answer.Detail, ": ")+1:]
	}
	code := strings.TrimSpace(answer.Code)
	if unknown, ok := result.(provider.Unknown); ok && unknown.Status != 0 { // with a code of the provider, too
		status := strconv.Itoa(unknown.Status)
		code = strings.TrimSpace("HTTP " + status + " " + strings.TrimPrefix(code, "http_"+status))
	}
	if p.outage.failed(code, p.e.now()) {
		p.e.reportNow.nudge()
	}
}

// openFor is how much longer the circuit breaker is open; 0 while the call that it lets through is under way.
func (p *callPool) openFor() time.Duration {
	if opened := p.opened.Load(); opened != nil {
		return max(p.cfg.Breaker.Open-time.Since(*opened), 0)
	}
	return 0
}

// takePermitted takes free permits, and returns the orders that get them.
func (p *callPool) takePermitted() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(max(p.cfg.InFlight-p.calling, 0), len(p.waiting))
	if p.breaker.State() == gobreaker.StateHalfOpen {
		n = min(n, 1)
		if c := p.breaker.Counts(); c.Requests > c.TotalExclusions {
			n = 0 // they wait for the call that tries whether the provider is back, and no longer
		}
	}
	taken := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
	p.calling += n
	return taken
}

// drain empties the pool and returns the orders that were waiting.
func (p *callPool) drain() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.waiting
	p.waiting = nil
	return waiting
}

// releaseAndPump returns a permit, and sends on the next waiting orders.
func (p *callPool) releaseAndPump() {
	p.release()
	p.pump()
}

// release returns a permit. The loop in pump uses it, which sends on the next orders itself.
func (p *callPool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calling--
	p.used = time.Now()
}

// stepKeyExpired reports whether the provider may have forgotten the key of a step in doubt. Sending the key again could
// then repeat the step, so only a look-up, a callback or a person can settle it.
func (p *callPool) stepKeyExpired(o *orders.Order, now time.Time) bool {
	return o.InDoubtSince != nil && now.Sub(*o.InDoubtSince) > p.cfg.KeyRetention-retentionMargin
}

// retentionMargin is how long before a provider may forget a key we stop sending it.
const retentionMargin = time.Hour

// unread reports whether there may be earlier calls for the order, which must be read before the next one.
func (p *callPool) unread(r *run) bool {
	o := &r.order
	return r.preflight == nil && (o.InDoubtSince != nil || o.Retries != nil || o.Generation > 0 || o.Status.Undoing() || p.lacksReference(r))
}

// lacksReference reports whether a call needs the provider's reference of the charge, and the run lacks it because the
// order was claimed after the provider returned it.
func (p *callPool) lacksReference(r *run) bool {
	return p.cfg.Executor == policy.Stripe && r.order.Calls != nil && or(r.order.ChargeReference) == ""
}

// newCall prepares the next call of a run.
func (p *callPool) newCall(r *run) *call {
	o := &r.order
	c := &call{pool: p, permitFrom: p, state: o.Status, step: p.step, generation: o.Generation, operation: operationIn(o.Status),
		doubted: o.InDoubtSince != nil, lookOnly: p.stepKeyExpired(o, p.e.now())}
	switch {
	case r.preflight == nil:
	case c.operation == provider.Do && len(r.preflight.voids) == 0:
		c.unseen = r.preflight.unseen
	case len(r.preflight.voids) > 0:
		c.toVoid(&r.preflight.voids[0])
	case c.operation == provider.Undo: // prepareCall has rejected those whose key expired
		c.undoReference, c.lookOnly = r.preflight.own.referenceToUndo(p.cfg.Executor), false
	}
	return c
}

// toVoid turns the call into the undo of a key of an earlier generation. The doubt in the row concerns the current
// generation, so it is ignored here. Only the executor that did the step can undo it. If this process can't use that
// executor, the order is held for a person.
func (c *call) toVoid(key *sentKey) {
	e := c.pool.e
	c.step, c.generation, c.operation, c.doubted, c.lookOnly = key.step, key.generation, provider.Undo, false, false
	if p, ok := e.policies.byVersion(&key.policy); ok && p != nil && p.Step(key.step, key.route).Executor.Remote() {
		c.pool = e.callPool(key.policy, p, key.step, key.route)
	} else {
		c.pool = &callPool{e: e, step: key.step, route: key.route, cfg: c.pool.cfg, breaker: c.pool.breaker,
			unusable: fmt.Errorf("policy %d, which the undo of the %s needs, is not available", key.policy, key.step)}
	}
	c.undoReference = key.referenceToVoid(c.pool.cfg.Executor)
}

// callOfAnswer wraps an answer that arrived without a call, such as a callback, so that it is processed like any other.
func (p *callPool) callOfAnswer(o *orders.Order, row *db.CallsPreflightRow) *call {
	c := &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, operation: operationIn(o.Status),
		number: or(o.Calls), doubted: or(o.Retries) > 0, source: row.Source}
	switch row.Outcome {
	case "done":
		c.result = provider.Done{Reference: row.AnswerReference, Data: []byte(row.Data)}
	case "refused":
		c.result = provider.Refused{Code: row.Code, Detail: row.Detail}
	default:
		c.result = provider.Retry{Code: row.Code, Detail: row.Detail, Counts: true}
	}
	return c
}

// permits are acquired before a statement that moves orders into the state of a step and begins their calls in the same
// commit. Each moved order uses one; the rest are freed after the statement.
type permits struct {
	pool  *callPool // nil: none were acquired
	left  int
	asked time.Time // just before the statement is sent
}

// acquire takes up to most permits, which the caller must use or free. It takes none while orders wait for one, because
// those come first.
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

// leaseMargin is how much longer than a call the lease of its order lasts, so that no other replica starts the same call
// meanwhile.
const leaseMargin = time.Second

// leastLease is the timeout of a call plus a margin. A lease that ends sooner is extended to lease. Both are 0 without
// permits.
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

// use gives a permit to a call that was committed together with the move of its order. The call is made even if the
// circuit breaker has opened meanwhile.
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
		p.pool.releaseAndPump()
	}
}

// CallPools returns the steps this replica has made calls for, by policy, step and route.
func (e *remote) CallPools() []orders.ProviderStep { return e.callPools.loads(0) }

// loads returns the load of the pools, or only of those that were in use within some time.
func (all *callPools) loads(within time.Duration) []orders.ProviderStep {
	all.mu.Lock()
	defer all.mu.Unlock()
	loads := make([]orders.ProviderStep, 0, len(all.byStep))
	for key, p := range all.byStep {
		if load, used := p.load(key.version); within == 0 || time.Since(used) < within {
			loads = append(loads, load)
		}
	}
	slices.SortFunc(loads, func(a, b orders.ProviderStep) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Route, b.Route))
	})
	return loads
}

// load returns the load of the pool, and when it was used last.
func (p *callPool) load(version int32) (load orders.ProviderStep, used time.Time) {
	breaker := p.breaker.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	load = orders.ProviderStep{Policy: version, Step: p.step, Route: p.route, InFlight: p.calling, Queued: len(p.waiting),
		Breaker: orders.BreakerStates[breaker], Host: p.cfg.Host(), Budget: p.cfg.Retry.Budget}
	p.outage.tell(&load)
	failing := load.FailingSince != nil && time.Since(p.used) < failingFor // also while it is half-open and nothing is due
	if p.calling+len(p.waiting) > 0 || failing {
		return load, time.Now()
	}
	return load, p.used
}
