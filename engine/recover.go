package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
)

const (
	claimMost     = 500         // orders found by one look
	sweepInterval = time.Minute // between looks at everything that is due, however old
)

// recoverLoop looks for orders left behind, by replicas that died as well as by people
// who let one go, and takes them up. It needs no leader and no names: whoever raises
// the fence drives.
func (e *Engine) recoverLoop(ctx context.Context) {
	var floor, swept time.Time
	for ctx.Err() == nil {
		e.pause(e.cfg.Poll)
		if e.stopping.Load() || ctx.Err() != nil {
			return
		}
		if time.Since(swept) >= sweepInterval {
			floor = time.Time{} // from the beginning
		}
		if err := e.recoverFrom(floor); err != nil {
			e.log.Warn("look for due orders", "error", err)
			continue
		}
		if floor.IsZero() {
			floor, swept = e.nextFloor(floor), time.Now()
		}
	}
}

// recoverFrom claims what has come due since floor and sends it on its way.
func (e *Engine) recoverFrom(floor time.Time) error {
	for !e.stopping.Load() && !e.overloaded() {
		due, err := e.due(floor)
		if err != nil {
			return err
		}
		full := len(due) == claimMost
		// What we drive and could not renew in time is still ours to renew, not to claim.
		due = slices.DeleteFunc(due, e.runs.leads)
		if e.claim(due) == 0 || !full {
			return nil
		}
	}
	return nil
}

func (e *Engine) due(floor time.Time) ([]int64, error) {
	ctx, cancel := e.statement()
	defer cancel()
	return e.query.LeasesDue(ctx, db.LeasesDueParams{Floor: floor, Most: claimMost})
}

// nextFloor is a minute before now on the database's clock, or the old one if it does
// not answer.
func (e *Engine) nextFloor(old time.Time) time.Time {
	ctx, cancel := e.statement()
	defer cancel()
	floor, err := e.query.LeasesDueFloor(ctx)
	if err != nil {
		return old
	}
	return floor
}

// claim takes up those of the orders that are due and returns how many became ours. An
// order that already has a run here is left to whoever holds that run: it finds the
// order to be ours when it next reads the row.
func (e *Engine) claim(orderNos []int64) int {
	if len(orderNos) == 0 {
		return 0
	}
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.LeasesClaim(ctx, db.LeasesClaimParams{
		OrderNos: orderNos, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
	})
	claimed := make([]Order, len(rows))
	for i, row := range rows {
		claimed[i] = Order{Order: row.Order}
	}
	if err != nil {
		// It may have committed. The owner tells: it is written by admission and claim
		// only, so a row that names us is ours.
		e.unknown("claim orders", err)
		claimed = e.readUntilKnown(orderNos)
	}
	return e.takeUp(claimed)
}

func (e *Engine) takeUp(rows []Order) int {
	var ours []*run
	n := 0
	for i := range rows {
		o := &rows[i].Order
		if o.Hold != nil && *o.Hold == "attention" {
			e.Stats.Held.Add(1)
			e.log.Error("order held", "order_id", o.OrderID, "status", o.Status, "reason", o.HoldReason)
			continue
		}
		if o.Owner == nil || *o.Owner != e.owner || e.runs.leads(o.OrderNo) {
			continue
		}
		n++
		if r, made := e.runs.join(o.OrderID, Input{}); made {
			r.order = rows[i]
			ours = append(ours, r)
		}
	}
	if n > 0 {
		e.Stats.TakenOver.Add(int64(n))
		e.log.Info("orders taken over", "orders", n)
	}
	e.lead(ours)
	return n
}

// renewLoop keeps every order in this replica's memory ours, in one statement: also
// those that wait in a line, or the lease of a queue would end before its work began.
func (e *Engine) renewLoop(ctx context.Context) {
	tick := time.NewTicker(e.cfg.Lease / 6)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.renew(e.runs.older(time.Now().Add(-e.cfg.Lease / 3)))
		}
	}
}

// renew leaves out rows that are locked, mostly by a move of our own: those it did not
// get are asked for again at the next tick.
func (e *Engine) renew(orderNos []int64) {
	if len(orderNos) == 0 {
		return
	}
	ctx, cancel := e.statement()
	defer cancel()
	start := time.Now()
	renewed, err := e.query.LeasesRenew(ctx, db.LeasesRenewParams{
		OrderNos: orderNos, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
	})
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("renew leases", "orders", len(orderNos), "error", err)
	}
	e.runs.renewed(renewed, start)
}
