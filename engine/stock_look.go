package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// stockLook is what this replica has seen of the stock, so that an order that can't be served now is not charged by a
// provider first: a charge and its refund cost fees. It reserves nothing, and guarantees nothing: orders whose charges are
// under way at the same moment may still find the stock gone, and are undone.
type stockLook struct {
	mu    sync.Mutex
	items map[string]seenStock
}

// seenStock is the stock of an item. available is negative if it is not tracked.
type seenStock struct {
	available int64
	at        time.Time
}

const (
	stockFor     = 10 * time.Millisecond // how long the stock of a tracked item is good
	untrackedFor = 5 * time.Second       // how long an item counts as untracked, which it nearly always remains
	seenMost     = 10_000                // items that are kept
)

const untracked = -1

// outOfStock is the failure code of an order whose item was sold out before its charge.
const outOfStock = "out_of_stock"

// looksAtStock reports whether orders of a policy are looked at: their charge costs something, and the ledger reserves.
func looksAtStock(p *policy.Policy) bool {
	return p != nil && p.Charge.Executor.Remote() && !p.Reserve.Executor.Remote()
}

// divideByStock divides orders into those that could not be served now, and the others. It reads what it has not seen just
// before, in one statement; if the database does not answer, all could be served.
func (e *remote) divideByStock(runs []*run) (short, others []*run) {
	wanted, all := make(map[*run]map[string]int64, len(runs)), map[string]bool{}
	for _, r := range runs {
		wanted[r] = r.units()
		for item := range wanted[r] {
			all[item] = true
		}
	}
	seen := e.stock.of(slices.Collect(maps.Keys(all)), e.readStock)
	return divide(runs, func(r *run) bool {
		for item, units := range wanted[r] {
			if stock, known := seen[item]; known && stock.available != untracked && stock.available < units {
				r.soldOut = item
				return true
			}
		}
		return false
	})
}

// units are the units of each item of an order, which may not be stored yet.
func (r *run) units() map[string]int64 {
	lines := r.order.Lines
	if lines == nil {
		lines = []byte(r.input.Lines)
	}
	return orders.UnitsOf(cmp.Or(r.order.Item, r.input.Item), cmp.Or(r.order.Quantity, r.input.Quantity, 1), lines)
}

// of returns the stock of items, of those that are known.
func (l *stockLook) of(items []string, read func([]string) ([]db.InventoryLookRow, error)) map[string]seenStock {
	found, missing := map[string]seenStock{}, []string(nil)
	now := time.Now()
	l.mu.Lock()
	for _, item := range items {
		stock, known := l.items[item]
		good := stockFor
		if stock.available == untracked {
			good = untrackedFor
		}
		if known && now.Sub(stock.at) < good {
			found[item] = stock
		} else {
			missing = append(missing, item)
		}
	}
	l.mu.Unlock()
	if len(missing) == 0 {
		return found
	}
	rows, err := read(missing)
	if err != nil {
		return found
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.items == nil || len(l.items) > seenMost {
		l.items = map[string]seenStock{}
	}
	for _, item := range missing {
		found[item] = seenStock{untracked, now}
	}
	for _, row := range rows {
		found[row.Item] = seenStock{row.Available, now}
	}
	for _, item := range missing {
		l.items[item] = found[item]
	}
	return found
}

func (e *remote) readStock(items []string) ([]db.InventoryLookRow, error) {
	rows, err := e.query.InventoryLook(e.ctx, items)
	if err != nil {
		e.log.Warn("look at the stock", "error", err)
	}
	return rows, err
}

// beginLooking is beginCalls, after a look at the stock before the first call of a charge.
func (e *remote) beginLooking(key beginKey, runs []*run) []*run {
	if key.state != fsm.Charging || key.operation != provider.Do {
		return e.beginCalls(key, runs)
	}
	first, others := divide(runs, e.looksFirst)
	if len(first) == 0 {
		return e.beginCalls(key, runs)
	}
	short, served := e.divideByStock(first)
	for _, r := range short {
		pool := r.call.pool
		dropCalls(r)
		r.next = r.withoutCall(pool, provider.Refused{Code: outOfStock, Detail: provider.Text("an item was sold out before the charge: " + r.soldOut)})
	}
	if rest := append(served, others...); len(rest) > 0 {
		e.beginCalls(key, rest)
	}
	return runs
}

// looksFirst reports whether the call would be the first one of the charge, in the order's generation.
func (e *remote) looksFirst(r *run) bool {
	o := &r.order
	p, _ := e.policies.byVersion(o.Policy)
	return looksAtStock(p) && o.InDoubtSince == nil && o.Retries == nil && !r.call.voids(o)
}
