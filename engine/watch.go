package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/orders"
)

// watcher waits for orders that other replicas drive, and for those that callers only look at. One
// statement asks for all of them, however many callers wait: after 5 ms, then in
// growing pauses up to 250 ms. When the lease of a run's order ends it takes the order over.
type watcher struct {
	engine *Engine
	mu     sync.Mutex
	runs   map[int64]*run
	wake   wake

	onlookers map[int64][]*onlooker // by the number of their order
	watched   atomic.Int32          // orders that have onlookers

	soonest time.Duration // the shortest pause, which is longer where a look takes long; the loop's own
}

const (
	watchSoonest = 5 * time.Millisecond
	watchLatest  = 250 * time.Millisecond
)

func newWatcher(e *Engine) *watcher {
	return &watcher{engine: e, runs: map[int64]*run{}, onlookers: map[int64][]*onlooker{}, soonest: watchSoonest, wake: newWake()}
}

func (w *watcher) add(runs []*run) {
	if !w.keep(runs) {
		w.engine.finish(orders.ErrStopping, runs...)
		return
	}
	w.wake.nudge()
}

// keep reports false when the engine is stopping. It checks that under the lock that dropAll
// takes: otherwise a run could be added after dropAll, and its callers would wait for ever.
func (w *watcher) keep(runs []*run) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.engine.stopping.Load() {
		return false
	}
	for _, r := range runs {
		w.runs[r.no()] = r
	}
	return true
}

// take removes the runs from the watch; the caller holds those returned.
func (w *watcher) take(orderNos []int64) []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*run
	for _, no := range orderNos {
		if r, ok := w.runs[no]; ok {
			delete(w.runs, no)
			out = append(out, r)
		}
	}
	return out
}

// numbers are the orders of the runs, and those that have onlookers.
func (w *watcher) numbers() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.AppendSeq(make([]int64, 0, len(w.runs)+len(w.onlookers)), maps.Keys(w.runs))
	for no := range w.onlookers {
		if _, ok := w.runs[no]; !ok {
			out = append(out, no)
		}
	}
	return out
}

// idle reports whether nobody waits for the order any more. Without it, an order that is held
// would stay in memory for as long as it is held, which may be hours.
func (w *watcher) idle(orderNo int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[orderNo]
	return r != nil && r.waiters.Load() == 0
}

// dropAll answers the callers of watched orders. Other replicas drive these orders, so there is
// nothing else to do for them.
func (w *watcher) dropAll() {
	w.engine.finish(orders.ErrStopping, w.take(w.numbers())...)
	w.dismiss()
}

func (w *watcher) loop(ctx context.Context) {
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
		again := w.once()
		w.soonest = min(max(10*time.Since(began), watchSoonest), watchLatest)
		if again {
			pause = w.soonest
		}
	}
}

// wait ends after the pause, or soon after a newcomer has come. A second newcomer
// changes nothing: if each began the pause anew, a stream of them would never let it end.
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

// once looks at all watched orders, and reads those that are not waited for any longer. It reports whether it took orders
// over; the next round then finds that they are ours.
func (w *watcher) once() bool {
	e := w.engine
	numbers := w.numbers()
	rows, err := e.query.OrdersWatched(e.ctx, numbers)
	if err != nil {
		return false // the next look will do
	}
	gone := map[int64]bool{} // until its row is seen
	for _, no := range numbers {
		gone[no] = true
	}
	var changed, shown, due []int64
	for _, row := range rows {
		delete(gone, row.OrderNo)
		switch {
		case row.Ended, row.Owner != nil && *row.Owner == e.owner, row.Held && w.idle(row.OrderNo):
			changed = append(changed, row.OrderNo)
		case row.Due:
			due = append(due, row.OrderNo)
		}
		if w.wanted(row.OrderNo, row.Seq, row.Final) {
			shown = append(shown, row.OrderNo)
		}
	}
	changed, shown = slices.AppendSeq(changed, maps.Keys(gone)), slices.AppendSeq(shown, maps.Keys(gone))
	w.read(w.take(changed), shown)
	return e.claim(w.ofRuns(due)) > 0
}

// read reads orders for their runs and for their onlookers, in one statement.
func (w *watcher) read(runs []*run, shown []int64) {
	e := w.engine
	numbers := append(numbersOf(runs), shown...)
	if len(numbers) == 0 {
		return
	}
	rows, err := e.readUntilKnown(numbers, true)
	e.settleRead(runs, rows, err)
	if err == nil && e.ctx.Err() == nil {
		w.show(shown, rows)
	}
}

// ofRuns leaves out the orders that nobody but onlookers watches: to look at an order does nothing to it.
func (w *watcher) ofRuns(orderNos []int64) []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(orderNos, func(no int64) bool { return w.runs[no] == nil })
}

// onlooker is a caller who waits for an order to change, and does nothing to it.
type onlooker struct {
	orderNo int64
	enough  func(seq int32, final bool) bool
	seen    chan sight // gets what he waits for; closed without it when the engine stops
}

// sight is an order that was read for an onlooker, or why there is none.
type sight struct {
	order orders.Order
	err   error
}

// Await answers with an order as soon as its seq, and whether it is final, are enough for the caller, or when ctx ends: then with what is
// stored. It only looks: the order goes on, or waits, as it would without. Errors: orders.ErrNotFound, orders.ErrUnavailable,
// or that of ctx if it was canceled.
func (e *Engine) Await(ctx context.Context, orderID string, enough func(seq int32, final bool) bool) (orders.Order, error) {
	order, err := e.Orders.Get(ctx, orderID)
	if err != nil || enough(order.Seq, order.Status.Final()) {
		return order, err
	}
	if o := e.watches.join(order.OrderNo, enough); o != nil {
		select {
		case s, ok := <-o.seen:
			if ok {
				return s.order, s.err
			}
		case <-ctx.Done():
			e.watches.forget(o)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled // the caller has gone
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	return e.Orders.Get(short, orderID)
}

// join adds an onlooker; nil when the engine is stopping.
func (w *watcher) join(orderNo int64, enough func(seq int32, final bool) bool) *onlooker {
	o := &onlooker{orderNo, enough, make(chan sight, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.engine.stopping.Load() {
		return nil
	}
	w.onlookers[orderNo] = append(w.onlookers[orderNo], o)
	w.watched.Store(int32(len(w.onlookers)))
	w.wake.nudge()
	return o
}

// forget takes out an onlooker who has left.
func (w *watcher) forget(o *onlooker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keepOnly(o.orderNo, func(other *onlooker) bool { return other != o })
}

// keepOnly leaves some of the onlookers of an order. The caller has the lock.
func (w *watcher) keepOnly(orderNo int64, stays func(*onlooker) bool) {
	left := slices.DeleteFunc(w.onlookers[orderNo], func(o *onlooker) bool { return !stays(o) })
	w.onlookers[orderNo] = left
	if len(left) == 0 {
		delete(w.onlookers, orderNo)
	}
	w.watched.Store(int32(len(w.onlookers)))
}

// dismiss sends all onlookers away.
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

// wanted reports whether somebody waits for the order to be like this.
func (w *watcher) wanted(orderNo int64, seq int32, final bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.onlookers[orderNo], func(o *onlooker) bool { return o.enough(seq, final) })
}

// show hands orders that were read to their onlookers. Those that were not found are gone.
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

// nudge has the watcher look soon if somebody watches an order whose run has ended here.
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
