package engine

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/internal/orders"
)

// watcher waits for orders that other replicas drive, and for changes of orders that callers only watch. One
// statement reads all of them, however many callers wait: after 5 ms, then after pauses that grow to 250 ms. When the
// lease of an order with a run ends, the watcher takes the order over.
type watcher struct {
	*core
	mu      sync.Mutex
	watches map[int64]*run // by order number
	wake    wake

	onlookers map[int64][]*onlooker // by order number
	watched   atomic.Int32          // orders that have onlookers

	soonest time.Duration // the shortest pause, longer if a poll takes long; only the loop uses it
}

const (
	watchSoonest = 5 * time.Millisecond
	watchLatest  = 250 * time.Millisecond
)

func newWatcher(e *core) *watcher {
	return &watcher{core: e, watches: map[int64]*run{}, onlookers: map[int64][]*onlooker{}, soonest: watchSoonest, wake: newWake()}
}

// watch waits for orders that other replicas drive, for our callers. It returns the runs if the engine is stopping.
func (w *watcher) watch(runs []*run) []*run {
	for _, r := range runs {
		if w.runs.owns(r.no()) {
			w.Stats.Fenced.Add(1)
		}
		r.markStored()
	}
	w.runs.disown(runs)
	if !w.keep(runs) {
		return endRuns(orders.ErrStopping, runs...)
	}
	w.wake.nudge()
	return nil
}

// keep reports false if the engine is stopping. It checks that under the lock that dropAll takes: otherwise a run
// could be added after dropAll, and its callers would wait forever.
func (w *watcher) keep(runs []*run) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Load() {
		return false
	}
	for _, r := range runs {
		w.watches[r.no()] = r
	}
	return true
}

// take removes runs from the watch, and returns them; the caller is their holder.
func (w *watcher) take(orderNos []int64) []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*run
	for _, no := range orderNos {
		if r, ok := w.watches[no]; ok {
			delete(w.watches, no)
			out = append(out, r)
		}
	}
	return out
}

// numbers are the orders of the runs, and of the onlookers.
func (w *watcher) numbers() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.AppendSeq(make([]int64, 0, len(w.watches)+len(w.onlookers)), maps.Keys(w.watches))
	for no := range w.onlookers {
		if _, ok := w.watches[no]; !ok {
			out = append(out, no)
		}
	}
	return out
}

// idle reports whether no caller waits for the order any more. An order on hold would otherwise stay in memory until
// its hold ends, which may take hours.
func (w *watcher) idle(orderNo int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.watches[orderNo]
	return r != nil && r.waiters.Load() == 0
}

// dropAll ends all watched runs, and dismisses the onlookers. Other replicas drive these orders, so nothing else must
// be done for them.
func (w *watcher) dropAll() []*run {
	w.dismiss()
	return endRuns(orders.ErrStopping, w.take(w.numbers())...)
}

// looks polls the watched orders until ctx ends, and yields the runs that continue here.
func (w *watcher) looks(ctx context.Context) iter.Seq[[]*run] {
	return func(yield func([]*run) bool) {
		pause := w.soonest
		for {
			if len(w.numbers()) == 0 {
				if !w.wake.heard(ctx) {
					return
				}
				pause = w.soonest
			}
			woken, ok := w.wait(ctx, pause)
			if !ok {
				return
			}
			if woken {
				pause = w.soonest
			}
			pause = min(pause*3/2, watchLatest)
			began := time.Now()
			runs, claimed := w.once()
			again := yield(runs)
			w.soonest = min(max(10*time.Since(began), watchSoonest), watchLatest)
			if claimed > 0 {
				pause = w.soonest
			}
			if !again {
				return
			}
		}
	}
}

// wait returns after the pause, or soon after an order was added. Only the first one shortens the pause: otherwise a
// stream of them would never let it end.
func (w *watcher) wait(ctx context.Context, pause time.Duration) (woken, ok bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	wake := w.wake
	for {
		select {
		case <-ctx.Done():
			return woken, false
		case <-wake:
			woken, wake = true, nil
			if pause > w.soonest {
				timer.Reset(w.soonest)
			}
		case <-timer.C:
			return woken, true
		}
	}
}

