package engine

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/provider"
)

// New returns an engine that does nothing until Start.
func New(pool *pg.Pool, cfg Config) *Engine {
	e := &Engine{
		notReady: rate.Sometimes{Interval: time.Second}, badWebhooks: rate.Sometimes{Interval: time.Minute},
		knownReads: make(chan struct{}, knownReadsMost),
	}
	cfg = cfg.withDefaults()
	e.init(pool, cfg)
	e.callPools.byStep, e.callPools.send = map[poolKey]*callPool{}, e.dispatch
	e.callPools.over = provider.NewTransport(cfg.MaxInFlight, cfg.Bounds.AllowPrivate) // no more calls than orders
	e.overdue.Store(&orders.Backlog{})
	e.limiter = newConcurrencyLimiter(&e.core)
	e.watches = newWatcher(&e.core)
	e.makeQueues()
	e.lateUndos = newSideCalls(&e.core, e.claimLateUndos)
	e.chargeOperations = newSideCalls(&e.core, e.claimChargeOperations)
	return e
}

// StartReading is used instead of Start for an engine that only reads. It starts nothing that writes or makes calls:
// only the loops that read policies, and that watch orders for waiting callers. Such an engine must only be used for
// reads.
func (e *Engine) StartReading() {
	e.readClock()
	e.startPolicies()
	e.learnForgotten()
	e.wg.Go(e.watchLoop)
}

// Start starts the goroutines: those of StartReading, one for each queue, and the loops that claim due orders, renew
// leases, grant concurrency permits, enforce deadlines, and make side calls.
func (e *Engine) Start() {
	e.StartReading()
	e.readIdentity()
	e.renewNumbering()
	e.readLastAdmitted()
	for _, q := range e.all {
		e.wg.Go(func() { q.Run(e.ctx) })
	}
	e.wg.Go(e.recoverLoop)
	e.wg.Go(func() { e.every(e.cfg.Lease/6, e.renewAll) })
	e.wg.Go(e.permitLoop)
	e.wg.Go(e.timerLoop)
	e.wg.Go(e.reportLoop)
	e.wg.Go(func() { e.every(e.cfg.RecoveryInterval, e.learnForgotten) })
	if e.cfg.OrderRetention > 0 {
		e.wg.Go(e.forgetLoop)
	}
	e.wg.Go(func() { e.lateUndos.loop(e.ctx) })
	e.wg.Go(func() { e.chargeOperations.loop(e.ctx) })
}

func (e *Engine) watchLoop() {
	for runs := range e.watches.looks(e.ctx) {
		e.dispatch(runs)
	}
}

func (e *Engine) permitLoop() {
	for granted := range e.limiter.grants(e.ctx) {
		e.goOn("", granted)
	}
}

// Stop accepts no more orders, lets those in flight finish until ctx ends, releases the others so that another replica
// takes them over at once, and waits for all goroutines. Callers that are still waiting get the last known state.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopping.Store(true)
	e.dispatch(e.watches.dropAll())
	err := e.runs.waitEmpty(ctx)
	e.cancel()
	e.wg.Wait()
	e.Orders.Wait()
	e.handBack()
	return err
}

const (
	policyInterval = 2 * time.Second       // how often to look for new policies
	policySoon     = 20 * time.Millisecond // first pause between tries while none were ever read; it doubles
	policyLimit    = 5 * time.Second       // how long Start waits for the first read
)

// startPolicies starts the loop that reads the policies, and waits for its first try. New orders are rejected until the
// policies have been read once.
func (e *Engine) startPolicies() {
	tried := make(chan struct{})
	e.wg.Go(func() {
		loaded := e.loadPolicies()
		close(tried)
		e.policyLoop(loaded)
	})
	select {
	case <-tried:
	case <-time.After(policyLimit):
		e.log.Warn("policies not read yet: new orders are rejected until they are")
	}
}

// policyLoop reads new policies at intervals, which are short until policies have been read once.
func (e *Engine) policyLoop(loaded bool) {
	for soon := policySoon; ; soon = min(2*soon, policyInterval) {
		if loaded {
			soon = max(policyInterval, e.cfg.RecoveryInterval)
		}
		if !e.lastsFor(soon) {
			return
		}
		loaded = e.loadPolicies() || loaded
	}
}

// loadPolicies reads new policies, and reports whether it succeeded.
func (e *Engine) loadPolicies() bool {
	err := e.policies.load(e.ctx)
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("load policies", "error", err)
	}
	return err == nil
}

// Ready returns nil if orders can be accepted: the engine is not stopping, the database answers, its schema passes
// CheckSchema, and no recent error of a statement contradicts that. The check of the statements is cached for ten
// seconds. The reason is logged at most once a second. Errors: orders.ErrStopping, ErrNotMigrated,
// orders.ErrUnavailable.
func (e *Engine) Ready(ctx context.Context) error {
	if e.stopping.Load() {
		return orders.ErrStopping
	}
	err := e.fit(ctx)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		e.notReady.Do(func() { e.log.Warn("not ready", "error", err) })
	}
	return err
}
