package books_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/internal/books"
	"pawl/test/assert"
)

func TestVerification(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	pool, err := pgxpool.NewWithConfig(s.ctx, s.pool.Config())
	s.must(err)
	defer pool.Close()
	v := books.NewVerification(pool, books.VerificationConfig{Options: books.Options{RangeSize: 3}})
	if state := v.State(); state.Running || !state.StartedAt.IsZero() {
		t.Errorf("it runs by itself: %+v", state)
	}

	defer v.Stop()
	release := s.lock("late_undos")
	defer release()
	first, err := v.Start("ann")
	s.must(err)
	again, err := v.Start("bob")
	s.must(err)
	if !first.Running || !again.Running || again.StartedBy != "ann" || !again.StartedAt.Equal(first.StartedAt) {
		t.Errorf("started %+v, then %+v", first, again)
	}
	release()
	until(t, func() bool { return !v.State().Running })
	state := v.State()
	if state.Failed || state.Report == nil || !state.Report.OK() || state.Done != state.Total {
		t.Errorf("state %+v", state)
	}
	assert.Equal(t, pool.Stat().TotalConns(), 1, "connections")

	s.sql(noGuards + "UPDATE inventory SET sold = sold + 1 WHERE item = 'lamp'")
	_, err = v.Start("bob")
	s.must(err)
	until(t, func() bool { return !v.State().Running })
	wrong := v.State()
	if wrong.Report.OK() || wrong.StartedBy != "bob" || len(offenders(*wrong.Report)["stock"]) != 1 {
		t.Errorf("state %+v", wrong)
	}

	s.sql("ALTER TABLE late_undos RENAME TO gone")
	_, err = v.Start("bob")
	s.must(err)
	until(t, func() bool { return !v.State().Running })
	if state := v.State(); !state.Failed || state.Report != wrong.Report {
		t.Errorf("it was not read to the end, and says %+v", state)
	}
}

// A service that shuts down does not wait for the books to be read.
func TestVerificationStops(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	v := books.NewVerification(s.pool, books.VerificationConfig{})
	defer s.lock("late_undos")()
	_, err := v.Start("ann")
	s.must(err)
	v.Stop()
	if state := v.State(); state.Running || !state.Failed {
		t.Errorf("state %+v", state)
	}
	assert.ErrorIs(t, assert.Err(v.Start("ann")), books.ErrStopped, "error")
}

// lock keeps everybody from a table until it is released.
func (s *shop) lock(table string) (release func()) {
	s.Helper()
	tx, err := s.pool.Begin(s.ctx)
	s.must(err)
	_, err = tx.Exec(s.ctx, "LOCK TABLE "+table)
	s.must(err)
	return func() { _ = tx.Rollback(s.ctx) }
}

func until(t *testing.T, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// TestVerificationRests: in the background about three quarters of the time go to others. pg.Sleep may be a fifth shorter.
func TestVerificationRests(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	pool := &snapshots{Database: s.pool}
	_, err := books.Verify(s.ctx, pool, books.Options{Background: true, RangeSize: 3})
	s.must(err)
	if len(pool.began) < 4 {
		t.Fatalf("%d snapshots", len(pool.began))
	}
	for i, began := range pool.began[1:] {
		if took, rested := pool.ended[i].Sub(pool.began[i]), began.Sub(pool.ended[i]); rested < 3*took*4/5 {
			t.Errorf("it rested for %s after a snapshot of %s", rested, took)
		}
	}
}

// snapshots is a database that keeps when transactions began and ended.
type snapshots struct {
	books.Database
	began, ended []time.Time
}

type snapshot struct {
	pgx.Tx
	of *snapshots
}

func (s *snapshots) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := s.Database.BeginTx(ctx, options)
	s.began = append(s.began, time.Now())
	return snapshot{tx, s}, err
}

func (s snapshot) Commit(ctx context.Context) error {
	s.of.ended = append(s.of.ended, time.Now())
	return s.Tx.Commit(ctx)
}
