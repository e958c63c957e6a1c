package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// TestQueuesThatTurnCallersAway gives each queue somebody who has waited for an hour.
func TestQueuesThatTurnCallersAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue func(*Engine) *queue
		want  bool
	}{
		"orders to be admitted":          {func(e *Engine) *queue { return e.admits }, true},
		"orders to be charged":           {func(e *Engine) *queue { return e.moves[fsm.Charging] }, true},
		"answers to be recorded":         {func(e *Engine) *queue { return e.results }, true},
		"orders that may have an answer": {func(e *Engine) *queue { return e.preflights }, true},
		"orders to be held":              {func(e *Engine) *queue { return e.waits }, false},
		"orders to be released":          {func(e *Engine) *queue { return e.leaves }, false},
		"orders of a locked item":        {func(e *Engine) *queue { return e.hot.queue }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := New(nil, Config{})
				defer e.cancel()
				c.queue(e).Add(newRun("waits", Input{}))
				assert.True(t, !e.overloaded(nil), "turned away at once")
				<-time.After(time.Hour)
				assert.Equal(t, e.overloaded(nil), c.want)
			})
		})
	}
}

func TestHotItemsAreWhatWritesStockRows(t *testing.T) {
	t.Parallel()
	e := New(nil, Config{})
	defer e.cancel()
	of := func(state fsm.State, item string) *run {
		r := newRun(string(state)+item, Input{})
		r.order.Status, r.order.Item = state, item
		return r
	}
	e.hot.add([]*run{of(fsm.Reserving, "locked")})
	n := e.hot.holds(&Input{Item: "locked"})
	assert.Require(t, n == 1, n, "orders of the locked item")
	runs := []*run{of(fsm.Charging, "locked"), of(fsm.Confirming, "locked"), of(fsm.Reserving, "free"), of(fsm.Refunding, "locked")}
	fast := e.hot.divert(runs)
	assert.True(t, len(fast) == 3 && fast[0] == runs[0] && fast[1] == runs[2] && fast[2] == runs[3], len(fast), "go the fast way")
	stale := of(fsm.Reserving, "locked")
	stale.call = &call{state: fsm.Charging, result: provider.Done{}} // it was committed, and the reply was lost
	assert.Equal(t, len(e.hot.divert([]*run{stale})), 0, "an order with the answer of the step before goes the fast way")
	assert.Equal(t, e.hot.holds(&Input{Item: "locked"}), 3, "orders of the locked item, want 3")
	e.hot.unblock("locked")
	assert.Equal(t, len(e.hot.divert(runs)), 4, "go the fast way when the item is free")
}

func TestClockGoesByTheDatabase(t *testing.T) {
	t.Parallel()
	e := &Engine{}
	near := func(want time.Time) {
		t.Helper()
		off := e.Now().Sub(want)
		assert.True(t, off >= 0 && off <= time.Minute, "the clock is off by", off)
	}
	database := time.Now().Round(0).Add(-300 * time.Hour)
	e.tickOn(database)
	near(database)
	e.tickOn(database.Add(-time.Hour)) // it waited for an hour
	near(database)
	e.tickOn(database.Add(time.Hour))
	near(database.Add(time.Hour))
	e.tick(database.Add(-time.Hour)) // another server
	near(database.Add(-time.Hour))
}

func TestStoodStill(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		asked time.Time
		want  bool
	}{
		"just now":                       {now, false},
		"a statement that took long":     {now.Add(-time.Minute / 2), false},
		"a process that was stopped":     {now.Add(-retentionMargin), true},
		"a machine that slept":           {now.Round(0).Add(-retentionMargin), true},
		"a wall clock that was set back": {now.Round(0).Add(retentionMargin), false},
	} {
		called := false
		made := &call{pool: &callPool{exec: caller(func() { called = true })}, operation: provider.Do, step: fsm.Charge, asked: c.asked}
		result := made.perform(t.Context(), &provider.Call{})
		retry, _ := result.(provider.Retry)
		assert.True(t, called != c.want && c.want == (retry.Code == stoodStillCode && errors.Is(failureOf(result), errUncalled)),
			name, "called", called, result)
	}
}

