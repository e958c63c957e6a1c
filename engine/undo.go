package engine

import (
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// undoKnown is what is known of a key before its undo request is sent.
type undoKnown struct {
	reference string    // the provider's own name for what was done
	begun     bool      // an undo request was sent before
	named     string    // the reference it gave; empty: none
	sent      time.Time // when the key to undo was first sent
}

// name is the reference that an undo request gives; empty: it goes by the key of the original
// request. An endpoint compares bodies, so every undo request gives what the first one gave.
// Not so with Stripe: there the request is the same, whether the reference was known or is
// found by the key.
func (u *undoKnown) name(how policy.Executor) string {
	if u.begun && how != policy.Stripe {
		return u.named
	}
	return u.reference
}

// voidName is the same for a key of an earlier generation. As far as we know nothing stands
// under it, and the undo request is there to void the key, so it gives no reference of its own.
func (u *undoKnown) voidName(how policy.Executor) string {
	if !u.begun && how != policy.Stripe {
		return ""
	}
	return u.name(how)
}

// forgotten reports whether an undo request would go by a key that the provider may have
// forgotten. It would find nothing and report success, and the effect would stand.
// since: when the step came to be in doubt, if it is.
func (u *undoKnown) forgotten(how *policy.Step, o *orders.Order, since *time.Time, now time.Time) bool {
	sent := u.sent
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !provider.ByName(how.Executor, u.name(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// lookUndos reads what is known for the undo requests of orders that are being undone.
func (e *Engine) lookUndos(set []*run) {
	set = slices.Clone(set)
	ctx, cancel := e.statement()
	defer cancel()
	p := db.UndosKnownParams{}
	for _, r := range set {
		p.OrderNos = append(p.OrderNos, r.no())
		p.Generations = append(p.Generations, r.order.Generation)
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

// undoOf reads what is known for the undo request of one key.
func (e *Engine) undoOf(ctx context.Context, orderNo int64, generation int32, of fsm.Step) (*undoKnown, error) {
	rows, err := orders.Read(ctx, e.query.UndosKnown, db.UndosKnownParams{OrderNos: []int64{orderNo}, Generations: []int32{generation}, Steps: []string{string(of)}})
	if err != nil {
		return nil, orders.Unavailable("read what an undo can go by", err)
	}
	return undoKnownOf(rows[0]), nil // the statement returns one row for each key
}

func undoKnownOf(row db.UndosKnownRow) *undoKnown {
	return &undoKnown{row.Reference, row.Begun, row.Named, row.SentAt}
}
