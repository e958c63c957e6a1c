package ledger

import (
	"context"
	"slices"

	"pawl/db"
)

// forms are the statements of one move. The short ones leave out orders that do not go straight on: those that are to
// stop, or whose item is short.
type forms struct {
	one  Move // for a batch of one order
	many Move // for larger batches
	full Move // decides every order
}

// move sends the short form, and then the full one for the orders that it left out.
func (f forms) move(ctx context.Context, q *db.Queries, batch Batch) ([]Moved, error) {
	short := f.many
	if len(batch.OrderNos) == 1 {
		short = f.one
	}
	if short == nil {
		return f.full(ctx, q, batch)
	}
	moved, err := short(ctx, q, batch)
	if err != nil || len(moved) == len(batch.OrderNos) {
		return moved, err
	}
	gone := make(map[int64]bool, len(moved))
	for _, m := range moved {
		gone[m.OrderNo] = true
	}
	batch.OrderNos = slices.DeleteFunc(slices.Clone(batch.OrderNos), func(no int64) bool { return gone[no] })
	others, err := f.full(ctx, q, batch)
	if err != nil {
		return nil, err
	}
	return append(moved, others...), nil
}
