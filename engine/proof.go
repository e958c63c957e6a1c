package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
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
func (f *fitness) prove(ctx context.Context, pool *pgxpool.Pool) error {
	if f.proved() {
		return nil
	}
	select {
	case f.proving <- struct{}{}:
		defer func() { <-f.proving }()
	case <-ctx.Done():
		return unavailable("prepare statements", ctx.Err())
	}
	if f.proved() { // by the one we waited for
		return nil
	}
	met := f.met.Load()
	if err := checkStatements(ctx, pool); err != nil {
		f.proof.Store(nil)
		return err
	}
	f.proof.Store(&proof{at: time.Now(), met: met})
	return nil
}

func (f *fitness) proved() bool {
	p := f.proof.Load()
	return p != nil && p.met == f.met.Load() && time.Since(p.at) < proofAge
}

// checkStatements has the server parse every statement of this program.
func checkStatements(ctx context.Context, pool *pgxpool.Pool) error {
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return db.Check(ctx, c.Conn()) })
	if errors.Is(err, db.ErrUnfit) {
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	}
	return unavailable("prepare statements", err)
}
