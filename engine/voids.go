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
	known      *undoKnown
}

// lookVoids finds the keys of earlier generations that must be void before another
// charge or reservation is sent: a late request with one of them could still be done.
func (e *Engine) lookVoids(set []*run) {
	for _, r := range slices.Clone(set) {
		voids, err := e.voidsOf(r)
		if e.standsDown("look for keys to void", err, []*run{r}) {
			continue
		}
		if err != nil {
			e.log.Warn("look for keys to void", "order_id", r.orderID, "error", err)
			e.later([]*run{r})
			continue
		}
		r.voided, r.voids = true, voids
		e.drive([]*run{r})
	}
}

func (e *Engine) voidsOf(r *run) (voids []voidKey, err error) {
	ctx, cancel := e.statement()
	defer cancel()
	rows, err := e.query.AttemptsToVoid(ctx, db.AttemptsToVoidParams{OrderNo: r.no(), Generation: r.order.Generation})
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		known, err := e.undoOf(ctx, r.no(), row.Generation, fsm.Step(row.Step))
		if err != nil {
			return nil, err
		}
		voids = append(voids, voidKey{fsm.Step(row.Step), row.Generation, value(row.Policy), known})
	}
	return voids, nil
}
