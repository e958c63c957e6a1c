package engine

import (
	"slices"
	"sync"
	"time"
)

// busyItems are items whose stock row stayed locked when a confirmation from outside was to
// be recorded as a sale. Until the row is free their orders are recorded by themselves,
// item by item, so that nobody else waits.
type busyItems struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// busyFor is how long after a try in vain the orders of an item go by themselves.
const busyFor = 2 * time.Second

func (b *busyItems) mark(item string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = map[string]time.Time{}
	}
	b.until[item] = time.Now().Add(busyFor)
}

func (b *busyItems) has(item string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, marked := b.until[item]
	if marked && time.Now().After(until) {
		delete(b.until, item)
		return false
	}
	return marked
}

func (b *busyItems) any() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.until) > 0
}

// stockBusy takes a set that waited for a stock row in vain.
func (e *Engine) stockBusy(set []*run) {
	again := slices.Clone(set)
	single := !slices.ContainsFunc(again, func(r *run) bool { return r.order.Order.Item != again[0].order.Order.Item })
	if single {
		e.busy.mark(again[0].order.Order.Item)
		e.renew(numbersOf(again)) // the next try locks these rows again for most of the time
	}
	time.AfterFunc(slowPause, func() { e.recordsSlow.add(again...) })
}

// divertBusy sends what would wait for a locked stock row to the slow line.
func (e *Engine) divertBusy(set []*run) []*run {
	if !e.busy.any() {
		return set
	}
	var fast []*run
	for _, r := range set {
		if e.busy.has(r.order.Order.Item) {
			e.recordsSlow.add(r)
		} else {
			fast = append(fast, r)
		}
	}
	return fast
}

// recordSlowly is the flush of the slow line: items wait for each other, and for nobody else.
func (e *Engine) recordSlowly(set []*run) {
	for _, ofItem := range groupBy(set, func(r *run) string { return r.order.Order.Item }) {
		e.recordGroups(ofItem)
	}
}
