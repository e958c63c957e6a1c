package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
)

// moveOut takes orders out of a state in which the ledger does the step. Runs of one queue share
// the status; fence and seq differ rarely, and each group is a statement of its own. What waited for a stock row
// in vain goes to busy.
func (e *Engine) moveOut(state fsm.State, runs []*run, busy func([]*run)) {
	for _, group := range groupBy(runs, func(r *run) [2]int64 { return [2]int64{r.order.Fence, int64(r.order.Seq)} }) {
		e.move(state, mover{statement: ledger.Moves[state], moved: e.drive, busy: busy}, group)
	}
}

// mover is a move and what comes after it.
type mover struct {
	statement ledger.Move
	outcome   fsm.Outcome  // what the move is to the machine; empty: the statement finds out, by the row
	moved     func([]*run) // takes the orders that moved
	busy      func([]*run) // takes the batch when a stock row stayed locked
}

// allows reports whether the machine lets the move take an order from one state to the other.
func (m *mover) allows(from, to fsm.State) bool {
	switch m.outcome {
	case "":
		return fsm.Legal(from, to)
	case suspends:
		return from == to
	default:
		return from.Leads(m.outcome, to)
	}
}

// move moves runs of the same status, fence and seq.
func (e *Engine) move(state fsm.State, m mover, runs []*run) {
	moved, lost, err := e.apply(&m, runs)
	switch db.FaultOf(err) {
	case db.None:
		m.moved(moved)
		e.onCASMiss(lost)
	case db.Bad:
		e.split(runs, func(half []*run) { e.move(state, m, half) }, func(r *run) { e.giveUp(r, err) })
	default:
		e.failed(fmt.Sprintf("move orders out of %s", state), err, runs, m.busy)
	}
}

// apply is the one door to orders.status: it sends the statement of a move for runs that
// stand at the same status, fence and seq, and writes its verdict into them. The runs
// are sorted in place; those that did not move come back as lost. With an error nothing
// is known but what db.FaultOf says of it. A verdict that the machine does not know is not believed: see halt.
func (e *Engine) apply(m *mover, runs []*run) (moved, lost []*run, err error) {
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.no(), b.no()) })
	first := runs[0].order
	batch := ledger.Batch{OrderNos: numbersOf(runs), Expected: first.Status, Fence: first.Fence, Seq: first.Seq}
	verdicts, err := m.statement(e.ctx, e.query, batch)
	if err != nil {
		return nil, nil, err
	}
	e.Stats.Batches.Add(1)
	e.Stats.Moves.Add(int64(len(verdicts)))
	e.activity.moved(first.Status, verdicts)
	if len(verdicts) > 0 {
		e.tickOn(verdicts[0].At)
	}
	moved = make([]*run, 0, len(verdicts))
	for n := range verdicts {
		v := &verdicts[n]
		i, ok := slices.BinarySearchFunc(runs, v.OrderNo, func(r *run, no int64) int { return cmp.Compare(r.no(), no) })
		if !ok {
			panic("apply: the database moved an order that was not asked for")
		}
		if !m.allows(first.Status, v.ToStatus) {
			e.halt(runs[i], *v)
			continue
		}
		runs[i].applyVerdict(v)
		moved = append(moved, runs[i])
	}
	if len(moved) > 0 {
		e.ended(moved, verdicts[0].At)
	}
	if len(verdicts) < len(runs) {
		for _, r := range runs {
			if r.order.Seq == batch.Seq {
				lost = append(lost, r)
			}
		}
	}
	return moved, lost, nil
}

// applyVerdict writes a verdict into the run, which refers to it from then on. The effects of the forward path are
// known from the move itself; an order that goes back is read before it is shown.
func (r *run) applyVerdict(v *ledger.Moved) {
	o := &r.order
	event, _ := fsm.EventOf(o.Status, v.ToStatus)
	o.Status, o.Seq, r.vainTries = v.ToStatus, v.Seq, 0
	switch event {
	case fsm.Charged:
		o.ChargedAt = &v.At
	case fsm.Reserved:
		o.ReservedAt = &v.At
	case fsm.Confirmed:
		o.EndedAs, o.FinishedAt = &v.ToStatus, &v.At
		o.Owner, o.DueAt = nil, nil
	default:
		r.complete = false
	}
}

// halt stops an order that the database has moved where the machine knows no way: one of the two is wrong, and
// whoever believed the move would charge, ship or refund by it. It waits for a person, if it has not ended, and nobody is told of it.
func (e *Engine) halt(r *run, v ledger.Moved) {
	err := fmt.Errorf("unknown_move: %s to %s", r.status(), v.ToStatus)
	e.log.Error("order stopped", "order_id", r.orderID, "error", err)
	r.order.Status, r.order.Seq = v.ToStatus, v.Seq
	if !v.ToStatus.Final() {
		_, holdErr := e.query.OrdersHold(e.ctx, db.OrdersHoldParams{OrderNos: []int64{r.no()}, Expected: v.ToStatus,
			Fence: r.order.Fence, Seq: v.Seq, Hold: fsm.HoldAttention, HoldReason: err.Error()})
		if holdErr != nil {
			e.log.Error("hold order", "order_id", r.orderID, "error", holdErr)
		} else {
			e.held(fsm.HoldAttention, 1)
		}
	}
	e.finish(err, r)
}

// redrive takes a failed order back to its beginning, as its next generation. No row: it
// is not as it was read, or something of it stands.
func (e *Engine) redrive(ctx context.Context, p db.OrderRedriveParams) ([]orders.Order, error) {
	rows, err := e.query.OrderRedrive(ctx, p)
	e.activity.count(fsm.Failed, fsm.Pending, len(rows))
	return writtenOrders(rows), err
}

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
