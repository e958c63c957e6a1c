package ledger

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Batch is a group of orders that are expected at the same status, fence and seq. The
// numbers need no order: the statements lock in theirs.
type Batch struct {
	OrderNos []int64
	Expected fsm.State
	Fence    int64
	Seq      int32
}

// Moved is the verdict on one order that moved: the row of its history.
type Moved struct {
	OrderNo  int64
	Seq      int32
	ToStatus fsm.State
	At       time.Time
}

// Move takes a batch out of its state, effect and history included, in one commit. The
// orders returned have moved if and only if the error is nil; an order of the batch that
// is not returned has not been touched.
type Move func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error)

// Moves is the move of every state that is ours to leave.
var Moves = map[fsm.State]Move{
	fsm.Pending:    moveOf((*db.Queries).OrdersStart),
	fsm.Charging:   oneOr((*db.Queries).OrdersChargeOne, moveOf((*db.Queries).OrdersCharge)),
	fsm.Reserving:  oneOr((*db.Queries).OrdersReserveOne, moveOf((*db.Queries).OrdersReserve)),
	fsm.Confirming: oneOr((*db.Queries).OrdersConfirmOne, moveOf((*db.Queries).OrdersConfirm)),
	fsm.Releasing:  moveOf((*db.Queries).OrdersRelease),
	fsm.Refunding:  moveOf((*db.Queries).OrdersRefund),
}

// All moves take the parameters of Batch and answer with the columns of Moved; those of
// one order take its number. sqlc gives each its own types; a statement that strays from
// the shape does not compile.
type (
	params interface {
		~struct {
			OrderNos []int64
			Expected fsm.State
			Fence    int64
			Seq      int32
		}
	}
	paramsOfOne interface {
		~struct {
			OrderNo  int64
			Expected fsm.State
			Fence    int64
			Seq      int32
		}
	}
	row interface {
		~struct {
			OrderNo  int64
			Seq      int32
			ToStatus fsm.State
			At       time.Time
		}
	}
)

func moveOf[P params, R row](statement func(*db.Queries, context.Context, P) ([]R, error)) Move {
	return func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
		return movedBy(statement(q, ctx, P(batch)))
	}
}

// oneOr sends the statement of one order for a batch of one. That statement leaves alone whatever does not go straight
// on, and any other batch is too large for it: those take the other move.
func oneOr[P paramsOfOne, R row](statement func(*db.Queries, context.Context, P) ([]R, error), other Move) Move {
	type one struct {
		OrderNo  int64
		Expected fsm.State
		Fence    int64
		Seq      int32
	}
	return func(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
		if len(batch.OrderNos) == 1 {
			moved, err := movedBy(statement(q, ctx, P(one{batch.OrderNos[0], batch.Expected, batch.Fence, batch.Seq})))
			if err != nil || len(moved) > 0 {
				return moved, err
			}
		}
		return other(ctx, q, batch)
	}
}
