package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pawl/db"
	"pawl/orders"
)

// proofAge is how long a proof that the statements can be prepared is believed. It costs
// some 15 ms of a connection.
const proofAge = 10 * time.Second

// proof says that all statements could be prepared.
type proof struct {
	at  time.Time
	met int64 // errors met before it began: it says nothing about one that was met later
}

// prove has all statements prepared, unless that was done lately and no statement has met an
// error since that speaks against it.
func (h *schemaHealth) prove(ctx context.Context, pool *db.Pool) error {
	if h.proved(pool) {
		return nil
	}
	select {
	case h.proving <- struct{}{}:
		defer func() { <-h.proving }()
	case <-ctx.Done():
		return orders.Unavailable("prepare statements", ctx.Err())
	}
	if h.proved(pool) { // by the one we waited for
		return nil
	}
	met := pool.SchemaMismatches()
	if err := checkStatements(ctx, pool); err != nil {
		h.proof.Store(nil)
		return err
	}
	h.proof.Store(&proof{at: time.Now(), met: met})
	return nil
}

func (h *schemaHealth) proved(pool *db.Pool) bool {
	p := h.proof.Load()
	return p != nil && p.met == pool.SchemaMismatches() && time.Since(p.at) < proofAge
}

// checkStatements has the server parse every statement of this program.
func checkStatements(ctx context.Context, pool *db.Pool) error {
	err := pool.Check(ctx)
	if errors.Is(err, db.ErrSchemaMismatch) {
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	}
	return orders.Unavailable("prepare statements", err)
}
