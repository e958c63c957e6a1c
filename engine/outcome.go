package engine

import (
	"slices"
	"time"

	"pawl/db"
	"pawl/orders"
)

// failed goes on after a statement whose error is not the data's fault.
func (e *Engine) failed(doing string, err error, runs []*run, busy func([]*run)) {
	if e.standsDown(doing, err, runs) {
		return
	}
	switch db.FaultOf(err) {
	case db.Busy:
		busy(runs)
	case db.Again:
		e.Stats.Retried.Add(1)
		e.later(runs)
	default:
		e.unknown(doing, err)
		e.readBack(slices.Clone(runs))
	}
}

// split finds the culprit of a statement that its data made fail: each half is tried by
// itself, a single one is given up.
func (e *Engine) split(runs []*run, try func([]*run), giveUp func(*run)) {
	if len(runs) == 1 {
		giveUp(runs[0])
		return
	}
	half := len(runs) / 2
	try(runs[:half:half])
	try(runs[half:])
}

// schemaMismatchPause is how long to leave the database alone after a statement of a verb or a permit
// that it can't run as it is made. Those of orders end otherwise: see standsDown.
const schemaMismatchPause = time.Second

func (e *Engine) unknown(doing string, err error) {
	e.Stats.UnknownOutcome.Add(1)
	if db.Stale(err) {
		e.pool.Reset()
	}
	if e.ctx.Err() == nil {
		e.log.Warn("outcome unknown, reading back", "statement", doing, "error", err)
	}
	if db.SchemaMismatch(err) {
		e.pause(schemaMismatchPause)
	}
}

// onCASMiss deals with runs that a move statement did not return: their row was locked by
// somebody, or is not as we thought. The row tells, after a moment: who holds a lock
// holds it a little longer.
func (e *Engine) onCASMiss(runs []*run) {
	if len(runs) == 0 {
		return
	}
	e.Stats.CASMisses.Add(int64(len(runs)))
	e.readBack(append([]*run(nil), runs...))
}

// later sends runs back to their queue after a pause that grows with every try in vain.
func (e *Engine) later(runs []*run) {
	runs = slices.Clone(runs) // the queue uses its slice again
	time.AfterFunc(pauseAfter(runs), func() { e.drive(runs) })
}

// pauseAfter counts one more try in vain and says how long to wait: 2 ms to half a second.
func pauseAfter(runs []*run) time.Duration {
	tries := 0
	for _, r := range runs {
		r.vainTries++
		tries = max(tries, r.vainTries)
	}
	return min(time.Millisecond<<min(tries, 9), 500*time.Millisecond)
}

// finish ends runs whose orders are final or held, or that this replica does not go on with, and tells their callers.
// An order that is not complete is read first, so that what is shown is what is stored.
func (e *Engine) finish(err error, runs ...*run) {
	if err == nil {
		err = e.readIncomplete(runs)
	}
	removed, claimed := e.runs.remove(runs)
	for _, r := range removed {
		if err == nil {
			r.markKnown()
			e.askForNext(r)
		}
		r.wakeCallers(err)
	}
	e.watches.nudge(removed)
	if err == nil {
		e.driveClaimed(claimed)
	}
}

// askForNext has the limiter look for the next order of the key when an order has ended.
func (e *Engine) askForNext(r *run) {
	if key := r.order.ConcurrencyKey; key != nil && r.status().Final() {
		e.limiter.ask(*key)
	}
}

// readIncomplete reads the orders of which more is stored than the moves have said. With an error they must not be shown.
func (e *Engine) readIncomplete(runs []*run) error {
	var unread []*run
	for _, r := range runs {
		if !r.complete {
			unread = append(unread, r)
		}
	}
	if len(unread) == 0 {
		return nil
	}
	byNo := map[int64]*run{}
	for _, r := range unread {
		byNo[r.no()] = r
	}
	rows, err := e.readUntilKnown(numbersOf(unread), false)
	if e.standsDown("read orders", err, nil) {
		return errSchemaMismatch // they have ended, and what is shown of them can't be read
	}
	if len(rows) == 0 && e.ctx.Err() != nil { // nothing was read
		return orders.ErrStopping
	}
	for _, row := range rows {
		byNo[row.OrderNo].order = row
	}
	return nil
}
