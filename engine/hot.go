package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
	"pawl/internal/orders"
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
	lined, hot := divide(hot, func(r *run) bool { return r.order.Lines != nil })
	for _, r := range hot {
		r.hotItem = r.order.Item
	}
	locked, free := h.findLocked(lined)
	hot, others = append(hot, locked...), append(others, free...)
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
	hot, fast := divide(runs, func(r *run) bool { return h.blocked(r) && h.writesStock(r) })
	h.count(hot)
	h.mu.Unlock()
	h.queue.Add(hot...)
	return fast
}

// count counts orders for their items. The caller holds the lock.
func (h *hotItems) count(runs []*run) {
	for _, r := range runs {
		h.items[r.hotItem]++
	}
}

// holds is the number of queued orders of one item of the request.
func (h *hotItems) holds(in *Input) (most int) {
	if !h.used.Load() {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, item := range orders.ItemsOf(in.Item, []byte(in.Lines)) {
		most = max(most, h.items[item])
	}
	return most
}

// blocked reports whether an item of the order is in the queue, and notes which. The caller has the lock.
func (h *hotItems) blocked(r *run) bool {
	for _, item := range orders.ItemsOf(r.order.Item, r.order.Lines) {
		if h.items[item] > 0 {
			r.hotItem = item
			return true
		}
	}
	return false
}

// findLocked asks which of the stock rows that orders with lines need are locked, and divides the orders by that: orders
// of other items must not wait for them. If there is no answer, the orders are tried again.
func (h *hotItems) findLocked(runs []*run) (locked, free []*run) {
	var items []string
	for _, r := range runs {
		items = append(items, orders.ItemsOf("", r.order.Lines)...)
	}
	if len(items) == 0 {
		return nil, runs
	}
	unlocked, err := h.query.InventoryUnlocked(h.ctx, items)
	if err != nil {
		return nil, runs
	}
	return divide(runs, func(r *run) bool {
		for _, item := range orders.ItemsOf("", r.order.Lines) {
			if !slices.Contains(unlocked, item) {
				r.hotItem = item
				return true
			}
		}
		return false
	})
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

func hotKeyOf(r *run) hotKey { return hotKey{r.hotItem, r.status()} }

// tried processes a batch of one item after it was tried, and returns the runs that leave the queue. An item stays
// until a statement got its stock row; otherwise its next order would stall the orders of all items again. Orders with
// lines that met a locked row leave the queue, because it may be that of another item: add finds out.
func (h *hotItems) tried(item string, runs []*run) (others []*run) {
	waiting, others := divide(runs, func(r *run) bool { return r.next == toHot })
	locked, lined := divide(waiting, func(r *run) bool { return r.order.Lines == nil })
	others = append(others, lined...)
	if len(waiting) > 0 {
		// Renew the leases while the rows are free: the next try locks them most of the time, and renewals skip locked rows.
		h.renew(numbersOf(waiting))
	}
	if len(locked) == 0 {
		h.unblock(item)
		return others
	}
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
