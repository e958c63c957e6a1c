package engine

import (
	"context"
	"time"

	"pawl/db"
)

// pause waits for about d, or until the engine stops.
func (e *Engine) pause(d time.Duration) { db.Sleep(e.ctx, d) }

// lastsFor waits for about d, and reports whether the engine still runs after that.
func (e *Engine) lastsFor(d time.Duration) bool {
	e.pause(d)
	return !e.stopping.Load() && e.ctx.Err() == nil
}

// every does something again and again until the engine stops, at this interval.
func (e *Engine) every(interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// wake has a loop go on. Several nudges before it does are one.
type wake chan struct{}

func newWake() wake { return make(wake, 1) }

func (w wake) nudge() {
	select {
	case w <- struct{}{}:
	default: // it is about to
	}
}

// heard waits for a nudge, and reports whether there was one before ctx ended.
func (w wake) heard(ctx context.Context) bool {
	select {
	case <-w:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// backOff waits before a statement is sent again: for 5 ms after the first try (0), and for 200 ms at most.
func (e *Engine) backOff(try int) {
	e.pause(min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond))
}
