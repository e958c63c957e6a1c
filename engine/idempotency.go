package engine

import (
	"bytes"
	"context"
	"errors"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// keyKeepTries is how often to try to store a key that another request stores at the same time.
const keyKeepTries = 20

// keepKey stores the key of a request for an existing order, so that no other request can use it. The key of the
// request that made the order was committed with it. Errors: orders.ErrKeyReused, orders.ErrUnavailable, and
// startOver if a crash has lost the order.
func (e *core) keepKey(ctx context.Context, r *run, in *Input) error {
	if in.Key == nil || in.Key.equals(r.kept.Load()) {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	p := db.IdempotencyKeyKeepParams{
		Key: in.Key.Key, Principal: in.Key.Principal, Fingerprint: in.Key.fingerprint, OrderNo: r.stored.OrderNo,
	}
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

// startOver ends a run whose request can't continue. That request gets answer. The other callers of the run are not
// at fault, and start over.
type startOver struct {
	key    *IdempotencyKey // of the request that made the run; nil: that one starts over, too
	answer error           // to the request with that key
}

// errLost ends the run of an order that is no longer stored: a crash lost it before a caller was told about it, or it
// was removed. Nothing in the run may be used.
var errLost = &startOver{answer: orders.ErrNotFound}

func (s *startOver) Error() string { return s.answer.Error() }

// answerTo is the error for one of the requests that share the run.
func (s *startOver) answerTo(in *Input) error {
	if in.Key != nil && in.Key.equals(s.key) {
		return s.answer
	}
	return s
}

// anew repeats a request while its run ends with startOver.
func anew(ctx context.Context, do func() (*orders.Order, error)) (*orders.Order, error) {
	for {
		order, err := do()
		if _, again := errors.AsType[*startOver](err); !again {
			return order, err
		}
		if ctx.Err() != nil {
			return nil, waitError(ctx)
		}
	}
}

// readStored reads the order of a run as durably as the settings demand. An order with another number is another
// order, because numbers are never reused. A request with input then starts over, after the run has ended, too. A
// caller without input gets whichever order has the id now.
func (e *core) readStored(ctx context.Context, r *run, in *Input) (*orders.Order, error) {
	order, err := e.Orders.GetDurable(ctx, r.orderID)
	if in != nil && (errors.Is(err, orders.ErrNotFound) || errors.Is(err, orders.ErrForgotten) || err == nil && order.OrderNo != r.stored.OrderNo) {
		select {
		case <-r.done:
		case <-ctx.Done():
		}
		return nil, errLost.answerTo(in)
	}
	return &order, err
}

// checkKeys decides about requests with a key whose orders are not stored. If the key is not stored, the order is
// admitted again. A stored key belongs to another request, or to this one: then the order was stored a moment ago, or
// it was removed, and is not processed a second time.
func (e *core) checkKeys(runs []*run) []*run {
	keys := make([]string, len(runs))
	for i, r := range runs {
		keys[i] = r.input.Key.Key
	}
	rows, err := untilKnown(e, "read idempotency keys", func() ([]db.IdempotencyKeysOfRow, error) {
		return e.query.IdempotencyKeysOf(e.ctx, keys)
	})
	if e.standsDown("read idempotency keys", err, runs) {
		return runs
	}
	if e.ctx.Err() != nil {
		return goTo(toHandBack, runs...)
	}
	same, others := divide(runs, func(r *run) bool {
		return bytes.Equal(fingerprintOf(r.input.Key, rows), r.input.Key.fingerprint)
	})
	for _, r := range others {
		stored := fingerprintOf(r.input.Key, rows)
		if r.next = toReadmit; stored != nil {
			endRuns(&startOver{r.input.Key, reused(stored, r.input.Key.fingerprint, keyedMembers)}, r)
		}
	}
	return append(others, e.readSame(same)...)
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

// readSame reads the orders of requests whose own keys are stored: both may have been stored together a moment ago.
func (e *core) readSame(runs []*run) []*run {
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
		endRuns(&startOver{r.input.Key, orders.ErrNotFound}, r)
	}
	return append(removed, e.settle(present, rows)...)
}
