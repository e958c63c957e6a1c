package pg_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// patience is how long a test waits for what must come about, however busy the machine is.
const patience = time.Minute

func open(t *testing.T, url string) *pg.Pool {
	t.Helper()
	return dbtest.Open(t, url, pg.Options{MaxConns: 4})
}

const emit = `SELECT pg_logical_emit_message(true, 'test', $1)`

// ways are a database reached directly and behind a pooler.
func ways(t *testing.T, run func(t *testing.T, database *dbtest.Database, proxy *dbtest.Proxy)) {
	t.Helper()
	for _, way := range []string{"direct", "pooled"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			url := database.URL
			if way == "pooled" {
				url = dbtest.Pooler(t, url, "transaction")
			}
			run(t, database, dbtest.NewProxy(t, url))
		})
	}
}

// A statement that was lost on the way ends with an error, the others are answered meanwhile, and nothing is canceled.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, fate := range []dbtest.Fate{dbtest.HushRequest, dbtest.HushReply} {
		ways(t, func(t *testing.T, _ *dbtest.Database, proxy *dbtest.Proxy) {
			t.Helper()
			pool := open(t, proxy.URL)
			var hushed atomic.Bool
			proxy.On(func(statement string) dbtest.Fate {
				if statement == emit[:30] && hushed.CompareAndSwap(false, true) {
					return fate
				}
				return dbtest.Passes
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := pool.Exec(ctx, emit, "lost")
			assert.Require(t, pg.FaultOf(err) == pg.Unknown && ctx.Err() == nil, fate, err, "and the test's time", ctx.Err())
			untilKnown(t, func() error {
				_, err := pool.Exec(ctx, emit, "again")
				return err
			})
		})
	}
}

// The connection on which the server is asked may be silent, too.
func TestSilentQuestion(t *testing.T) {
	t.Parallel()
	proxy := dbtest.NewProxy(t, dbtest.New(t).URL)
	pool := open(t, proxy.URL)
	var lost, asked atomic.Int32
	proxy.On(func(statement string) dbtest.Fate {
		switch {
		case statement == "StatementsRunning" && asked.Add(1) == 1:
			return dbtest.HushReply
		case statement == "InstallationID" && lost.Add(1) <= 2:
			return dbtest.HushRequest
		}
		return dbtest.Passes
	})
	for range 2 {
		_, err := db.New(pool).InstallationID(t.Context())
		assert.Require(t, pg.FaultOf(err) == pg.Unknown, err)
	}
	untilKnown(t, func() error {
		_, err := db.New(pool).InstallationID(t.Context())
		return err
	})
	assert.True(t, asked.Load() >= 2, asked.Load())
}

// untilKnown sends a statement until its outcome is known: a server that gets no time on a busy machine looks as if it
// had lost it.
func untilKnown(t *testing.T, send func() error) {
	t.Helper()
	err := send()
	for pg.FaultOf(err) == pg.Unknown && t.Context().Err() == nil {
		err = send()
	}
	assert.True(t, err == nil, err)
}

// A statement may end just when the server is to be asked about it. Its connection is somebody else's then, or
// nobody's: the watcher neither touches it nor gives it up.
func TestStatementEndsWhileItIsLookedAt(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.New(t).URL, pg.Options{MaxConns: 1, Patience: time.Hour}) // only the test looks
	before, err := db.New(pool).BackendPID(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, pool.LookAtEnded(t.Context()))
	after, err := db.New(pool).BackendPID(t.Context())
	assert.True(t, err == nil && after == before, err, "the connection was to process", before, "and is now to", after)
}

// What the server works on is left alone, for whatever it waits.
func TestWorkingStatementIsLeftAlone(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, database *dbtest.Database, proxy *dbtest.Proxy) {
		t.Helper()
		var asked atomic.Int32
		proxy.On(func(statement string) dbtest.Fate {
			if statement == "StatementsRunning" {
				asked.Add(1)
			}
			return dbtest.Passes
		})
		pool := open(t, proxy.URL)
		holder, err := database.Pool.Begin(t.Context())
		assert.NoError(t, err)
		defer holder.Rollback(context.WithoutCancel(t.Context()))
		assert.NoError(t, assert.Err(holder.Exec(t.Context(), `LOCK TABLE installation`)))
		locked := make(chan error, 1)
		go func() {
			_, err := db.New(pool).InstallationID(t.Context())
			locked <- err
		}()
		assert.Eventually(t, "the server is asked a few times", func() bool { return asked.Load() >= 5 })
		select {
		case err := <-locked:
			t.Fatalf("given up: %v", err)
		default:
		}
		assert.NoError(t, holder.Commit(t.Context()))
		err = <-locked
		assert.True(t, err == nil, err)
	})
}

// standbyless is a server whose commits wait for a standby that never comes.
func standbyless(t *testing.T) (url string, watcher *pgxpool.Pool) {
	t.Helper()
	server := dbtest.Restartable(t)
	watcher, err := pgxpool.New(t.Context(), server.URL)
	assert.NoError(t, err)
	t.Cleanup(watcher.Close)
	server.Set(t, "synchronous_standby_names", "*")
	return server.URL, watcher
}

