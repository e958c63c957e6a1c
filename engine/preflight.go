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

// preflight is what was read before a call, once and for all: see queries/calls.sql.
type preflight struct {
	answer *db.CallsPreflightRow // one that came without a call and was not used yet; nil: none
	own    sentKey               // of the step that the order is at
	voids  []sentKey             // of earlier generations: a late request with one of them could still be done
	unseen bool                  // a look-up since then said that the provider has not seen the key
}

// learn notes what the result of a call says about the next one: the key was not seen, or an earlier key is void. After any
// other result an order goes on only to stop.
func (p *preflight) learn(c *call) {
	switch c.result.(type) {
	case unseen:
		p.unseen = true
	case provider.Done:
		is := func(k sentKey) bool { return k.generation == c.generation && k.step == c.step }
		if i := slices.IndexFunc(p.voids, is); i >= 0 {
			p.voids = slices.Delete(p.voids, i, i+1)
		}
	}
}

// sentKey is the key of a step, and what is known of it before it is undone.
type sentKey struct {
	step          fsm.Step
	generation    int32
	policy        int32     // it was sent under; known of earlier generations
	reference     string    // the provider's own name for what was done
	undoBegun     bool      // an undo request was sent before
	undoReference string    // the reference it gave; empty: none
	sentAt        time.Time // when the key was first sent
}

// referenceToUndo is the reference that an undo request gives; empty: it goes by the key of the original
// request. An endpoint compares bodies, so every undo request gives what the first one gave.
// Not so with Stripe: there the request is the same, whether the reference was known or is
// found by the key.
func (k *sentKey) referenceToUndo(how policy.Executor) string {
	if k.undoBegun && how != policy.Stripe {
		return k.undoReference
	}
	return k.reference
}

// referenceToVoid is the same for a key of an earlier generation. As far as we know nothing stands
// under it, and the undo request is there to void the key, so it gives no reference of its own.
func (k *sentKey) referenceToVoid(how policy.Executor) string {
	if !k.undoBegun && how != policy.Stripe {
		return ""
	}
	return k.referenceToUndo(how)
}

// undoKeyExpired reports whether an undo request would go by a key that the provider may have
// forgotten. It would find nothing and report success, and the effect would stand.
// since: when the step came to be in doubt, if it is.
func (k *sentKey) undoKeyExpired(how *policy.Step, o *orders.Order, since *time.Time, now time.Time) bool {
	sent := k.sentAt
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !foundByReference(how.Executor, k.referenceToUndo(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// readPreflight reads what has to be known before the next call of each order, by order number. Without an error none is missing.
func (e *Engine) readPreflight(ctx context.Context, runs []*run) (map[int64]*preflight, error) {
	p := db.CallsPreflightParams{}
	for _, r := range runs {
		p.OrderNos, p.Generations = append(p.OrderNos, r.no()), append(p.Generations, r.order.Generation)
		p.Steps, p.Operations = append(p.Steps, string(r.status().Step())), append(p.Operations, string(operationIn(r.status())))
	}
	return preflights(e.query.CallsPreflight(ctx, p))
}

// keyOf reads what is known of one key, for somebody who waits for it, or who undoes it late.
func (e *Engine) keyOf(ctx context.Context, orderNo int64, key sentKey, operation provider.Operation) (*preflight, error) {
	found, err := preflights(orders.Read(ctx, e.Orders, e.query.CallsPreflight, db.CallsPreflightParams{OrderNos: []int64{orderNo}, Generations: []int32{key.generation},
		Steps: []string{string(key.step)}, Operations: []string{string(operation)}}))
	if err != nil {
		return nil, orders.Unavailable("read what was sent before", err)
	}
	return found[orderNo], nil
}

func preflights(rows []db.CallsPreflightRow, err error) (map[int64]*preflight, error) {
	found := map[int64]*preflight{}
	for _, row := range rows {
		f := found[row.OrderNo]
		if f == nil {
			f = &preflight{}
			found[row.OrderNo] = f
		}
		key := sentKey{fsm.Step(row.Step), row.Generation, row.Policy, row.Reference, row.UndoBegun, row.UndoNamed, row.SentAt}
		if row.Voids {
			f.voids = append(f.voids, key)
			continue
		}
		f.own = key
		if row.Outcome != "" {
			f.answer = &row
		}
	}
	return found, err
}