// once polls all watched orders, reads those that have changed, and takes over those whose lease has ended: the next
// poll finds that they are ours. It returns the runs that continue, and how many orders it took over.
func (w *watcher) once() (runs []*run, claimed int) {
	numbers := w.numbers()
	rows, err := w.query.OrdersWatched(w.ctx, numbers)
	if err != nil {
		return nil, 0 // the next poll tries again
	}
	gone := map[int64]bool{} // until its row is seen
	for _, no := range numbers {
		gone[no] = true
	}
	var changed, shown, due []int64
	for _, row := range rows {
		delete(gone, row.OrderNo)
		switch {
		case row.Ended, row.Owner != nil && *row.Owner == w.owner, row.Held && w.idle(row.OrderNo):
			changed = append(changed, row.OrderNo)
		case row.Due:
			due = append(due, row.OrderNo)
		}
		if w.wanted(row.OrderNo, row.Seq, row.Final) {
			shown = append(shown, row.OrderNo)
		}
	}
	changed, shown = slices.AppendSeq(changed, maps.Keys(gone)), slices.AppendSeq(shown, maps.Keys(gone))
	read := w.read(w.take(changed), shown)
	runs, claimed = w.claim(w.ofRuns(due))
	return append(runs, read...), claimed
}

// read reads orders for their runs and for their onlookers, in one statement.
func (w *watcher) read(runs []*run, shown []int64) []*run {
	numbers := append(numbersOf(runs), shown...)
	if len(numbers) == 0 {
		return nil
	}
	rows, err := w.readUntilKnown(numbers, true)
	runs = w.settleRead(runs, rows, err)
	if err == nil && w.ctx.Err() == nil {
		w.show(shown, rows)
	}
	return runs
}

// ofRuns leaves out the orders that only onlookers watch: watching an order must not change it.
func (w *watcher) ofRuns(orderNos []int64) []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(orderNos, func(no int64) bool { return w.watches[no] == nil })
}

// onlooker is a caller that waits for an order to change, and does nothing to it.
type onlooker struct {
	orderNo int64
	enough  func(seq int32, final bool) bool
	seen    chan sight // gets the order; closed without one if the engine stops
}

// sight is an order that was read for an onlooker, or an error.
type sight struct {
	order orders.Order
	err   error
}

// join adds an onlooker. It is nil if the engine is stopping.
func (w *watcher) join(orderNo int64, enough func(seq int32, final bool) bool) *onlooker {
	o := &onlooker{orderNo, enough, make(chan sight, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Load() {
		return nil
	}
	w.onlookers[orderNo] = append(w.onlookers[orderNo], o)
	w.watched.Store(int32(len(w.onlookers)))
	w.wake.nudge()
	return o
}

// forget removes an onlooker whose caller has left.
func (w *watcher) forget(o *onlooker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keepOnly(o.orderNo, func(other *onlooker) bool { return other != o })
}

// keepOnly removes the onlookers of an order that do not stay. The lock must be held.
func (w *watcher) keepOnly(orderNo int64, stays func(*onlooker) bool) {
	left := slices.DeleteFunc(w.onlookers[orderNo], func(o *onlooker) bool { return !stays(o) })
	w.onlookers[orderNo] = left
	if len(left) == 0 {
		delete(w.onlookers, orderNo)
	}
	w.watched.Store(int32(len(w.onlookers)))
}

// dismiss removes all onlookers.
func (w *watcher) dismiss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range w.onlookers {
		for _, o := range of {
			close(o.seen)
		}
	}
	clear(w.onlookers)
	w.watched.Store(0)
}

// wanted reports whether an onlooker waits for this seq, or for the end.
func (w *watcher) wanted(orderNo int64, seq int32, final bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.onlookers[orderNo], func(o *onlooker) bool { return o.enough(seq, final) })
}

// show sends orders that were read to their onlookers. Orders that were not found are gone.
func (w *watcher) show(orderNos []int64, rows []orders.Order) {
	byNo := make(map[int64]*orders.Order, len(rows))
	for i := range rows {
		byNo[rows[i].OrderNo] = &rows[i]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, no := range orderNos {
		row := byNo[no]
		w.keepOnly(no, func(o *onlooker) bool {
			switch {
			case row == nil:
				o.seen <- sight{err: orders.ErrNotFound}
			case o.enough(row.Seq, row.Status.Final()):
				o.seen <- sight{order: *row}
			default:
				return true
			}
			return false
		})
	}
}

// nudge makes the watcher look soon if an order whose run has ended here has onlookers.
func (w *watcher) nudge(runs []*run) {
	if w.watched.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(runs, func(r *run) bool { return len(w.onlookers[r.no()]) > 0 }) {
		w.wake.nudge()
	}
}
