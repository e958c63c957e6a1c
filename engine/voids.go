package engine

import (
	"slices"

	"pawl/db"
	"pawl/fsm"
)

// voidKey is a key of an earlier generation.
type voidKey struct {
	step       fsm.Step
	generation int32
	policy     int32
}

// lookVoids finds the keys of earlier generations that must be dead before another
// charge or reservation is sent.
func (e *Engine) lookVoids(set []*run) {
	set = slices.Clone(set)
	for _, r := range set {
		ctx, cancel := e.statement()
		rows, err := e.query.AttemptsToVoid(ctx, db.AttemptsToVoidParams{OrderNo: r.no(), Generation: r.order.Order.Generation})
		cancel()
		if err != nil {
			e.log.Warn("look for keys to void", "order_id", r.orderID, "error", err)
			e.later([]*run{r})
			continue
		}
		r.voided, r.voids = true, nil
		for _, row := range rows {
			r.voids = append(r.voids, voidKey{fsm.Step(row.Step), row.Generation, value(row.Policy)})
		}
		e.drive([]*run{r})
	}
}
