package engine

import (
	"context"
	"maps"
	"slices"
	"sync"

	"pawl/db"
)

// concurrencyLimiter lets as many orders with one key run at a time as
// their limit allows. The permits in use are counted from the orders themselves, so no counter can
// drift. A grant compares and sets the version of the key's row, so two replicas never give the
// same permit twice. When an order ends and frees a permit, its key is asked for here; what is missed
// is found by the sweep.
type concurrencyLimiter struct {
	e    *Engine
	mu   sync.Mutex
	keys map[string]bool
	wake wake
}

func newConcurrencyLimiter(e *Engine) *concurrencyLimiter {
	return &concurrencyLimiter{e: e, keys: map[string]bool{}, wake: newWake()}
}

// ask says that a permit of this key may be free, or that an order may wait for one.
func (l *concurrencyLimiter) ask(key string) {
	l.mu.Lock()
	l.keys[key] = true
	l.mu.Unlock()
	l.wake.nudge()
}

func (l *concurrencyLimiter) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := slices.Collect(maps.Keys(l.keys))
	clear(l.keys)
	return keys
}

func (l *concurrencyLimiter) loop(ctx context.Context) {
	for l.wake.heard(ctx) {
		for _, key := range l.take() {
			if ctx.Err() == nil && !l.e.stopping.Load() {
				l.grant(key)
			}
		}
	}
}

// permitsAtOnce is how many orders of one key are granted by one statement.
const permitsAtOnce = 100

// grant gives the free permits of a key to the orders that came first.
func (l *concurrencyLimiter) grant(key string) {
	e := l.e
	rows, err := e.query.ConcurrencyRead(e.ctx, db.ConcurrencyReadParams{Key: key, Most: permitsAtOnce})
	if err != nil {
		e.log.Warn("look for free concurrency permits", "key", key, "error", err)
		return // the sweep asks again
	}
	next := e.nextPermitted(rows)
	if len(next) == 0 {
		return
	}
	granted, err := e.query.ConcurrencyGrant(e.ctx, db.ConcurrencyGrantParams{
		Key: key, Version: rows[0].Version, OrderNos: next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
	})
	if err != nil {
		e.unknown("give concurrency permits", err) // orders that got a permit name us as owner, and come due when their lease ends
		return
	}
	if len(granted) < len(next) {
		l.ask(key) // another replica gave some meanwhile
	}
	e.driveClaimed(writtenOrders(granted))
}

// nextPermitted picks those that may start, each by the limit of its own policy. One whose policy is not known here
// starts alone: no policy has a lower limit.
func (e *Engine) nextPermitted(rows []db.ConcurrencyReadRow) (orderNos []int64) {
	for _, row := range rows {
		limit := 1
		if p, _ := e.policies.byVersion(&row.Policy); p != nil && p.Concurrency != nil {
			limit = p.Concurrency.Limit
		}
		if int(row.UnderWay)+len(orderNos) >= limit {
			break
		}
		orderNos = append(orderNos, row.OrderNo)
	}
	return orderNos
}
