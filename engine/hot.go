package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
)

// hotItems is the hot-key queue: it keeps a locked stock row from stalling the orders of other
// items. A batch whose stock row stayed locked comes here and is tried item by item. Until an
// item has gone through, its orders come here directly, whether the ledger is to move them or an answer from
// a provider. Items in this queue wait for each other, half a second each at most; no other orders wait for them.
type hotItems struct {
	engine *Engine
	queue  *queue
	used   atomic.Bool // nearly always false: one load is all the fast path pays

	mu    sync.Mutex
	items map[string]int // items in the queue, with the number of orders that came here since
}

// hotPause is how long an item that is still locked is left alone.
const hotPause = 100 * time.Millisecond

// add takes over a batch that met a lock for too long. It keeps nothing of the slice. Runs that
// don't write a stock row waited for another lock, and are tried again elsewhere: in this queue
// they would never unblock their item, because only a run that gets the stock row does.
func (h *hotItems) add(runs []*run) {
	hot, others := divide(runs, h.engine.writesStock)
	if len(others) > 0 {
		h.engine.later(others)
	}
	if len(hot) == 0 {
		return
	}
	h.mu.Lock()
	for _, r := range hot {
		h.items[r.order.Item]++
	}
	h.used.Store(true)
	h.mu.Unlock()
	h.queue.Add(hot...)
}

// divert takes over the runs that wait for the stock row of an item in the queue, and
// returns the others.
func (h *hotItems) divert(runs []*run) []*run {
	if !h.used.Load() {
		return runs
	}
	h.mu.Lock()
	hot, fast := divide(runs, func(r *run) bool { return h.items[r.order.Item] > 0 && h.engine.writesStock(r) })
	for _, r := range hot {
		h.items[r.order.Item]++
	}
	h.mu.Unlock()
	h.queue.Add(hot...)
	return fast
}

// holds is how many orders of the item wait here.
func (h *hotItems) holds(item string) int {
	if !h.used.Load() {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.items[item]
}

// writesStock reports whether what a run waits for writes its item's stock row.
func (e *Engine) writesStock(r *run) bool {
	if r.hasResult() {
		return e.sellsStock(r)
	}
	switch r.status() {
	case fsm.Reserving, fsm.Confirming, fsm.Releasing:
		return true
	default:
		return false
	}
}

// unblock lets an item go: its orders go the fast way again.
func (h *hotItems) unblock(item string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.items, item)
	h.used.Store(len(h.items) > 0)
}

// flush moves a batch of any states, one statement per item and state. An item stays in
// the queue until a statement got its stock row. If it left before that, its next order
// would stall the orders of all items again.
func (h *hotItems) flush(runs []*run) {
	slices.SortStableFunc(runs, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.order.Item, b.order.Item), cmp.Compare(a.status(), b.status()))
	})
	for len(runs) > 0 {
		item, state := runs[0].order.Item, runs[0].status()
		n := slices.IndexFunc(runs, func(r *run) bool { return r.order.Item != item || r.status() != state })
		if n < 0 {
			n = len(runs)
		}
		if h.through(state, runs[:n]) {
			h.unblock(item)
		}
		runs = runs[n:]
	}
}

// through tries orders of one item and state; false when its stock row is still locked,
// and they will be tried again.
func (h *hotItems) through(state fsm.State, runs []*run) bool {
	free := true
	results, others := divide(runs, (*run).hasResult)
	busy := func(locked []*run) {
		free = false
		again := slices.Clone(locked)
		// Renew the leases now, while the rows are free: the next try holds locks on
		// them for most of the time, and a renewal skips rows that are locked.
		h.engine.renew(numbersOf(again))
		time.AfterFunc(hotPause, func() { h.queue.Add(again...) })
	}
	h.engine.commitResults(results, busy)
	h.engine.moveOut(state, others, busy)
	return free
}
