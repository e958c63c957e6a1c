package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// claim claims the orders that are still due. It returns new runs for them, and how many orders it claimed: an order
// that already has a run here is left to that run, which finds in the row that we are the owner.
func (e *core) claim(orderNos []int64) (runs []*run, n int) {
	if len(orderNos) == 0 || e.schemaHealth.still.Load() {
		return nil, 0
	}
	rows, err := e.query.LeasesClaim(e.ctx, db.LeasesClaimParams{
		OrderNos: orderNos, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(), Policies: e.policies.versions(),
	})
	claimed := writtenOrders(rows)
	switch fault := pg.FaultOf(err); {
	case fault == pg.Bad && len(orderNos) == 1:
		e.log.Error("order can't be claimed", "order_no", orderNos[0], "error", err)
		return nil, 0
	case fault == pg.Bad:
		half := len(orderNos) / 2
		first, n := e.claim(orderNos[:half])
		second, m := e.claim(orderNos[half:])
		return append(first, second...), n + m
	case e.standsDown("claim orders", err, nil):
		return nil, 0
	case fault != pg.None:
		// It may have committed. The owner column tells: every statement that writes this process as the owner also
		// makes it the driver.
		e.unknown("claim orders", err)
		if claimed, err = e.readUntilKnown(orderNos, true); e.standsDown("read orders", err, nil) {
			return nil, 0 // claimed orders become due again when their lease ends
		}
	}
	return e.takeUp("", claimed)
}

// takeUp makes runs for the orders whose rows name us as the owner, on behalf of a request if it has an id. An order
// that has a run is left to it; if that run is about to end, the order is taken up again afterwards.
func (e *core) takeUp(httpRequestID string, rows []orders.Order) (runs []*run, n int) {
	takenOver := 0
	for i := range rows {
		o := &rows[i]
		if orders.HeldFor(o, fsm.HoldAttention) {
			e.metrics.countHeld(fsm.HoldAttention, 1)
			e.log.Error("order held", "order_id", o.OrderID, "status", o.Status, "reason", or(o.HoldReason))
			continue
		}
		if o.Owner == nil || *o.Owner != e.owner {
			continue
		}
		r, driven := e.runs.claimed(rows[i], httpRequestID)
		if r != nil {
			runs = append(runs, r)
		}
		if driven {
			continue
		}
		n++
		if o.TakeOvers > 0 {
			takenOver++
		}
	}
	if takenOver > 0 {
		e.Stats.TakenOver.Add(int64(takenOver))
		e.log.Info("orders taken over", "orders", takenOver)
	}
	return e.own(runs), n
}

// own records that this process drives the orders, wakes callers that wait for them to be stored, and sends them to
// their step.
func (e *core) own(runs []*run) []*run {
	if len(runs) == 0 {
		return nil
	}
	e.runs.own(runs)
	for _, r := range runs {
		r.markStored()
	}
	return goTo(toStep, runs...)
}

// renewAll renews the leases of all orders in memory, in one statement. This includes orders in queues, whose leases
// would otherwise end before their work began.
func (e *core) renewAll() { e.renew(e.runs.older(time.Now().Add(-e.cfg.Lease / 3))) }

// renew skips locked rows, which are mostly being moved by us. The next tick tries them again.
func (e *core) renew(orderNos []int64) {
	if len(orderNos) == 0 {
		return
	}
	start := time.Now()
	renewed, err := e.query.LeasesRenew(e.ctx, db.LeasesRenewParams{
		OrderNos: orderNos, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
	})
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("renew leases", "orders", len(orderNos), "error", err)
	}
	e.runs.renewed(renewed, start)
}

// leave releases the leases of orders that this process can't continue, because it is stopping or can't run their
// policy, so that another replica drives them at once. The leases of locked rows expire.
func (e *core) leave(runs []*run) []*run {
	if _, err := e.query.LeasesRelease(e.ctx, db.LeasesReleaseParams{OrderNos: numbersOf(runs), Owner: e.owner}); err != nil {
		e.log.Warn("release leases", "orders", len(runs), "error", err)
	}
	return endRuns(orders.ErrStopping, runs...)
}

const handBackLimit = 2 * time.Second

// handingBack returns a context for the last statements of this replica, which its end does not cancel.
func (e *core) handingBack() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(e.ctx), handBackLimit)
}

// giveBack ends the runs of orders whose statement can't run, and returns the error to their callers. It releases the
// leases, so that a replica that can run the statement drives the orders at once. If that fails too, the leases expire.
func (e *core) giveBack(runs []*run) []*run {
	removed, _ := e.runs.remove(runs) // releases rows that were claimed meanwhile, too
	ctx, cancel := e.handingBack()
	defer cancel()
	e.release(ctx, numbersOf(removed))
	for _, r := range removed {
		r.wakeCallers()
	}
	return nil
}

// handBack releases the leases of the orders that are still in memory. The goroutines have ended, so these orders no
// longer move, but a canceled statement may still be running in the server.
func (e *core) handBack() {
	left := e.runs.takeAll()
	if len(left) == 0 {
		return
	}
	ctx, cancel := e.handingBack()
	defer cancel()
	e.findInDoubt(ctx, left)
	e.release(ctx, numbersOf(left))
	for _, r := range left {
		r.err = orders.ErrStopping
		if r.sent && r.no() == 0 {
			r.err = orders.ErrUnavailable // its admission may have committed, or may still commit
		}
		r.wakeCallers()
	}
}

// findInDoubt finds orders whose admission got no reply.
func (e *core) findInDoubt(ctx context.Context, runs []*run) {
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
		r.markStored()
	}
}

// release retries locked rows: a statement of ours may lock them until the server notices that its connection was closed.
func (e *core) release(ctx context.Context, orderNos []int64) {
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
		pg.Sleep(ctx, pause)
	}
}

// stillOurs returns the orders that were to be released and still have this process as owner.
func (e *core) stillOurs(ctx context.Context, orderNos, released []int64) ([]int64, error) {
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
