package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"pawl/orders"
)

// watcher waits for orders that other replicas drive, on behalf of our callers. One
// statement asks for all of them, however many callers wait: after 5 ms, then in
// growing pauses up to 250 ms. When a lease ends it takes the order over.
type watcher struct {
	engine *Engine
	mu     sync.Mutex
	runs   map[int64]*run
	wake   chan struct{}
}

const (
	watchSoonest = 5 * time.Millisecond
	watchLatest  = 250 * time.Millisecond
)

func newWatcher(e *Engine) *watcher {
	return &watcher{engine: e, runs: map[int64]*run{}, wake: make(chan struct{}, 1)}
}

func (w *watcher) add(runs []*run) {
	if !w.keep(runs) {
		w.engine.finish(orders.ErrStopping, runs...)
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
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

func (w *watcher) numbers() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]int64, 0, len(w.runs))
	for no := range w.runs {
		out = append(out, no)
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
}

func (w *watcher) loop(ctx context.Context) {
	pause := watchSoonest
	for {
		if len(w.numbers()) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
				pause = watchSoonest
			}
		}
		woken, ok := w.wait(ctx, pause)
		if !ok {
			return
		}
		if woken {
			pause = watchSoonest
		}
		pause = min(pause*3/2, watchLatest)
		if w.once() {
			pause = watchSoonest
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
			if pause > watchSoonest {
				timer.Reset(watchSoonest)
			}
		case <-timer.C:
			return woken, true
		}
	}
}

// once reads all watched orders. It reports whether it took orders over; the next round then
// finds that they are ours.
func (w *watcher) once() bool {
	e := w.engine
	gone := map[int64]bool{} // until its row is seen
	numbers := w.numbers()
	rows, err := e.query.OrdersWatched(e.ctx, numbers)
	if err != nil {
		return false // the next look will do
	}
	for _, no := range numbers {
		gone[no] = true
	}
	var changed, due []int64
	for _, row := range rows {
		delete(gone, row.OrderNo)
		switch {
		case row.Ended, row.Owner != nil && *row.Owner == e.owner, row.Held && w.idle(row.OrderNo):
			changed = append(changed, row.OrderNo)
		case row.Due:
			due = append(due, row.OrderNo)
		}
	}
	changed = slices.AppendSeq(changed, maps.Keys(gone))
	if runs := w.take(changed); len(runs) > 0 {
		rows, err := e.readUntilKnown(numbersOf(runs), true)
		e.settleRead(runs, rows, err)
	}
	return e.claim(due) > 0
}
