package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// version is what the orders of one statement have in common. It moves those whose rows still have it.
type version struct {
	state fsm.State
	fence int64
	seq   int32
	lines bool // the state has another statement for orders with lines, and they have some
}

func versionOf(r *run) version {
	o := &r.order
	return version{o.Status, o.Fence, o.Seq, o.Lines != nil && ledger.LineMoves[o.Status] != nil}
}

// moveInLedger does a ledger step: it moves a batch out of its state.
func (e *core) moveInLedger(at version, runs []*run) []*run {
	statement := ledger.Moves[at.state]
	if at.lines {
		statement = ledger.LineMoves[at.state]
	}
	e.move(mover{statement: statement, ifLocked: toHot}, runs)
	return runs
}

// suspends is the outcome of a result after which the order stays in its state: on hold, or with another call.
const suspends fsm.Outcome = "suspends"

// fallsBack is the outcome of a refused charge that begins again on another route, as the next generation.
const fallsBack fsm.Outcome = "falls_back"

// mover is a move of orders at the same version.
type mover struct {
	statement ledger.Move
	outcome   fsm.Outcome // of the step; empty: the statement finds out by the row
	ifLocked  destination // where the batch goes if a row that it needs stays locked
}

// allows reports whether the machine lets the move take an order from one state to the other.
func (m *mover) allows(from, to fsm.State) bool {
	switch m.outcome {
	case "":
		return fsm.Legal(from, to)
	case suspends, fallsBack:
		return from == to
	default:
		return from.Leads(m.outcome, to)
	}
}

// move sends the statement of a move, and sets the next destinations. It returns the runs that moved.
func (e *core) move(m mover, runs []*run) (moved []*run) {
	state := runs[0].status()
	moved, lost, err := e.apply(&m, runs)
	switch pg.FaultOf(err) {
	case pg.None:
		e.missed(lost)
		return goTo(toStep, moved...)
	case pg.Bad:
		split(runs, func(half []*run) { moved = append(moved, e.move(m, half)...) }, func(r *run) { e.giveUp(r, err) })
	default:
		e.failed(fmt.Sprintf("move orders out of %s", state), err, runs, m.ifLocked)
	}
	return moved
}

