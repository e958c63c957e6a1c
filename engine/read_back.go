package engine

import (
	"pawl/internal/orders"
)

// readBack reads the rows of orders after an answer that did not tell their state: a lost compare-and-set, an unknown
// outcome, an order that existed before. The row decides, and its owner, fence and seq tell whether the order is
// ours. It blocks until the database answers or the engine stops.
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

// settle applies the rows that were read, and sets the next destinations. An answer of a call that arrived after this
// process lost the order becomes a run of its own (fence).
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
			endRuns(nil, r)
		case row.Owner == nil || *row.Owner != e.owner:
			r.next = toWatch
		case row.Seq == r.order.Seq: // unchanged: the row was only locked
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
		r.markFoundStored()
		if r.call != nil && (row.Owner == nil || *row.Owner != e.owner || r.call.fence != row.Fence) {
			late = append(late, e.fence(r)...)
		}
	}
	e.runs.own(ours)
	e.absent(absent)
	return append(runs, late...)
}

// byLostAnswer reports whether a statement of this process wrote the row, and its answer was lost.
func (e *core) byLostAnswer(r *run, row *orders.Order) bool {
	return row.Fence == r.order.Fence && row.Seq != r.order.Seq && e.runs.owns(row.OrderNo)
}

// absent decides about orders that are not stored. One that was forgotten has ended. One that never was stored is
// admitted again, after the numbering was renewed: without a numbering, the admission leaves out all orders.
func (e *core) absent(runs []*run) {
	if e.ctx.Err() != nil { // nothing was read
		goTo(toHandBack, runs...)
		return
	}
	lost, unstored := divide(runs, func(r *run) bool { return r.no() != 0 })
	e.runs.disown(lost)
	endRuns(errLost, lost...)
	unstored = e.withoutForgotten(unstored)
	for _, r := range unstored {
		if r.next = toReadmit; r.input.Key != nil {
			r.next = toKeyCheck
		}
	}
	if len(unstored) > 0 {
		e.renewNumbering()
	}
}
