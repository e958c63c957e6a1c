package engine

import (
	"context"
	"time"
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
