package engine

import (
	"time"

	"pawl/db"
	"pawl/orders"
)

// readBack finds out how orders stand after an answer that did not say: a lost
// compare-and-set, an outcome unknown, an order that existed before. The row decides,
// and its owner, fence and seq say whether it is ours. It blocks until the database
// answers or the engine stops.
func (e *Engine) readBack(runs []*run) {
	unstored, stored := divide(runs, func(r *run) bool { return r.no() == 0 })
	rows, err := e.readUntilKnown(numbersOf(stored), true)
	e.settleRead(stored, rows, err)
	rows, err = e.readByID(unstored)
	e.settleRead(unstored, rows, err)
}

// settleRead is settle, unless the rows could not be read because of the schema.
func (e *Engine) settleRead(runs []*run, rows []orders.Order, err error) {
	if !e.standsDown("read orders", err, runs) {
		e.settle(runs, rows)
	}
}

// settle goes on from what the rows say.
func (e *Engine) settle(runs []*run, rows []orders.Order) {
	byID := make(map[string]*orders.Order, len(rows))
	for i := range rows {
		byID[rows[i].OrderID] = &rows[i]
	}
	var ended, ours, foreign, absent, again []*run
	for _, r := range runs {
		row := byID[r.orderID]
		switch {
		case row == nil:
			absent = append(absent, r)
			continue
		case row.Status.Final() || row.Hold != nil:
			ended = append(ended, r)
		case row.Owner == nil || *row.Owner != e.owner:
			foreign = append(foreign, r)
		case row.Seq == r.order.Seq:
			again = append(again, r) // as we left it: the row was only locked
		default:
			ours = append(ours, r)
		}
		lost := e.byLostAnswer(r, row)
		r.order, r.complete, r.preflight = *row, row.Status.Final() || row.Hold != nil, nil
		switch {
		case lost && row.Hold != nil:
			e.held(*row.Hold, 1)
		case lost && row.FinishedAt != nil:
			e.ended([]*run{r}, *row.FinishedAt)
		}
		r.markFound()
		if r.call != nil && (row.Owner == nil || *row.Owner != e.owner || r.call.fence != row.Fence) {
			e.fenced(r)
		}
	}
	e.finish(nil, ended...)
	e.watch(foreign)
	e.ownAndDrive(ours)
	if len(again) > 0 {
		e.runs.own(again)
		e.later(again)
	}
	e.absent(absent)
}

// absent deals with orders that are not stored: the row was never written, or somebody
// deleted it. What came as a request is admitted; what did not is gone.
func (e *Engine) absent(runs []*run) {
	if e.ctx.Err() != nil {
		return // nothing was read
	}
	var gone, keyed, again []*run
	e.runs.disown(runs)
	for _, r := range runs {
		r.order.OrderNo = 0
		switch {
		case r.input.OrderID == "":
			gone = append(gone, r)
		case r.input.Key != nil:
			keyed = append(keyed, r)
		default:
			again = append(again, r)
		}
	}
	e.finish(orders.ErrNotFound, gone...)
	e.admitAgain(again)
	e.absentKeyed(keyed)
}

// admitAgain sends orders that are not stored to be admitted, after a pause that grows
// with every try: a server that reads and refuses to write is not to be beset.
func (e *Engine) admitAgain(runs []*run) {
	if len(runs) == 0 {
		return
	}
	time.AfterFunc(pauseAfter(runs), func() { e.admits.Add(runs...) })
}

// watch waits for another replica's orders on behalf of our callers.
func (e *Engine) watch(runs []*run) {
	if len(runs) == 0 {
		return
	}
	for _, r := range runs {
		if e.runs.owns(r.no()) {
			e.Stats.Fenced.Add(1)
		}
		r.markKnown()
	}
	e.runs.disown(runs)
	e.watches.add(runs)
}

// readUntilKnown reads orders by number, as often as it takes. Durable is how to read what was written by others, or
// by a statement of ours whose end we have not seen. The error is that of untilKnown.
func (e *Engine) readUntilKnown(orderNos []int64, durable bool) ([]orders.Order, error) {
	if len(orderNos) == 0 {
		return nil, nil
	}
	return untilKnown(e, "read orders", func() ([]orders.Order, error) {
		return e.query.OrdersByNo(e.ctx, db.OrdersByNoParams{OrderNos: orderNos, Durable: durable})
	})
}

func (e *Engine) readByID(runs []*run) ([]orders.Order, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.orderID
	}
	return untilKnown(e, "read orders by id", func() ([]orders.Order, error) {
		return e.query.OrdersByID(e.ctx, db.OrdersByIDParams{OrderIds: ids, Durable: true})
	})
}
