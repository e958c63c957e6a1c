package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
)

// slowLane is the hot-key queue: it keeps a locked stock row from stalling the orders of other
// items. A set whose stock row stayed locked comes here and is tried item by item. Until an
// item has gone through, its orders come here directly. Items in this queue wait for each
// other, half a second each at most; no other orders wait for them. There is one queue for moves
// of the ledger, and one for answers from outside that write the stock row.
type slowLane struct {
	engine *Engine
	line   *line
	stock  func(*run) bool // whether what a run waits for writes the stock row
	try    func(state fsm.State, ofItem []*run, busy func([]*run))
	used   atomic.Bool // nearly always false: one load is all the fast path pays

	mu    sync.Mutex
	items map[string]int // items in the queue, with the number of orders that came here since
}

// slowPause is how long an item that is still locked is left alone.
const slowPause = 100 * time.Millisecond

func newSlowLane(e *Engine, most int, stock func(*run) bool, try func(fsm.State, []*run, func([]*run))) *slowLane {
	s := &slowLane{engine: e, stock: stock, try: try, items: map[string]int{}}
	s.line = newLine(most, s.flush)
	s.line.apart = true
	return s
}

// add takes over a set that met a lock for too long. It keeps nothing of the slice. Runs that
// don't write a stock row waited for another lock, and are tried again elsewhere: in this queue
// they would never unblock their item, because only a run that gets the stock row does.
func (s *slowLane) add(set []*run) {
	slow, others := divide(set, s.stock)
	if len(others) > 0 {
		s.engine.later(others)
	}
	if len(slow) == 0 {
		return
	}
	s.mu.Lock()
	for _, r := range slow {
		s.items[r.order.Item]++
	}
	s.used.Store(true)
	s.mu.Unlock()
	s.line.add(slow...)
}

// divide keeps the order on both sides.
func divide(runs []*run, first func(*run) bool) (yes, no []*run) {
	for _, r := range runs {
		if first(r) {
			yes = append(yes, r)
		} else {
			no = append(no, r)
		}
	}
	return yes, no
}

// divert takes over the runs that wait for the stock row of an item in the lane, and
// returns the others.
func (s *slowLane) divert(runs []*run) []*run {
	if !s.used.Load() {
		return runs
	}
	s.mu.Lock()
	slow, fast := divide(runs, func(r *run) bool { return s.items[r.order.Item] > 0 && s.stock(r) })
	for _, r := range slow {
		s.items[r.order.Item]++
	}
	s.mu.Unlock()
	s.line.add(slow...)
	return fast
}

// holds is how many orders of the item wait here.
func (s *slowLane) holds(item string) int {
	if !s.used.Load() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[item]
}

// waitsForStock reports whether the next move of a run in the ledger writes its item's stock row.
func waitsForStock(r *run) bool {
	switch r.status() {
	case fsm.Reserving, fsm.Confirming, fsm.Releasing:
		return true
	default:
		return false
	}
}

// sellsStock reports whether an answer from outside writes it: the confirmation of what the
// ledger has reserved does.
func (e *Engine) sellsStock(r *run) bool {
	key := e.recordKey(r)
	return key.outcome == fsm.Done && key.state.Step() == fsm.Confirm && key.sells
}

// leave unblocks an item: its orders go the fast way again.
func (s *slowLane) leave(item string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, item)
	s.used.Store(len(s.items) > 0)
}

// flush moves a set of any states, one statement per item and state. An item stays in
// the queue until a statement got its stock row. If it left before that, its next order
// would stall the orders of all items again.
func (s *slowLane) flush(set []*run) {
	slices.SortStableFunc(set, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.order.Item, b.order.Item), cmp.Compare(a.status(), b.status()))
	})
	for len(set) > 0 {
		item, state := set[0].order.Item, set[0].status()
		n := slices.IndexFunc(set, func(r *run) bool { return r.order.Item != item || r.status() != state })
		if n < 0 {
			n = len(set)
		}
		if s.through(state, set[:n]) {
			s.leave(item)
		}
		set = set[n:]
	}
}

// through tries orders of one item and state; false when its stock row is still locked,
// and they will be tried again.
func (s *slowLane) through(state fsm.State, runs []*run) bool {
	free := true
	s.try(state, runs, func(set []*run) {
		free = false
		again := slices.Clone(set)
		// Renew the leases now, while the rows are free: the next attempt holds locks on
		// them for most of the time, and a renewal skips rows that are locked.
		s.engine.renew(numbersOf(again))
		time.AfterFunc(slowPause, func() { s.line.add(again...) })
	})
	return free
}
