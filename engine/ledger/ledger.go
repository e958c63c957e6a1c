package ledger

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Batch is a group of orders that are expected at the same status, fence and seq. The numbers may be in any order:
// the statements lock rows by number.
type Batch = struct {
	OrderNos []int64
	Expected fsm.State
	Fence    int64
	Seq      int32
}

// Moved is the verdict on an order that moved: its history row.
type Moved = struct {
	OrderNo  int64
	Seq      int32
	ToStatus fsm.State
	At       time.Time
}

// Move moves a batch out of its state. Each order moves in one commit, with its effect and history row. Without an
// error, the returned orders have moved, and the others are unchanged. With an error, some may have moved although
// the statement for the others failed, so their rows must be read.
type Move func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error)

// Moves has the move of every state that the ledger can leave.
var Moves = map[fsm.State]Move{
	fsm.Pending:  moveOf((*db.Queries).OrdersStart),
	fsm.Charging: forms{one: moveOfOne((*db.Queries).OrdersChargeOne), full: moveOf((*db.Queries).OrdersCharge)}.move,
	fsm.Reserving: forms{one: moveOfOne((*db.Queries).OrdersReserveOne), many: moveOf((*db.Queries).OrdersReserveAll),
		full: moveOf((*db.Queries).OrdersReserve)}.move,
	fsm.Confirming: forms{one: moveOfOne((*db.Queries).OrdersConfirmOne), full: moveOf((*db.Queries).OrdersConfirm)}.move,
	fsm.Releasing: func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
		return release(ctx, q, batch, false)
	},
	fsm.Refunding: func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
		return refund(ctx, q, &Results{Batch: batch})
	},
}

// LineMoves has the moves that are other ones for orders with lines.
var LineMoves = map[fsm.State]Move{
	fsm.Reserving:  moveOf((*db.Queries).OrdersReserveLines),
	fsm.Confirming: moveOf((*db.Queries).OrdersConfirm),
}

// All moves take the parameters of Batch and return the columns of Moved; those of one order take its number. sqlc
// gives each statement its own types; one that differs from this shape does not compile.
type (
	params      interface{ ~Batch }
	paramsOfOne interface{ ~batchOfOne }
	row         interface{ ~Moved }
	batchOfOne  = struct {
		OrderNo  int64
		Expected fsm.State
		Fence    int64
		Seq      int32
	}
)

func moveOf[P params, R row](statement func(*db.Queries, context.Context, P) ([]R, error)) Move {
	return func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
		return movedBy(statement(q, ctx, P(batch)))
	}
}

func moveOfOne[P paramsOfOne, R row](statement func(*db.Queries, context.Context, P) ([]R, error)) Move {
	return func(ctx context.Context, q *db.Queries, b Batch) ([]Moved, error) {
		return movedBy(statement(q, ctx, P(batchOfOne{b.OrderNos[0], b.Expected, b.Fence, b.Seq})))
	}
}

// release undoes reservations, of the ledger or of another system.
func release(ctx context.Context, q *db.Queries, b Batch, consumes bool) ([]Moved, error) {
	return movedBy(q.OrdersRelease(ctx, db.OrdersReleaseParams{
		OrderNos: b.OrderNos, Expected: b.Expected, Fence: b.Fence, Seq: b.Seq, Consumes: consumes}))
}

// refund undoes charges, of the ledger or of a provider, with the provider's references of the refunds.
func refund(ctx context.Context, q *db.Queries, a *Results) ([]Moved, error) {
	return movedBy(q.OrdersRefund(ctx, db.OrdersRefundParams{
		OrderNos: a.OrderNos, Refs: a.each(func(x Answer) string { return x.Reference }),
		Expected: a.Expected, Fence: a.Fence, Seq: a.Seq, Consumes: a.Consumes}))
}