func ask(t *testing.T, pool *pgxpool.Pool, sql string) (yes bool) {
	t.Helper()
	assert.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&yes))
	return yes
}

// The server's own processes, such as an autovacuum worker, wait for a standby, too: they are not counted.
const (
	waiters   = ` FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'`
	oneWaits  = `SELECT count(*) = 1` + waiters
	noneWaits = `SELECT count(*) = 0` + waiters
	endWaits  = `SELECT bool_and(pg_cancel_backend(pid))` + waiters
)

// On one server, one after the other: in each only one statement waits.
func TestWaitForStandbyIsNotEnded(t *testing.T) {
	t.Parallel()
	url, watcher := standbyless(t)
	pool := open(t, url)
	cutOffWaiting(t, pool, watcher)
	endedByAPerson(t, pool, watcher)
	durableRead(t, pool, watcher)
}

// A context that ends does not end the wait.
func cutOffWaiting(t *testing.T, pool *pg.Pool, watcher *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Exec(ctx, `UPDATE pawl.installation SET created_at = created_at WHERE singleton = $1`, true)
		ended <- err
	}()
	assert.Eventually(t, "it waits", func() bool { return ask(t, watcher, oneWaits) })
	cancel()
	err := <-ended
	assert.Equal(t, pg.FaultOf(err), pg.Unknown, err)
	// A request to cancel would have been sent by now, and the wait be over. What is read on another connection says so.
	for range 20 {
		assert.Require(t, ask(t, watcher, oneWaits), "the wait for the standby was ended")
	}
	assert.True(t, ask(t, watcher, endWaits), "nothing to clean up")
	assert.Eventually(t, "it waits no more", func() bool { return ask(t, watcher, noneWaits) })
}

// If a person ends it, the statement is no success.
func endedByAPerson(t *testing.T, pool *pg.Pool, watcher *pgxpool.Pool) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), emit, "unreplicated")
		ended <- err
	}()
	assert.Eventually(t, "it waits", func() bool { return ask(t, watcher, oneWaits) })
	ask(t, watcher, endWaits)
	err := <-ended
	assert.True(t, errors.Is(err, pg.ErrNotReplicated) && pg.FaultOf(err) == pg.Unknown, err)
}

// A durable read waits, too.
func durableRead(t *testing.T, pool *pg.Pool, watcher *pgxpool.Pool) {
	t.Helper()
	read := func(durable bool) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := db.New(pool).OrdersByID(t.Context(), db.OrdersByIDParams{OrderIds: []string{"none"}, Durable: durable})
			ended <- err
		}()
		return ended
	}
	assert.NoError(t, <-read(false))
	durable := read(true)
	assert.Eventually(t, "it waits", func() bool { return ask(t, watcher, oneWaits) })
	ask(t, watcher, endWaits)
	assert.ErrorIs(t, <-durable, pg.ErrNotReplicated)
}

// A statement may end while the question about it is being put together: its connection is somebody else's by then.
func TestStatementsThatEndWhileTheyAreAskedAbout(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.New(t).URL, pg.Options{MaxConns: 8, Patience: time.Nanosecond})
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
	assert.NoError(t, err)
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	assert.NoError(t, assert.Err(holder.Exec(t.Context(), `LOCK TABLE installation`)))
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := db.New(pool).InstallationID(ctx)
			assert.Equal(t, pg.FaultOf(err), pg.Unknown, err)
		})
	}
	callers.Wait()
	var waiting int32
	const locked = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	if err := holder.QueryRow(t.Context(), locked).Scan(&waiting); err != nil || waiting > pool.Stat().MaxConns() {
		t.Errorf("%d server processes wait for %d connections, %v", waiting, pool.Stat().MaxConns(), err)
	}
	assert.NoError(t, holder.Rollback(t.Context()))
	assert.NoError(t, assert.Err(db.New(pool).InstallationID(t.Context())))
	assert.Eventually(t, "the places come back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// A statement that waited in the pooler's queue for most of its time, and is being worked on.
func TestQueuedInThePoolerIsLeftAlone(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	running := func(age time.Duration) []int64 {
		n, err := db.New(database.Pool).StatementsRunning(t.Context(), db.StatementsRunningParams{
			Pids: []int32{0}, Texts: []string{"SELECT pg_sleep(60)"}, Ages: []float64{age.Seconds()}})
		assert.NoError(t, err)
		return n
	}
	sent := time.Now()
	go func() { _, _ = database.Pool.Exec(t.Context(), "SELECT pg_sleep(60)") }() // ends with the test
	assert.Eventually(t, "it runs for 200 ms", func() bool {
		return ask(t, database.Pool, `SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND query_start < clock_timestamp() - interval '200 milliseconds'`)
	})
	assert.Equal(t, len(running(time.Since(sent))), 1, "sent a moment ago: called lost")
	assert.Equal(t, len(running(time.Since(sent)+time.Second)), 1, "queued for a second, runs for a moment: called lost")
}
