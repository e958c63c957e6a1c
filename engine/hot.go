package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
)

// hotItems is the hot-key queue: it keeps a locked stock row from stalling the orders of other items. A batch that met
// a locked stock row is retried here item by item. Until an item has succeeded, all its moves and results come here
// directly. Items in this queue wait for each other, half a second each at most, and no other orders wait for them.
type hotItems struct {
	*remote
	queue *queue
	used  atomic.Bool // nearly always false, so the fast path costs one load

	mu    sync.Mutex
	items map[string]int // items in the queue, with their number of orders
}

// hotPause is the pause before a locked item is tried again.
const hotPause = 100 * time.Millisecond

// add queues a batch that waited too long for a lock. It returns the orders that don't write a stock row, which waited
// for another lock and are retried elsewhere. Here they would never unblock their item, because only an order that gets
// the stock row does.
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

// divert queues the orders whose item is in the queue and whose statement writes its stock row, and returns the others.
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

// count counts orders for their items. The caller holds the lock.
func (h *hotItems) count(runs []*run) {
	for _, r := range runs {
		h.items[r.order.Item]++
	}
}

// holds is the number of queued orders of an item.
func (h *hotItems) holds(item string) int {
	if !h.used.Load() {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.items[item]
}

// writesStock reports whether the next statement of a run writes the stock row of its item.
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

// hotKey groups orders that are tried together.
type hotKey struct {
	item  string
	state fsm.State
}

func hotKeyOf(r *run) hotKey { return hotKey{r.order.Item, r.status()} }

// tried processes a batch of one item after it was tried, and returns the runs that leave the queue. An item stays
// until a statement got its stock row; otherwise its next order would stall the orders of all items again.
func (h *hotItems) tried(item string, runs []*run) (others []*run) {
	locked, others := divide(runs, func(r *run) bool { return r.next == toHot })
	if len(locked) == 0 {
		h.unblock(item)
		return others
	}
	// Renew the leases while the rows are free: the next try locks them most of the time, and renewals skip locked rows.
	h.renew(numbersOf(locked))
	time.AfterFunc(hotPause, func() { h.queue.Add(locked...) })
	return others
}

// unblock removes an item, so that its orders take the fast path again.
func (h *hotItems) unblock(item string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.items, item)
	h.used.Store(len(h.items) > 0)
}
