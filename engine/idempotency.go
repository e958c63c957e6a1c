package engine

import (
	"bytes"
	"context"
	"errors"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// keyKeepTries bounds how often a key is stored that another request stores concurrently.
const keyKeepTries = 20

// keepKey sees to it that the key of a request about a stored order stands for that request, and for no other one. The
// key of the request that made the order was committed with it. Errors: orders.ErrKeyReused, orders.ErrUnavailable, and
// startOver if a crash took the order.
func (e *core) keepKey(ctx context.Context, r *run, in *Input) error {
	if in.Key == nil || in.Key.stands(r.kept.Load()) {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	p := db.IdempotencyKeyKeepParams{Key: in.Key.Key, Principal: in.Key.Principal, Fingerprint: in.Key.fingerprint, OrderNo: r.stored.OrderNo}
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
		case fault == pg.None:
			if _, err := e.readStored(ctx, r, in); err != nil {
				return err
			}
		}
		e.backOff(try)
	}
	return orders.ErrUnavailable
}

// startOver ends a run whose request can't go on here, which is not the fault of those who share the run: they ask anew.
type startOver struct {
	key    *IdempotencyKey // of the request that made the run; nil: that one starts over, too
	answer error           // to the request with that key
}

// errLost: the order that a run was about is not there. A crash of the server took it before anything was told of it, or it was
// removed. What the run knows of it, and compares with, is worth nothing.
var errLost = &startOver{answer: orders.ErrNotFound}

func (s *startOver) Error() string { return s.answer.Error() }

// answerTo is the error of a request for the order of the run.
func (s *startOver) answerTo(in *Input) error {
	if in.Key != nil && in.Key.stands(s.key) {
		return s.answer
	}
	return s
}

// anew repeats a request as long as its run ends with startOver.
func anew(ctx context.Context, do func() (orders.Order, error)) (orders.Order, error) {
	for {
		order, err := do()
		if _, again := errors.AsType[*startOver](err); !again {
			return order, err
		}
		if ctx.Err() != nil {
			return orders.Order{}, ended(ctx)
		}
	}
}

// readStored reads the order of a run as durably as the settings demand. An order with another number is another order,
// because numbers never come again. A request (in) then starts over, once the run has found out, too; a caller without one
// asks for the order with this id, whichever it is.
func (e *core) readStored(ctx context.Context, r *run, in *Input) (orders.Order, error) {
	order, err := e.Orders.GetDurable(ctx, r.orderID)
	if in != nil && (errors.Is(err, orders.ErrNotFound) || err == nil && order.OrderNo != r.stored.OrderNo) {
		select {
		case <-r.done:
		case <-ctx.Done():
		}
		return orders.Order{}, errLost.answerTo(in)
	}
	return order, err
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
			end(&startOver{r.input.Key, reused(stored, r.input.Key.fingerprint, keyedMembers)}, r)
		}
	}
	return append(others, e.readSeen(seen)...)
}

// fingerprintOf is the fingerprint of the request that a key belongs to, or nil.
func fingerprintOf(key *IdempotencyKey, rows []db.IdempotencyKeysOfRow) []byte {
	for _, row := range rows {
		if row.Key == key.Key && row.Principal == key.Principal {
			return row.Fingerprint
		}
	}
	return nil
}

// readSeen reads the orders of requests whose keys are stored, because they may have been stored together just now.
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
		end(&startOver{r.input.Key, orders.ErrNotFound}, r)
	}
	return append(removed, e.settle(present, rows)...)
}
