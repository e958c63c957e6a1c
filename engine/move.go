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

// version is what the orders of one statement have in common: it moves them if their rows still stand there.
type version struct {
	state fsm.State
	fence int64
	seq   int32
}

func versionOf(r *run) version { return version{r.order.Status, r.order.Fence, r.order.Seq} }

// moveInLedger takes orders out of a state in which the ledger does the step.
func (e *core) moveInLedger(at version, runs []*run) []*run {
	e.move(mover{statement: ledger.Moves[at.state], busy: toHot}, runs)
	return runs
}

const suspends fsm.Outcome = "suspends"

// mover is a move of orders that stand at the same version.
type mover struct {
	statement ledger.Move
	outcome   fsm.Outcome // what the move is to the machine; empty: the statement finds out, by the row
	busy      destination // of a batch whose stock row stayed locked
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

// move sends the statement of a move and says where its verdict leads each run. It returns those that moved.
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
		e.failed(fmt.Sprintf("move orders out of %s", state), err, runs, m.busy)
	}
	return moved
}

// apply is the one door to orders.status: it sends the statement of a move for runs that
// stand at the same status, fence and seq, and writes its verdict into them. The runs
// are sorted in place; those that did not move come back as lost. With an error nothing
// is known but what pg.FaultOf says of it. A verdict that the machine does not know is not believed: see halt.
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
// to believe the move could charge, ship or refund by mistake. The order waits for a person if it has not ended, and its
// callers get an error.
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
	end(err, r)
}

// redrive takes a failed order back to its beginning, as its next generation. No row: it
// is not as it was read, or something of it stands.
func (e *core) redrive(ctx context.Context, p db.OrderRedriveParams) ([]orders.Order, error) {
	rows, err := e.query.OrderRedrive(ctx, p)
	return writtenOrders(rows), err
}

// missed says where runs go that a statement did not return: their row is locked, or is not as we thought.
func (e *core) missed(runs []*run) {
	e.Stats.CASMisses.Add(int64(len(runs)))
	goTo(toReadBack, runs...)
}

// failed says where runs go after a statement whose error is not the fault of their data: those that waited for a lock in
// vain go to busy.
func (e *core) failed(doing string, err error, runs []*run, busy destination) {
	if e.standsDown(doing, err, runs) {
		return
	}
	switch pg.FaultOf(err) {
	case pg.Busy:
		goTo(busy, runs...)
	case pg.Again:
		e.Stats.Retried.Add(1)
		goTo(toRetry, runs...)
	default:
		e.unknown(doing, err)
		goTo(toReadBack, runs...)
	}
}

// standsDown gives back a batch whose statement can't run on the schema, and reports whether
// that is what the error says. The statement was certainly rolled back.
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

// schemaMismatchPause is how long to leave the database alone after a statement of a verb or a permit
// that it can't run as it is made. Those of orders end otherwise: see standsDown.
const schemaMismatchPause = time.Second

// unknown notes that the outcome of a statement is not known.
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

// split finds the culprit of a statement that its data made fail: each half is tried by
// itself, and a single one is the culprit.
func split(runs []*run, try func([]*run), culprit func(*run)) {
	if len(runs) == 1 {
		culprit(runs[0])
		return
	}
	half := len(runs) / 2
	try(runs[:half:half])
	try(runs[half:])
}

// giveUp has an order wait for a person, because it can't be moved.
func (e *core) giveUp(r *run, why error) {
	e.log.Error("order can't be moved", "order_id", r.orderID, "status", r.status(), "error", why)
	reason := strings.Replace(pg.Describe(why), " ", ": ", 1) // orders are listed by what is before the colon
	r.next, r.hold = toHold, &hold{code: fsm.HoldAttention, reason: reason}
}

// holdKey is what the orders of one statement that holds them have in common.
type holdKey struct {
	version
	hold
}

func holdKeyOf(r *run) holdKey { return holdKey{versionOf(r), *r.hold} }

// holdOrders holds orders without a result.
func (e *core) holdOrders(key holdKey, runs []*run) []*run {
	rows, err := e.query.OrdersHold(e.ctx, db.OrdersHoldParams{OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Hold: key.code, HoldReason: key.reason, Seconds: key.atMost.Seconds()})
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
	end(nil, held...)
	e.missed(lost)
	return runs
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
// An order that is not complete is read first, so that what is shown is what is stored. It returns orders that were
// claimed meanwhile, for which new runs are needed.
func (e *core) finish(runs []*run) []orders.Order {
	e.readIncomplete(runs)
	removed, claimed := e.runs.remove(runs)
	for _, r := range removed {
		if r.err == nil {
			r.markKnown()
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
	if pg.SchemaMismatch(err) { // they have ended, and what is shown of them can't be read
		e.schemaHealth.standStill("read orders", err)
		end(errSchemaMismatch, unread...)
		return
	}
	if len(rows) == 0 && e.ctx.Err() != nil { // nothing was read
		end(orders.ErrStopping, unread...)
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
		end(errLost, r)
	}
}
