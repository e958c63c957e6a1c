package engine

import (
	"bytes"
	"context"
	"errors"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// keyKeepTries bounds how often it is tried to keep a key that another request keeps at the same moment.
const keyKeepTries = 20

// keepKey sees to it that the key of a request about a stored order stands for that request, and for no other one. The
// key of the request that made the order was committed with it. Errors: orders.ErrKeyReused, orders.ErrUnavailable.
func (e *core) keepKey(ctx context.Context, r *run, in *Input) error {
	if in.Key == nil || in.Key.stands(r.kept.Load()) {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	p := db.IdempotencyKeyKeepParams{Key: in.Key.Key, Principal: in.Key.Principal, Fingerprint: in.Key.fingerprint}
	for try := range keyKeepTries {
		kept, err := detached(ctx, e, func(ctx context.Context) ([][]byte, error) { return e.query.IdempotencyKeyKeep(ctx, p) })
		switch fault := pg.FaultOf(err); {
		case fault == pg.None && len(kept) == 1 && !bytes.Equal(kept[0], in.Key.fingerprint):
			return reused(kept[0], in.Key.fingerprint, keyedMembers)
		case fault == pg.None && len(kept) == 1:
			r.kept.Store(in.Key)
			return nil
		case errors.Is(err, orders.ErrUnavailable), fault == pg.Bad:
			return orders.Unavailable("keep idempotency key", err)
		}
		e.backOff(try)
	}
	return orders.ErrUnavailable
}

// keyTaken ends a run that can't be admitted because of the key of the request that made it. Other callers of the run are
// not concerned: see anew.
type keyTaken struct {
	key    *IdempotencyKey
	answer error // of the request with that key
}

func (k *keyTaken) Error() string { return k.answer.Error() }

// answerTo is what a caller of the run is told.
func (k *keyTaken) answerTo(in *Input) error {
	switch {
	case in == nil: // it asks for an order that was there a moment ago
		return orders.ErrNotFound
	case in.Key != nil && in.Key.stands(k.key):
		return k.answer
	}
	return k
}

// anew repeats a request whose run has ended because of another request's key.
func anew(ctx context.Context, do func() (orders.Order, error)) (orders.Order, error) {
	for {
		order, err := do()
		if _, taken := errors.AsType[*keyTaken](err); !taken {
			return order, err
		}
		if ctx.Err() != nil {
			return orders.Order{}, ended(ctx)
		}
	}
}

// checkKeys says where orders go that are not stored, and whose requests have a key. If the key is there, it stands for
// another request; or for this one, and the order was removed since: then it is not done a second time.
func (e *core) checkKeys(runs []*run) []*run {
	keys := make([]string, len(runs))
	for i, r := range runs {
		keys[i] = r.input.Key.Key
	}
	rows, err := untilKnown(e, "read idempotency keys", func() ([]db.IdempotencyKeysOfRow, error) { return e.query.IdempotencyKeysOf(e.ctx, keys) })
	if e.standsDown("read idempotency keys", err, runs) {
		return runs
	}
	if e.ctx.Err() != nil {
		return goTo(toHandBack, runs...)
	}
	seen, others := divide(runs, func(r *run) bool { return bytes.Equal(fingerprintOf(r.input.Key, rows), r.input.Key.fingerprint) })
	for _, r := range others {
		stored := fingerprintOf(r.input.Key, rows)
		if r.next = toReadmit; stored != nil {
			end(&keyTaken{r.input.Key, reused(stored, r.input.Key.fingerprint, keyedMembers)}, r)
		}
	}
	return append(others, e.readSeen(seen)...)
}

// fingerprintOf is what a key stands for, nil: nothing yet.
func fingerprintOf(key *IdempotencyKey, rows []db.IdempotencyKeysOfRow) []byte {
	for _, row := range rows {
		if row.Key == key.Key && row.Principal == key.Principal {
			return row.Fingerprint
		}
	}
	return nil
}

// readSeen reads the orders of requests whose keys are there: they may have been stored just now, each with its key.
func (e *core) readSeen(runs []*run) []*run {
	rows, err := e.readByID(runs)
	if e.standsDown("read orders", err, runs) {
		return runs
	}
	if e.ctx.Err() != nil {
		return goTo(toHandBack, runs...)
	}
	stored := map[string]bool{}
	for i := range rows {
		stored[rows[i].OrderID] = true
	}
	present, removed := divide(runs, func(r *run) bool { return stored[r.orderID] })
	for _, r := range removed {
		end(&keyTaken{r.input.Key, orders.ErrNotFound}, r)
	}
	return append(removed, e.settle(present, rows)...)
}
