package pg_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// entrance counts the connections that are made to a server, and refuses them while it is closed.
type entrance struct {
	*dbtest.Proxy
	closed   atomic.Bool
	attempts atomic.Int64
	admitted atomic.Int64
}

func newEntrance(t *testing.T, databaseURL string) *entrance {
	t.Helper()
	e := &entrance{Proxy: dbtest.NewProxy(t, databaseURL)}
	e.OnConnect(func() int64 {
		e.attempts.Add(1)
		if e.closed.Load() {
			return 0
		}
		e.admitted.Add(1)
		return dbtest.Unlimited
	})
	return e
}

func (e *entrance) pool(t *testing.T, most int32) *pg.Pool {
	t.Helper()
	return dbtest.Open(t, e.URL, pg.Options{MaxConns: most, Patience: time.Hour}) // no connection looks for lost statements
}

// close refuses connections from now on, and ends those that are there.
func (e *entrance) close() {
	e.closed.Store(true)
	e.Cut()
}

// attemptsBounded: at first every place of a pool may have an attempt under way, and from then on the pauses grow.
func (e *entrance) attemptsBounded(t *testing.T, most int64, passed time.Duration) {
	t.Helper()
	n := e.attempts.Load()
	for pause, at := 20*time.Millisecond, time.Duration(0); at < passed; pause = min(2*pause, 500*time.Millisecond) {
		at += pause * 4 / 5
		most++
	}
	t.Logf("%d attempts in %s", n, passed)
	if n > most {
		t.Errorf("%d attempts in %s, want %d at most", n, passed, most)
	}
}

// together has many callers send a statement until it is answered, and returns when all were.
func together(ctx context.Context, t *testing.T, callers int, read func(context.Context) (int32, error)) *sync.WaitGroup {
	t.Helper()
	var answered sync.WaitGroup
	for range callers {
		answered.Go(func() {
			for {
				_, err := pg.Repeat(ctx, ctx, read)
				if err == nil {
					return
				}
				if ctx.Err() != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return &answered
}

// TestOneAttemptAtATime: while a server accepts no connections, a process makes a few attempts, however many callers
// there are. When it accepts them again, all callers are answered, and about as many connections are made as the pool
// may have: one that nothing waited for when it was made is tried first, and replaced if that takes too long.
func TestOneAttemptAtATime(t *testing.T) {
	t.Parallel()
	const most, callers, seen = 8, 64, 20
	server := newEntrance(t, dbtest.New(t).URL)
	pool := server.pool(t, most)
	query := db.New(pool)
	assert.NoError(t, assert.Err(query.BackendPID(t.Context())))
	server.close()
	server.attempts.Store(0)
	began := time.Now()
	answered := together(t.Context(), t, callers, query.BackendPID)
	for server.attempts.Load() < seen {
		<-time.After(10 * time.Millisecond)
	}
	server.attemptsBounded(t, most, time.Since(began))
	server.admitted.Store(0)
	server.closed.Store(false)
	answered.Wait()
	if n := server.admitted.Load(); n > 2*most {
		t.Errorf("%d connections for a pool of %d when the server was back", n, most)
	}
}

// TestAwayIsSaid: a statement waits for a moment, and then its error has the reason. It was certainly not sent.
func TestAwayIsSaid(t *testing.T) {
	t.Parallel()
	server := newEntrance(t, dbtest.New(t).URL)
	pool := server.pool(t, 2)
	server.close()
	brief, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), brief} {
		if ctx == brief {
			time.AfterFunc(50*time.Millisecond, cancel)
		}
		_, err := pool.Exec(ctx, "SELECT 1")
		if !errors.Is(err, pg.ErrAway) || pg.FaultOf(err) != pg.Again || !strings.Contains(err.Error(), "failed to connect") {
			t.Errorf("%v", err)
		}
		if errors.Is(err, context.Canceled) && ctx != brief {
			t.Errorf("%v", err)
		}
	}
	if tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{}); !errors.Is(err, pg.ErrAway) {
		t.Errorf("%v, %v", tx, err)
	}
}

// TestLostConnectionsDoNotCloseTheGate: where connections can be made, one that is lost costs one new connection, and
// whoever has none waits for those there are.
func TestLostConnectionsDoNotCloseTheGate(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	server := newEntrance(t, database.URL)
	pool := server.pool(t, 4)
	query := db.New(pool)
	server.attempts.Store(0)
	for n := range int64(5) {
		pid, err := query.BackendPID(t.Context())
		assert.NoError(t, err)
		if made := server.attempts.Load(); made != n+1 {
			t.Fatalf("%d connections made after %d were lost", made, n)
		}
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), "SELECT pg_terminate_backend($1, 10000)", pid)))
		if _, err := query.BackendPID(t.Context()); err == nil || errors.Is(err, pg.ErrAway) {
			t.Fatalf("on the connection that was ended: %v", err)
		}
	}
}

// TestFullServer: a server that has no place for one more connection is there for those that it has.
func TestFullServer(t *testing.T) {
	t.Parallel()
	server := newEntrance(t, dbtest.New(t).URL)
	pool := server.pool(t, 8)
	query := db.New(pool)
	assert.NoError(t, assert.Err(query.BackendPID(t.Context())))
	server.attempts.Store(0)
	server.OnConnect(func() int64 {
		server.attempts.Add(1)
		if has := pool.Stat(); has.AcquiredConns()+has.IdleConns() > 0 {
			return 0
		}
		return dbtest.Unlimited // the pool has given its connection up, and the server has a place again
	})
	began := time.Now()
	for range 10 {
		together(t.Context(), t, 16, query.BackendPID).Wait()
	}
	server.attemptsBounded(t, 8, time.Since(began))
}
