package engine

import (
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
)

const (
	claimMost     = 500         // orders per scan
	sweepInterval = time.Minute // between scans of everything that is due, however old
	sweepTimes    = 10          // intervals of recovery between them while an order is overdue, so that it is known when none is
)

// recoverLoop claims orders that are due and have no driver, because a replica died or because a wait has ended. It
// needs no leader: the replica that raises the fence drives the order.
func (e *Engine) recoverLoop() {
	var floor, swept time.Time
	for e.lastsFor(e.cfg.RecoveryInterval) {
		every := sweepInterval
		if e.overdue.Load().Overdue > 0 {
			every = min(every, sweepTimes*e.cfg.RecoveryInterval)
		}
		if time.Since(swept) >= every {
			floor = time.Time{} // from the beginning
		}
		next, err := e.recoverFrom(floor)
		if err != nil {
			e.log.Warn("look for due orders", "error", err)
			continue
		}
		if swept.IsZero() || next.Before(floor) {
			n, err := e.query.ReservationsShorten(e.ctx, shortenMost)
			e.noteShortened("reservations", n, err)
		}
		if floor.IsZero() && !next.IsZero() {
			swept = time.Now()
		}
		floor = next
	}
}

// recoverFrom claims and drives what has become due since floor. It returns the floor of the next scan, a little before
// this one began, so that the next few scans find orders that were locked. The sweep finds the rest.
func (e *Engine) recoverFrom(floor time.Time) (next time.Time, err error) {
	if unfit := e.schemaHealth.still.Load() && e.fit(e.ctx) != nil; unfit || e.overloaded(nil) {
		return floor, nil
	}
	if next, err = e.query.LeasesDueFloor(e.ctx); err != nil {
		return floor, err
	}
	e.tick(next.Add(dueFloor))
	if next.Before(floor) {
		floor = time.Time{} // the clock was set back, so new due times may be before the floor
	}
	if floor.IsZero() {
		e.shortenWaits()
	}
	for from := floor; !e.stopping.Load(); {
		rows, err := e.query.LeasesDue(e.ctx, db.LeasesDueParams{Floor: from, Most: claimMost})
		if err != nil {
			return floor, err
		}
		var due []int64
		for _, row := range rows {
			if _, known := e.policies.byVersion(row.Policy); !known {
				e.Stats.UnknownPolicy.Add(1) // left to a newer replica
				continue
			}
			if !e.runs.owns(row.OrderNo) { // our own orders are renewed, not claimed
				due = append(due, row.OrderNo)
			}
		}
		claimed, n := e.claim(due)
		if e.takeOvers.note(rows, claimed, e.now()) {
			e.reportNow.nudge()
		}
		if from.IsZero() {
			e.noteOverdue(rows)
		}
		e.dispatch(claimed)
		switch {
		case len(rows) < claimMost:
			return next, nil
		case e.overloaded(nil):
			return floor, nil
		case n == 0: // all are locked: continue after them
			from = rows[len(rows)-1].DueAt
		}
	}
	return floor, nil
}

// shortenWaits shortens leases and waits that are longer than is possible because the clock of the database was set
// back after they were written.
func (e *Engine) shortenWaits() {
	longest := e.longestWaits()
	params := db.LeasesShortenParams{Policies: e.policies.versions(), Most: shortenMost}
	for hold, wait := range longest {
		params.Holds, params.Seconds = append(params.Holds, hold), append(params.Seconds, wait.Seconds())
	}
	rows, err := e.query.LeasesShorten(e.ctx, params)
	e.noteShortened("leases and waits", int64(len(rows)), err)
	n, err := e.query.SideCallsShorten(e.ctx, max(longest[driven], longestSidePause).Seconds())
	e.noteShortened("side calls", n, err)
}

func (e *Engine) noteShortened(what string, n int64, err error) {
	switch {
	case err != nil:
		e.log.Warn("shorten leases and waits", "what", what, "error", err)
	case n > 0:
		e.log.Warn("shortened leases or waits: the clock of the database was set back", "what", what, "count", n)
	}
}

const (
	driven      = "" // not on hold, but leased
	shortenMost = 10_000
)

