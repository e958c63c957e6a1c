package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"pawl/db"
	"pawl/orders"
)

const handBackLimit = 2 * time.Second

// handBack releases the leases of what is still in memory. The goroutines are gone, so
// nobody moves these orders meanwhile; but a statement that was cut off may still be at
// work in the server.
func (e *Engine) handBack() {
	left := e.runs.takeAll()
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handBackLimit)
	defer cancel()
	e.findInDoubt(ctx, left)
	e.release(ctx, numbersOf(left))
	for _, r := range left {
		if r.sent && r.no() == 0 {
			r.wakeCallers(orders.ErrUnavailable) // its admission may have committed, or still commit
		} else {
			r.wakeCallers(orders.ErrStopping)
		}
	}
}

// leave is the flush of the queue of orders that this process does not go on with: it stops, or can't run their policy. Their
// leases are released, so that whoever can drives them at once; those of rows that somebody holds end by themselves.
func (e *Engine) leave(runs []*run) {
	runs = slices.Clone(runs)
	if _, err := e.query.LeasesRelease(e.ctx, db.LeasesReleaseParams{OrderNos: numbersOf(runs), Owner: e.owner}); err != nil {
		e.log.Warn("release leases", "orders", len(runs), "error", err)
	}
	e.finish(orders.ErrStopping, runs...)
}

// giveBack lets go of orders whose statement can't run, and answers their callers with the error. The leases are
// released, so that whoever can drives the orders at once; where that can't be done either, nobody renews them any
// more, and they end by themselves.
func (e *Engine) giveBack(err error, runs ...*run) {
	if len(runs) == 0 {
		return
	}
	removed, _ := e.runs.remove(runs) // a row that was claimed for one of them meanwhile is released with it
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), handBackLimit)
	defer cancel()
	e.release(ctx, numbersOf(removed))
	for _, r := range removed {
		r.wakeCallers(err)
	}
}

// findInDoubt looks for orders whose admission was not answered.
func (e *Engine) findInDoubt(ctx context.Context, runs []*run) {
	inDoubt := map[string]*run{}
	for _, r := range runs {
		if r.sent && r.no() == 0 {
			inDoubt[r.orderID] = r
		}
	}
	if len(inDoubt) == 0 {
		return
	}
	rows, err := e.query.OrdersByID(ctx, db.OrdersByIDParams{OrderIds: slices.Collect(maps.Keys(inDoubt)), Durable: true})
	if err != nil {
		e.log.Warn("look for orders in doubt", "orders", len(inDoubt), "error", err)
	}
	for _, row := range rows {
		r := inDoubt[row.OrderID]
		r.order = row
		r.markKnown()
	}
}

// release tries again for rows that are locked: one of our own statements may hold them, until
// the server notices that its connection was closed.
func (e *Engine) release(ctx context.Context, orderNos []int64) {
	for pause := 10 * time.Millisecond; len(orderNos) > 0; pause *= 2 {
		released, err := e.query.LeasesRelease(ctx, db.LeasesReleaseParams{OrderNos: orderNos, Owner: e.owner})
		if err == nil {
			e.log.Info("leases released", "orders", len(released))
			orderNos, err = e.stillOurs(ctx, orderNos, released)
		}
		if err != nil {
			e.log.Warn("release leases", "orders", len(orderNos), "error", err)
			return
		}
		db.Sleep(ctx, pause)
	}
}

// stillOurs returns the orders that still name this process as owner although they were to be
// released.
func (e *Engine) stillOurs(ctx context.Context, orderNos, released []int64) ([]int64, error) {
	if len(released) == len(orderNos) {
		return nil, nil
	}
	rows, err := e.query.OrdersWatched(ctx, orderNos)
	ours := make([]int64, 0, len(rows))
	for _, row := range rows {
		if row.Owner != nil && *row.Owner == e.owner && !slices.Contains(released, row.OrderNo) {
			ours = append(ours, row.OrderNo)
		}
	}
	return ours, err
}
