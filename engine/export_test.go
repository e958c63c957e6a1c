package engine

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Needed are the tables, views and functions that Ready looks at.
func Needed() []string { return slices.Sorted(maps.Keys(needed)) }

// Admitting is how many orders wait to be admitted.
func (e *Engine) Admitting() int { return e.admits.Len() }

// WakeWatcher does what a newcomer among the watched orders does.
func (e *Engine) WakeWatcher() { e.watches.wake.nudge() }

// Onlookers is how many callers wait for an order without doing anything to it.
func (e *Engine) Onlookers() (n int) {
	e.watches.mu.Lock()
	defer e.watches.mu.Unlock()
	for _, of := range e.watches.onlookers {
		n += len(of)
	}
	return n
}

// Sleeps does to the engine's clock what the sleep of its machine does.
func (e *Engine) Sleeps(d time.Duration) { e.tick(e.now().Add(-d)) }

// UndoLate looks for late effects, as their loop does now and then.
func (e *Engine) UndoLate() {
	for _, undo := range e.claimLateUndos(sideCallsAtOnce) {
		undo()
	}
}

// LoadPolicies looks for new policies, as the timers do now and then.
func (e *Engine) LoadPolicies(ctx context.Context) error { return e.policies.load(ctx) }