// longestWaits are the longest waits under the known policies, by hold.
func (e *Engine) longestWaits() map[string]time.Duration {
	known := e.policies.now.Load().byVersion
	longest := map[string]time.Duration{driven: e.cfg.Lease}
	atLeast := func(hold string, wait time.Duration) { longest[hold] = max(longest[hold], wait) }
	for _, p := range known {
		for _, place := range p.Places() {
			step := p.Step(place.Step, place.Route)
			if !step.Executor.Remote() {
				continue
			}
			atLeast(driven, step.Timeout+leaseMargin)
			atLeast(fsm.HoldRetry, max(step.Retry.Budget, step.Retry.Cap, step.Breaker.Open)+step.Retry.Cap) // see undecided.again
			atLeast(fsm.HoldCallback, step.CallbackTimeout)
		}
		for _, rule := range p.Approval {
			atLeast(fsm.HoldApproval, rule.Timeout)
		}
	}
	return longest
}

// noteOverdue records the most overdue order that this replica did not take up, for the metrics. They don't search for
// it, because under load the index begins with many dead entries. Orders that it drives do not count: after a pause, such
// as that of its machine, many are long due, until the first scan claims them.
func (e *Engine) noteOverdue(rows []db.LeasesDueRow) {
	first := &orders.Backlog{}
	if i := slices.IndexFunc(rows, func(row db.LeasesDueRow) bool { return !e.runs.owns(row.OrderNo) }); i >= 0 {
		first.Oldest, first.Overdue = rows[i].OrderNo, max(e.now().Sub(rows[i].DueAt), 0)
	}
	e.overdue.Store(first)
}

// Backlog returns what this replica knows about unfinished orders of all replicas.
func (e *Engine) Backlog() orders.Backlog {
	b := *e.overdue.Load()
	b.At, b.Pooled = e.now(), e.pool.Pooled()
	if own := e.runs.oldest(); b.Oldest == 0 || own != 0 && own < b.Oldest {
		b.Oldest = own
	}
	return b
}

const (
	permitsInterval = 10 * time.Second // between scans for permits that a process did not grant before it died
	purgeInterval   = time.Minute      // between purges of old idempotency keys, when the last one found few
	expiredMost     = 1000
	keysMost        = 1000
	purgedMost      = 2000
)

// timerLoop does what depends on the clock: deadlines, side calls, permits that a process did not grant before it died,
// and the purge of idempotency keys.
func (e *Engine) timerLoop() {
	var swept, purged time.Time
	for e.lastsFor(e.cfg.RecoveryInterval) {
		e.startDue()
		if time.Since(swept) >= permitsInterval {
			e.askForPermits()
			swept = time.Now()
		}
		if time.Since(purged) >= purgeInterval && !e.purgeKeys() {
			purged = time.Now()
		}
	}
}

// startDue starts what is due. Side calls have loops of their own.
func (e *Engine) startDue() {
	due, err := e.query.TimersDue(e.ctx)
	if err != nil {
		e.log.Warn("look for what is due", "error", err)
		return
	}
	if due.LateUndos {
		e.lateUndos.nudge()
	}
	if due.ChargeOperations {
		e.chargeOperations.nudge()
	}
	if due.Authorizations {
		e.endAuthorizations()
	}
	if due.Deadlines {
		e.expire()
	}
}

// expire requests a stop of orders whose deadline has passed. Those without a driver become due.
func (e *Engine) expire() {
	rows, err := e.query.OrdersExpired(e.ctx, expiredMost)
	if err != nil {
		e.log.Warn("look for expired orders", "error", err)
	}
	e.Stats.Expired.Add(int64(len(rows)))
}

// endAuthorizations warns of authorizations that are about to end, and has the provider asked about those that should
// have ended.
func (e *Engine) endAuthorizations() {
	if _, err := e.query.AuthorizationsEnding(e.ctx, expiredMost); err != nil {
		e.log.Warn("look for authorizations that end", "error", err)
	}
	e.chargeOperations.nudge()
}

// askForPermits finds keys with free permits that were not granted.
func (e *Engine) askForPermits() {
	keys, err := e.query.ConcurrencyKeysQueued(e.ctx, keysMost)
	if err != nil {
		e.log.Warn("look for queued orders", "error", err)
	}
	for _, key := range keys {
		e.limiter.ask(key)
	}
}

// purgeKeys removes some idempotency keys that are older than 30 days, and reports whether there may be more.
func (e *core) purgeKeys() (more bool) {
	n, err := e.query.IdempotencyKeysPurge(e.ctx, purgedMost)
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("purge idempotency keys", "error", err)
	}
	return err == nil && n == purgedMost
}
