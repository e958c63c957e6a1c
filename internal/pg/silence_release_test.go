package pg_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/dbtest"
)

// A statement may end while the question about it is being put together: its connection is somebody else's by then.
func TestStatementsThatEndWhileTheyAreAskedAbout(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), dbtest.New(t).URL, pg.Options{MaxConns: 8, Patience: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 500 {
				// Without any patience a server that is short of time may be found not to have begun: that is no crash.
				if _, err := pool.Exec(t.Context(), emit, "short"); err != nil && pg.FaultOf(err) != pg.Unknown {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}

// Callers who come and go leave no more behind in the server than the pool has places, and the places come back.
func TestCutOffStatementKeepsItsPlace(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	pool := open(t, database.URL)
	holder, err := database.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), `LOCK TABLE installation`); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := db.New(pool).InstallationID(ctx); pg.FaultOf(err) != pg.Unknown {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	var waiting int32
	const locked = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	if err := holder.QueryRow(t.Context(), locked).Scan(&waiting); err != nil || waiting > pool.Stat().MaxConns() {
		t.Errorf("%d server processes wait for %d connections, %v", waiting, pool.Stat().MaxConns(), err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.New(pool).InstallationID(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, "the places come back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}
