package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/provider"
)

// undoKnown is what an undo can go by.
type undoKnown struct {
	reference string    // the provider's own name for what was done
	begun     bool      // an undo was sent before
	named     string    // what it named
	sent      time.Time // when the key of the do was first sent
}

// name is what an undo says is to be taken back; empty: what stands under the key of the
// do. An endpoint compares bodies, so what the first one said counts for all. Stripe is
// told the same whether the name was known or is found by the key.
func (u *undoKnown) name(how policy.Executor) string {
	if u.begun && how != policy.Stripe {
		return u.named
	}
	return u.reference
}

// voidName is the same for a key of an earlier generation, under which nothing stands as
// far as is known: it is the key that is to die.
func (u *undoKnown) voidName(how policy.Executor) string {
	if !u.begun && how != policy.Stripe {
		return ""
	}
	return u.name(how)
}

// forgotten reports whether an undo would go by a key that the provider may not know any
// more. It would find nothing, which is a success, and what was done would stand.
// since: when the step came to be in doubt, if it is.
func (u *undoKnown) forgotten(how *policy.Step, o *db.Order, since *time.Time, now time.Time) bool {
	sent := u.sent
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !provider.ByName(how.Executor, u.name(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// lookUndos finds what orders on their way back can go by.
func (e *Engine) lookUndos(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	p := db.UndosKnownParams{}
	for _, r := range set {
		p.OrderNos = append(p.OrderNos, r.no())
		p.Generations = append(p.Generations, r.order.Order.Generation)
		p.Steps = append(p.Steps, string(r.status().Step()))
	}
	rows, err := e.query.UndosKnown(ctx, p)
	if e.standsDown("look for what an undo can go by", err, set) {
		return
	}
	if err != nil {
		e.log.Warn("look for what an undo can go by", "error", err)
		e.later(set)
		return
	}
	known := make(map[int64]*undoKnown, len(rows))
	for _, row := range rows {
		known[row.OrderNo] = undoKnownOf(row)
	}
	for _, r := range set {
		r.undo = known[r.no()]
	}
	e.drive(set)
}

// undoOf is what the undo of one key can go by.
func (e *Engine) undoOf(ctx context.Context, orderNo int64, generation int32, of fsm.Step) (*undoKnown, error) {
	rows, err := e.query.UndosKnown(ctx, db.UndosKnownParams{OrderNos: []int64{orderNo}, Generations: []int32{generation}, Steps: []string{string(of)}})
	if err != nil {
		return nil, unavailable("read what an undo can go by", err)
	}
	return undoKnownOf(rows[0]), nil // a row is asked for and answered
}

func undoKnownOf(row db.UndosKnownRow) *undoKnown {
	return &undoKnown{row.Reference, row.Begun, row.Named, row.SentAt}
}
