package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/fsm"
)

// slowLane keeps a locked stock row from stalling the orders of other items. A set that
// waited for the row in vain comes here and is tried item by item; until an item has
// gone through, its orders come here directly. Items in this lane wait for each other,
// half a second each at most; nobody else waits for them. There is one for moves of the
// ledger and one for answers from outside that write the stock row.
type slowLane struct {
	engine *Engine
	line   *line
	try    func(state fsm.State, ofItem []*run, busy func([]*run))
	used   atomic.Bool // nearly always false: one load is all the fast path pays

	mu    sync.Mutex
	items map[string]int // orders that came here since the item was last let go
}

// slowPause is how long an item that is still locked is left alone.
const slowPause = 100 * time.Millisecond

func newSlowLane(e *Engine, most int, try func(fsm.State, []*run, func([]*run))) *slowLane {
	s := &slowLane{engine: e, try: try, items: map[string]int{}}
	s.line = newLine(most, s.flush)
	return s
}

// add takes a set over. It keeps nothing of the slice.
func (s *slowLane) add(set []*run) {
	s.mu.Lock()
	for _, r := range set {
		s.items[r.order.Order.Item]++
	}
	s.used.Store(true)
	s.mu.Unlock()
	s.line.add(set...)
}

// divert takes over the runs whose item is in the lane and returns the others.
func (s *slowLane) divert(runs []*run) []*run {
	if !s.used.Load() {
		return runs
	}
	s.mu.Lock()
	var slow, fast []*run
	for _, r := range runs {
		if item := r.order.Order.Item; s.items[item] > 0 {
			s.items[item]++
			slow = append(slow, r)
		} else {
			fast = append(fast, r)
		}
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

// waitsForStock tells the states whose moves write the stock row of their item.
func waitsForStock(state fsm.State) bool {
	return state == fsm.Reserving || state == fsm.Confirming || state == fsm.Releasing
}

// leave lets the orders of an item go the fast way again.
func (s *slowLane) leave(item string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, item)
	s.used.Store(len(s.items) > 0)
}

// flush moves a set of any states, one statement per item and state. An item stays in
// the lane until its stock row was had: were it let go before, the next order for it
// would stall everybody again.
func (s *slowLane) flush(set []*run) {
	slices.SortStableFunc(set, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.order.Order.Item, b.order.Order.Item), cmp.Compare(a.status(), b.status()))
	})
	for len(set) > 0 {
		item, state := set[0].order.Order.Item, set[0].status()
		n := slices.IndexFunc(set, func(r *run) bool { return r.order.Order.Item != item || r.status() != state })
		if n < 0 {
			n = len(set)
		}
		if s.through(state, set[:n]) && waitsForStock(state) {
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
		// The next try locks these rows again for most of the time, and a renewal
		// leaves out what is locked: now they are free.
		s.engine.renew(numbersOf(again))
		time.AfterFunc(slowPause, func() { s.line.add(again...) })
	})
	return free
}