// caller is an executor that only notes that it was called.
type caller func()

func (c caller) Do(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}

func (c caller) Operate(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}

func (c caller) Undo(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}

// What preparing the statements shows is over as soon as it no longer shows. What it does not show comes again, maybe: the
// engine stands still twice as long each time.
func TestStandstill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shown bool
		wants []time.Duration
	}{
		"a column is missing, again and again": {true, []time.Duration{0, 0, 0}},
		"a trigger fails, again and again":     {false, []time.Duration{standMin, 2 * standMin, 4 * standMin}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newSchemaHealth(slog.New(slog.DiscardHandler))
				for _, want := range c.wants {
					f.standStill("move orders", errors.New("undefined column"))
					if c.shown {
						f.failed(ErrNotMigrated)
					}
					f.failed(errors.New("the connection was lost"))
					begin := time.Now()
					for f.goOn() != nil {
						<-time.After(standMin / 10)
					}
					assert.Equal(t, time.Since(begin), want, "stood still for")
				}
			})
		})
	}
}

func TestUnknownExecutors(t *testing.T) {
	t.Parallel()
	for _, name := range []policy.Executor{policy.Ledger, "smoke", ""} {
		e, err := newExecutor(&policy.Step{Executor: name, URL: "http://shop.example/do"}, fsm.Charge, policy.Bounds{}, nil)
		assert.True(t, err != nil, name, "is", e)
	}
}

// TestOutage: it begins with the first failure in a row, goes on after a flicker, and stays over once calls worked. Its
// cause is that of most calls, and then that of the last one.
func TestOutage(t *testing.T) {
	t.Parallel()
	pool := &callPool{cfg: &policy.Step{}}
	pools, o := callPools{byStep: map[poolKey]*callPool{{}: pool}}, &pool.outage
	o.lasts = time.Minute
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	shows := func(now int64, want string, over, quiet int) {
		t.Helper()
		step, silent := orders.ProviderStep{}, 0
		pools.each(func(p *callPool) {
			if p.quiet(at(now)) {
				silent++
			}
		})
		if o.tell(&step); step.FailingSince != nil {
			step.Failure += fmt.Sprintf(" since %d", step.FailingSince.Unix())
		}
		if step.WorkedAt != nil {
			step.Failure += fmt.Sprintf("worked at %d", step.WorkedAt.Unix())
		}
		assert.Equal(t, step.Failure, want, "at", now)
		assert.Equal(t, len(pools.outages(at(now))), over, "outages that are over at", now)
		assert.Equal(t, silent, quiet, "pools that another replica may end an outage of at", now)
	}
	fails := func(code string, seconds ...int64) {
		for _, second := range seconds {
			o.failed(code, at(second))
		}
	}
	fails("HTTP 503", 0)
	shows(40, "HTTP 503", 0, 0) // one is no row
	fails("HTTP 503", 61, 62)
	shows(70, "HTTP 503 since 61", 0, 0) // nothing was known for a minute before
	shows(71, "HTTP 503 since 61", 0, 0) // the breaker is closed
	fails("HTTP 503", 100)
	shows(200, "HTTP 503 since 61", 0, 1)
	pool.learn([]orders.ProviderStep{{WorkedAt: new(at(99))}, {Route: "another", WorkedAt: new(at(150))}, {Host: "another", WorkedAt: new(at(150))}, {}})
	fails("HTTP 503", 150, 201)
	fails("connection refused", 202)
	shows(203, "HTTP 503, now connection refused since 61", 0, 0)
	o.works(at(206))
	shows(206, "worked at 206", 1, 0)
	fails("connection refused", 207)
	shows(208, "HTTP 503, now connection refused since 61", 0, 0)
	for range flickerMost {
		o.works(at(210))
	}
	fails("timeout", 212)
	shows(213, "timeout", 1, 0)
	o.begin()
	shows(213, "timeout since 212", 1, 0)
	o.works(at(214))
	fails("timeout", 225)
	o.begin()
	shows(225, "timeout since 225", 2, 0) // calls worked for 10 s
	pool.learn([]orders.ProviderStep{{WorkedAt: new(at(240))}})
	shows(240, "worked at 240", 3, 0) // at another replica
}
