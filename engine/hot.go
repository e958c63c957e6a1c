package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
)

// hotItems is the hot-key queue: it keeps a locked stock row from stalling the orders of other
// items. A batch whose stock row stayed locked comes here and is tried item by item. Until an
// item has gone through, its orders come here directly, whether the ledger is to move them or a result
// is to be committed. Items in this queue wait for each other, half a second each at most; no other orders wait for them.
type hotItems struct {
	*remote
	queue *queue
	used  atomic.Bool // nearly always false: one load is all the fast path pays

	mu    sync.Mutex
	items map[string]int // items in the queue, with the number of orders that came here since
}

// hotPause is how long an item that is still locked is left alone.
const hotPause = 100 * time.Millisecond

// add takes over a batch that met a lock for too long. It returns the orders that don't write a stock row: they waited for
// another lock, and are tried again elsewhere. In this queue they would never unblock their item, because only an order that
// gets the stock row does.
func (h *hotItems) add(runs []*run) (others []*run) {
	hot, others := divide(runs, h.writesStock)
	if len(hot) > 0 {
		h.mu.Lock()
		h.count(hot)
		h.used.Store(true)
		h.mu.Unlock()
		h.queue.Add(hot...)
	}
	return goTo(toRetry, others...)
}

// divert takes over the orders that wait for the stock row of an item in the queue, and returns the others.
func (h *hotItems) divert(runs []*run) []*run {
	if !h.used.Load() {
		return runs
	}
	h.mu.Lock()
	hot, fast := divide(runs, func(r *run) bool { return h.items[r.order.Item] > 0 && h.writesStock(r) })
	h.count(hot)
	h.mu.Unlock()
	h.queue.Add(hot...)
	return fast
}

// count counts orders for their items. The caller has the lock.
func (h *hotItems) count(runs []*run) {
	for _, r := range runs {
		h.items[r.order.Item]++
	}
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
func (e *remote) writesStock(r *run) bool {
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

// hotKey is what orders have in common that are tried together.
type hotKey struct {
	item  string
	state fsm.State
}

func hotKeyOf(r *run) hotKey { return hotKey{r.order.Item, r.status()} }

// tried goes on after a batch of one item was tried, and returns the runs that are not tried here again. An item stays in the
// queue until a statement got its stock row. If it left before that, its next order would stall the orders of all items again.
func (h *hotItems) tried(item string, runs []*run) (others []*run) {
	locked, others := divide(runs, func(r *run) bool { return r.next == toHot })
	if len(locked) == 0 {
		h.unblock(item)
		return others
	}
	// Renew the leases now, while the rows are free: the next try holds locks on
	// them for most of the time, and a renewal skips rows that are locked.
	h.renew(numbersOf(locked))
	time.AfterFunc(hotPause, func() { h.queue.Add(locked...) })
	return others
}

// unblock lets an item go: its orders go the fast way again.
func (h *hotItems) unblock(item string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.items, item)
	h.used.Store(len(h.items) > 0)
}
