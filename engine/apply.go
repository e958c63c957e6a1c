package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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