// apply is the only code that moves a stored order. It sends the statement of a move for runs at the same status,
// fence and seq, and applies the verdicts. Runs that did not move are returned as lost. After an error, pg.FaultOf
// says what is known. A verdict that the machine does not allow stops the order (halt). apply sorts runs in place.
func (e *core) apply(m *mover, runs []*run) (moved, lost []*run, err error) {
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.no(), b.no()) })
	first := runs[0].order
	batch := ledger.Batch{OrderNos: numbersOf(runs), Expected: first.Status, Fence: first.Fence, Seq: first.Seq}
	verdicts, err := m.statement(e.ctx, e.query, batch)
	if err != nil {
		return nil, nil, err
	}
	e.Stats.Batches.Add(1)
	e.Stats.Moves.Add(int64(len(verdicts)))
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
	if last := len(moved) - 1; last >= 0 {
		if r := moved[last]; r.status().Final() {
			e.lastEnded.Store(new(r.no()))
		}
		e.metrics.countFinished(moved, verdicts[0].At, e.policies)
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

// applyVerdict updates the order of the run, and keeps pointers into v. It knows the effects of forward moves. An
// order that is being undone, or whose reservation has an end, is read again before it is returned (complete).
func (r *run) applyVerdict(v *ledger.Moved) {
	o := &r.order
	event, _ := fsm.EventOf(o.Status, v.ToStatus)
	o.Status, o.Seq, r.vainTries = v.ToStatus, v.Seq, 0
	switch event {
	case fsm.Charged:
		o.ChargedAt = &v.At
	case fsm.Reserved:
		o.ReservedAt, r.complete = &v.At, r.complete && o.ReservationTtl == nil
	case fsm.Confirmed:
		o.EndedAs, o.FinishedAt = &v.ToStatus, &v.At
		o.Owner, o.DueAt = nil, nil
	default:
		r.complete = false
	}
}

// halt stops an order whose move the machine does not allow. Either the machine or the database is wrong, and going
// on could charge, ship or refund by mistake. The order waits for a person if it has not ended, and its callers get
// an error.
func (e *core) halt(r *run, v ledger.Moved) {
	err := fmt.Errorf("unknown_move: %s to %s", r.status(), v.ToStatus)
	e.log.Error("order stopped", "order_id", r.orderID, "error", err)
	r.order.Status, r.order.Seq = v.ToStatus, v.Seq
	if !v.ToStatus.Final() {
		_, holdErr := e.query.OrdersHold(e.ctx, db.OrdersHoldParams{OrderNos: []int64{r.no()}, Expected: v.ToStatus,
			Fence: r.order.Fence, Seq: v.Seq, Hold: fsm.HoldAttention, HoldReason: err.Error()})
		if holdErr != nil {
			e.log.Error("hold order", "order_id", r.orderID, "error", holdErr)
		} else {
			e.metrics.countHeld(fsm.HoldAttention, 1)
		}
	}
	endRuns(err, r)
}

// redrive starts the next generation of a failed order. No row: the order has changed since it was read, or a step of
// it is still in effect.
func (e *core) redrive(ctx context.Context, p db.OrderRedriveParams) ([]orders.Order, error) {
	rows, err := e.query.OrderRedrive(ctx, p)
	return writtenOrders(rows), err
}

// missed sends runs to be read back that a statement did not return: their rows are locked, or not as expected.
func (e *core) missed(runs []*run) {
	e.Stats.CASMisses.Add(int64(len(runs)))
	goTo(toReadBack, runs...)
}

// failed sets the next destination of runs after a failed statement, if their data is not the cause. Runs that waited
// too long for a lock go to ifLocked.
func (e *core) failed(doing string, err error, runs []*run, ifLocked destination) {
	if e.standsDown(doing, err, runs) {
		return
	}
	switch pg.FaultOf(err) {
	case pg.Busy:
		goTo(ifLocked, runs...)
	case pg.Again:
		e.Stats.Retried.Add(1)
		goTo(toRetry, runs...)
	default:
		e.unknown(doing, err)
		goTo(toReadBack, runs...)
	}
}

// standsDown reports whether err means that the statement can't run on the schema. If so, it was rolled back, the
// engine stands still, and the orders are released.
func (e *core) standsDown(doing string, err error, runs []*run) bool {
	if !pg.SchemaMismatch(err) {
		return false
	}
	e.schemaHealth.standStill(doing, err)
	for _, r := range runs {
		r.next, r.err = toGiveBack, errSchemaMismatch
	}
	return true
}

// schemaMismatchPause is the pause after a statement of a verb or a permit that can't run on the schema. For
// statements of orders, see standsDown.
const schemaMismatchPause = time.Second

// unknown records that the outcome of a statement is not known.
func (e *core) unknown(doing string, err error) {
	e.Stats.UnknownOutcome.Add(1)
	if pg.Stale(err) {
		e.pool.Reset()
	}
	if e.ctx.Err() == nil {
		e.log.Warn("outcome unknown, reading back", "statement", doing, "error", err)
	}
	if pg.SchemaMismatch(err) {
		e.pause(schemaMismatchPause)
	}
}

// split finds the order whose data made a statement fail: it tries each half by itself, and a single order is the
// culprit.
func split(runs []*run, try func([]*run), culprit func(*run)) {
	if len(runs) == 1 {
		culprit(runs[0])
		return
	}
	half := len(runs) / 2
	try(runs[:half:half])
	try(runs[half:])
}

// giveUp holds an order for a person, because it can't be moved.
func (e *core) giveUp(r *run, why error) {
	e.log.Error("order can't be moved", "order_id", r.orderID, "status", r.status(), "error", why)
	reason := strings.Replace(pg.Describe(why), " ", ": ", 1) // orders are listed by the part before the colon
	r.next, r.hold = toHold, &hold{code: fsm.HoldAttention, reason: reason}
}

// holdKey is what the orders of one OrdersHold statement have in common.
type holdKey struct {
	version
	hold
}

func holdKeyOf(r *run) holdKey { return holdKey{versionOf(r), *r.hold} }

// holdOrders puts orders on hold that have no result.
func (e *core) holdOrders(key holdKey, runs []*run) []*run {
	rows, err := e.query.OrdersHold(e.ctx, db.OrdersHoldParams{
		OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq, Hold: key.code, HoldReason: key.reason, Seconds: key.atMost.Seconds(),
	})
	switch {
	case pg.FaultOf(err) == pg.Bad && key.code != fsm.HoldAttention:
		split(runs, func(half []*run) { e.holdOrders(key, half) }, func(r *run) { e.giveUp(r, err) })
		return runs
	case err != nil:
		e.failed("hold orders", err, runs, toRetry)
		return runs
	}
	held, lost := divide(runs, func(r *run) bool {
		return slices.ContainsFunc(rows, func(row db.OrdersHoldRow) bool { return row.OrderNo == r.no() })
	})
	e.metrics.countHeld(key.code, len(held))
	for _, r := range held {
		r.complete = false
	}
	endRuns(nil, held...)
	e.missed(lost)
	return runs
}

// pauseAfter counts a try without a move, and returns the next pause: 2 ms to half a second.
func pauseAfter(runs []*run) time.Duration {
	tries := 0
	for _, r := range runs {
		r.vainTries++
		tries = max(tries, r.vainTries)
	}
	return min(time.Millisecond<<min(tries, 9), 500*time.Millisecond)
}

// finish removes runs that have ended, and wakes their callers. An order that is not complete is read first. It
// returns orders that were claimed meanwhile, which need new runs.
func (e *core) finish(runs []*run) []orders.Order {
	e.readIncomplete(runs)
	removed, claimed := e.runs.remove(runs)
	for _, r := range removed {
		if r.err == nil {
			r.markStored()
		}
		r.wakeCallers()
	}
	return claimed
}

// readIncomplete reads the orders of which more is stored than the moves have said. Those that can't be read end with
// an error.
func (e *core) readIncomplete(runs []*run) {
	var unread []*run
	for _, r := range runs {
		if r.err == nil && !r.complete {
			unread = append(unread, r)
		}
	}
	if len(unread) == 0 {
		return
	}
	rows, err := e.readUntilKnown(numbersOf(unread), false)
	if slices.ContainsFunc(rows, orders.UnderWay) { // it was held, and has been taken up again
		rows, err = e.readUntilKnown(numbersOf(unread), true)
	}
	if pg.SchemaMismatch(err) { // they have ended, and what is shown of them can't be read
		e.schemaHealth.standStill("read orders", err)
		endRuns(errSchemaMismatch, unread...)
		return
	}
	if len(rows) == 0 && e.ctx.Err() != nil { // nothing was read
		endRuns(orders.ErrStopping, unread...)
		return
	}
	byNo := map[int64]*run{}
	for _, r := range unread {
		byNo[r.no()] = r
	}
	for _, row := range rows {
		byNo[row.OrderNo].order = row
		delete(byNo, row.OrderNo)
	}
	for _, r := range byNo {
		endRuns(errLost, r)
	}
}
