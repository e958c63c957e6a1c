package engine

import (
	"pawl/internal/orders"
)

// readBack finds out how orders stand after an answer that did not say: a lost
// compare-and-set, an outcome unknown, an order that existed before. The row decides,
// and its owner, fence and seq say whether it is ours. It blocks until the database
// answers or the engine stops.
func (e *core) readBack(runs []*run) []*run {
	unstored, stored := divide(runs, func(r *run) bool { return r.no() == 0 })
	rows, err := e.readUntilKnown(numbersOf(stored), true)
	stored = e.settleRead(stored, rows, err)
	rows, err = e.readByID(unstored)
	return append(stored, e.settleRead(unstored, rows, err)...)
}

// settleRead is settle, unless the rows could not be read because of the schema.
func (e *core) settleRead(runs []*run, rows []orders.Order, err error) []*run {
	if e.standsDown("read orders", err, runs) {
		return runs
	}
	return e.settle(runs, rows)
}

// settle says where runs go by what their rows say. An answer that came when the order was not ours any more goes on by itself.
func (e *core) settle(runs []*run, rows []orders.Order) []*run {
	byID := make(map[string]*orders.Order, len(rows))
	for i := range rows {
		byID[rows[i].OrderID] = &rows[i]
	}
	var ours, absent, late []*run
	for _, r := range runs {
		row := byID[r.orderID]
		if row == nil {
			absent = append(absent, r)
			continue
		}
		switch {
		case row.Status.Final() || row.Hold != nil:
			end(nil, r)
		case row.Owner == nil || *row.Owner != e.owner:
			r.next = toWatch
		case row.Seq == r.order.Seq: // as we left it: the row was only locked
			r.next = toRetry
			ours = append(ours, r)
		default:
			r.next = toStep
			ours = append(ours, r)
		}
		lost := e.byLostAnswer(r, row)
		r.order, r.complete, r.preflight = *row, row.Status.Final() || row.Hold != nil, nil
		switch {
		case lost && row.Hold != nil:
			e.metrics.countHeld(*row.Hold, 1)
		case lost && row.FinishedAt != nil:
			e.metrics.countFinished([]*run{r}, *row.FinishedAt, e.policies)
		}
		r.markFound()
		if r.call != nil && (row.Owner == nil || *row.Owner != e.owner || r.call.fence != row.Fence) {
			late = append(late, e.fence(r)...)
		}
	}
	e.runs.own(ours)
	e.absent(absent)
	return append(runs, late...)
}

// byLostAnswer reports whether the row is what a statement of this replica has made of the order, whose answer was lost.
func (e *core) byLostAnswer(r *run, row *orders.Order) bool {
	return row.Fence == r.order.Fence && row.Seq != r.order.Seq && e.runs.owns(row.OrderNo)
}

// absent says where runs go whose orders are not stored. One that was never stored is admitted, once it is sure that numbers
// may be given: without that it was left out.
func (e *core) absent(runs []*run) {
	if e.ctx.Err() != nil { // nothing was read
		goTo(toHandBack, runs...)
		return
	}
	lost, unstored := divide(runs, func(r *run) bool { return r.no() != 0 })
	e.runs.disown(lost)
	end(errLost, lost...)
	for _, r := range unstored {
		if r.next = toReadmit; r.input.Key != nil {
			r.next = toKeyCheck
		}
	}
	if len(unstored) > 0 {
		e.renewNumbering()
	}
}
