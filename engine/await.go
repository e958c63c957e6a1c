package engine

import (
	"context"
	"errors"
	"slices"

	"pawl/orders"
)

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
