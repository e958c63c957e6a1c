package engine

import (
	"time"
)

const (
	permitsInterval = 10 * time.Second // between looks for permits that a process that died did not give
	purgeInterval   = time.Minute      // between looks for idempotency keys that are old, when the last one found few
	expiredMost     = 1000
	keysMost        = 1000
	purgedMost      = 2000
)

// timerLoop does what the clock asks for: deadlines, side calls, permits that a process that died was
// about to give, and keys that nobody will use again.
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

// startDue looks for what is due. Side calls have loops of their own.
func (e *Engine) startDue() {
	due, err := e.query.TimersDue(e.ctx)
	if err != nil {
		e.log.Warn("look for what is due", "error", err)
		return
	}
	if due.LateUndos {
		e.lateUndos.nudge()
	}
	if due.Refunds {
		e.refunds.nudge()
	}
	if due.Deadlines {
		e.expire()
	}
}

// expire asks orders to stop whose time is up. Those that nobody drives come due by it.
func (e *Engine) expire() {
	rows, err := e.query.OrdersExpired(e.ctx, expiredMost)
	if err != nil {
		e.log.Warn("look for expired orders", "error", err)
	}
	e.Stats.Expired.Add(int64(len(rows)))
}

// askForPermits finds keys of which nobody has given the free permits.
func (e *Engine) askForPermits() {
	keys, err := e.query.ConcurrencyKeysQueued(e.ctx, keysMost)
	if err != nil {
		e.log.Warn("look for queued orders", "error", err)
	}
	for _, key := range keys {
		e.limiter.ask(key)
	}
}
