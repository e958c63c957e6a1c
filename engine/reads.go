package engine

import (
	"context"
	"errors"
	"time"

	"pawl/db"
	"pawl/orders"
)

// untilKnown repeats a read until it succeeds; nil when the engine stops first. The one error
// it returns is that of a statement that can't run on the schema (db.SchemaMismatch).
func untilKnown[T any](e *Engine, what string, read func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		rows, err := read()
		if err == nil || db.SchemaMismatch(err) {
			return rows, err
		}
		if e.ctx.Err() != nil {
			return nil, nil //nolint:nilerr // callers look at the engine's context
		}
		if try%20 == 0 {
			e.log.Warn("database does not answer", "statement", what, "tries", try+1, "error", err)
		}
		e.backOff(try)
	}
}

// detached runs do to its end, even if its caller goes: what is written has to be known to this process. A caller
// whose time is up is told that the outcome is not known. The context of do sends no statement for a caller who has gone.
func detached[T any](ctx context.Context, e *Engine, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	e.wg.Go(func() {
		value, err := do(db.WhileWanted(e.ctx, ctx))
		done <- result{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ended(ctx)
	}
}

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

// backOff waits before a statement is sent again: for 5 ms after the first try (0), and for 200 ms at most.
func (e *Engine) backOff(try int) {
	e.pause(min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond))
}

// ended names the end of a wait during which the order did not become known.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return orders.ErrUnavailable
}
