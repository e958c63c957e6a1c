package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"pawl/db"
	"pawl/orders"
)

// reading is what the database's clock said, and the moment it was heard here. The second
// has a monotonic reading, so the wall clock of this machine may be set to anything
// meanwhile: only the time that has passed counts.
type reading struct{ database, heard time.Time }

func (r *reading) now() time.Time { return r.database.Add(time.Since(r.heard)) }

// Now is the database's time as this process knows it: not ahead of it, and behind it by
// what a reply takes. A machine that slept is behind by its sleep until the next reply,
// because monotonic clocks stand still meanwhile. So nothing is sent by this time alone: see
// call.keyExpired.
func (e *Engine) Now() time.Time { return e.now() }

func (e *Engine) now() time.Time {
	if r := e.clock.Load(); r != nil {
		return r.now()
	}
	return time.Now() // the database has not answered once: there is no order to decide about yet
}

// tick notes the database's clock, which was just read. It may have gone back, after a
// failover.
func (e *Engine) tick(database time.Time) { e.clock.Store(&reading{database, time.Now()}) }

// tickOn notes the time of a statement that may have waited for a lock since it read it.
// That one can only say that it is later than we knew.
func (e *Engine) tickOn(database time.Time) {
	known := e.clock.Load()
	if known == nil || database.After(known.now()) {
		e.clock.CompareAndSwap(known, &reading{database, time.Now()})
	}
}

// readClock asks the database for its time before anything is decided by it.
func (e *Engine) readClock() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	floor, err := e.query.LeasesDueFloor(ctx)
	if err != nil {
		e.log.Warn("read the clock of the database", "error", err)
		return
	}
	e.tick(floor.Add(dueFloor))
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

// ended names the end of a wait during which the order did not become known.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return orders.ErrUnavailable
}

// or is what a column holds, and the zero value where it holds nothing.
func or[T any](column *T) (value T) {
	if column != nil {
		value = *column
	}
	return value
}

// lastLook is how long the read of an order may take for a caller whose time is up.
const lastLook = 2 * time.Second

// readLimit bounds the reads for a caller who has all the time in the world.
const readLimit = 30 * time.Second

// answering bounds the reads that a caller is answered from: as long as he waits, and a moment after that. A verb that is
// written is not told as unavailable to somebody who has the time to hear of it.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := readLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(time.Until(deadline), 0) + lastLook
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

func number(n *int32) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(int(*n))
}
