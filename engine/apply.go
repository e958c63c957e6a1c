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

// apply is the one door to orders.status: it sends the statement of a move for runs that
// stand at the same status, fence and seq, and writes its verdict into them. The runs
// are sorted in place; those that did not move come back as lost. With an error nothing
// is known but what db.FaultOf says of it. A verdict that the machine does not know is not believed: see halt.
func (e *Engine) apply(ctx context.Context, m *mover, runs []*run) (moved, lost []*run, err error) {
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.no(), b.no()) })
	first := runs[0].order
	set := ledger.Set{OrderNos: numbersOf(runs), Expected: first.Status, Fence: first.Fence, Seq: first.Seq}
	verdicts, err := m.move(ctx, e.query, set)
	if err != nil {
		return nil, nil, err
	}
	e.Stats.Sets.Add(1)
	e.Stats.Moves.Add(int64(len(verdicts)))
	if len(verdicts) > 0 {
		e.tickOn(verdicts[0].At)
	}
	moved = make([]*run, 0, len(verdicts))
	for _, v := range verdicts {
		i, ok := slices.BinarySearchFunc(runs, v.OrderNo, func(r *run, no int64) int { return cmp.Compare(r.no(), no) })
		if !ok {
			panic("apply: the database moved an order that was not asked for")
		}
		if !m.leads(first.Status, v.ToStatus) {
			e.halt(runs[i], v)
			continue
		}
		runs[i].record(v)
		moved = append(moved, runs[i])
	}
	if len(verdicts) < len(runs) {
		for _, r := range runs {
			if r.order.Seq == set.Seq {
				lost = append(lost, r)
			}
		}
	}
	return moved, lost, nil
}

// record writes a verdict into the run. The effects of the forward path are known from
// the move itself; an order that goes back is read before it is shown.
func (r *run) record(v ledger.Moved) {
	o, at := &r.order, v.At
	event, _ := fsm.EventOf(o.Status, v.ToStatus)
	o.Status, o.Seq, r.lost = v.ToStatus, v.Seq, 0
	switch event {
	case fsm.Charged:
		o.ChargedAt = &at
	case fsm.Reserved:
		o.ReservedAt = &at
	case fsm.Confirmed:
		o.EndedAs, o.FinishedAt = &v.ToStatus, &at
		o.Owner, o.DueAt = nil, nil
	default:
		r.moved = false
	}
}

// halt stops an order that the database has moved where the machine knows no way: one of the two is wrong, and
// whoever believed the move would charge, ship or refund by it. It waits for a person, if it has not ended, and nobody is told of it.
func (e *Engine) halt(r *run, v ledger.Moved) {
	err := fmt.Errorf("unknown_move: %s to %s", r.status(), v.ToStatus)
	e.log.Error("order stopped", "order_id", r.orderID, "error", err)
	r.order.Status, r.order.Seq = v.ToStatus, v.Seq
	ctx, cancel := e.statement()
	defer cancel()
	_, holdErr := e.query.OrdersHold(ctx, db.OrdersHoldParams{OrderNos: []int64{r.no()}, Expected: v.ToStatus,
		Fence: r.order.Fence, Seq: v.Seq, Hold: fsm.HoldAttention, HoldReason: err.Error()})
	if holdErr != nil {
		e.log.Error("hold order", "order_id", r.orderID, "error", holdErr)
	}
	e.finish(err, r)
}

// redrive takes a failed order back to its beginning, as its next generation. No row: it
// is not as it was read, or something of it stands.
func (e *Engine) redrive(ctx context.Context, p db.OrderRedriveParams) ([]orders.Order, error) {
	rows, err := e.query.OrderRedrive(ctx, p)
	return writtenOrders(rows), err
}
