package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestAnswersWaitForTheStandby has commits wait for a standby that is cut off. Whoever is told 200 then is lied to in
// a failover, also about rows that the primary shows after a crash.
func TestAnswersWaitForTheStandby(t *testing.T) {
	t.Parallel()
	server := dbtest.Restartable(t)
	watcher, err := pgxpool.New(t.Context(), server.URL)
	assert.NoError(t, err)
	t.Cleanup(watcher.Close)
	b := &bundle{Database: &dbtest.Database{URL: server.URL, Pool: watcher}}
	e := startEngine(t, server.URL, engine.Config{Lease: time.Second})
	b.engine = e
	b.process(t, request("before"))
	waits := request("waits")
	waits.StartAt = time.Now().Add(time.Hour)
	assert.NoError(t, assert.Err(e.Admit(t.Context(), waits)))
	server.Set(t, "synchronous_standby_names", "*")

	unanswered := func(what string, do func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		assert.ErrorIs(t, do(ctx), orders.ErrUnavailable, what)
	}
	process := func(id string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := e.Process(ctx, request(id))
			return err
		}
	}
	verb := func(id string, v orders.Verb) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := e.Do(ctx, engine.Request{Verb: v, OrderID: id, Actor: "ann"})
			return err
		}
	}
	eventually(t, "its commit waits", func() bool {
		unanswered("a new order", process("cut off"))
		return value[int](t, watcher, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) > 0
	})
	unanswered("a known order", process("before"))
	unanswered("a cancellation", verb("waits", orders.Cancel))
	unanswered("stock", func(ctx context.Context) error {
		_, err := setStock(ctx, e, "widget", 5)
		return err
	})

	server.Kill(t)
	server.Start(t)
	watcher.Reset()
	// What was committed without a standby is visible now.
	eventually(t, "the order is there after the crash", func() bool {
		return value[int](t, watcher, `SELECT count(*) FROM orders WHERE order_id = 'cut off'`) == 1
	})
	unanswered("the same order after the crash", process("cut off"))
	unanswered("the same cancellation after the crash", verb("waits", orders.Cancel))

	server.Set(t, "synchronous_standby_names", "")
	isNow(t, b.process(t, request("cut off")), fsm.Completed)
	proveBooks(t, watcher)
}

const waitForStandby = `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

// cutOff starts an engine with an order that waits for its time on a server that then waits for a standby in vain.
func cutOff(t *testing.T) (*engine.Engine, *dbtest.Server, *pgxpool.Pool) {
	t.Helper()
	server := dbtest.Restartable(t)
	watcher, err := pgxpool.New(t.Context(), server.URL)
	assert.NoError(t, err)
	t.Cleanup(watcher.Close)
	e := startEngine(t, server.URL, engine.Config{Lease: time.Minute})
	waits := request("waits")
	waits.StartAt = time.Now().Add(time.Hour)
	assert.NoError(t, assert.Err(e.Admit(t.Context(), waits)))
	server.Set(t, "synchronous_standby_names", "*")
	return e, server, watcher
}

// TestCallersLeaveNoWaitingProcesses has callers come and go while commits wait for a standby. What each leaves behind in the
// server goes on waiting, and without an end to it the server has no place for anybody.
func TestCallersLeaveNoWaitingProcesses(t *testing.T) {
	t.Parallel()
	e, _, watcher := cutOff(t)
	const poolSize = 8
	for range 10 {
		var callers sync.WaitGroup
		for range 2 * poolSize {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				_, err := e.Do(ctx, engine.Request{Verb: orders.Pause, OrderID: "waits", Actor: "ann"})
				assert.ErrorIs(t, err, orders.ErrUnavailable)
			})
		}
		callers.Wait()
	}
	n := value[int](t, watcher, waitForStandby)
	assert.True(t, n <= poolSize, n, "server processes wait for a pool of", poolSize, "connections")
}

// TestReadsWaitForTheStandby has many callers read an order under way, whose steps a failover to the standby would undo.
// None is told of it, and other orders can still be read.
func TestReadsWaitForTheStandby(t *testing.T) {
	t.Parallel()
	e, server, watcher := cutOff(t)
	short := func(read func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return read(ctx)
	}
	assert.Eventually(t, "an order waits for the standby", func() bool {
		assert.ErrorIs(t, short(func(ctx context.Context) error { return assert.Err(e.Process(ctx, request("under way"))) }), orders.ErrUnavailable)
		return value[int](t, watcher, `SELECT count(*) FROM orders WHERE owner IS NOT NULL AND seq > 1`) == 1
	})
	var callers sync.WaitGroup
	for range 40 {
		callers.Go(func() {
			assert.ErrorIs(t, short(func(ctx context.Context) error { return assert.Err(e.Orders.Get(ctx, "under way")) }), orders.ErrUnavailable, "get")
			list := func(ctx context.Context) error { _, _, err := e.Orders.List(ctx, orders.Filter{Limit: 10}); return err }
			assert.ErrorIs(t, short(list), orders.ErrUnavailable, "list")
			history := func(ctx context.Context) error {
				return assert.Err(e.Orders.Transitions(ctx, "under way", orders.Span{Before: 100, Limit: 10}))
			}
			assert.ErrorIs(t, short(history), orders.ErrUnavailable, "history")
		})
	}
	callers.Wait()
	assert.NoError(t, assert.Err(e.Orders.Get(t.Context(), "waits")))
	server.Set(t, "synchronous_standby_names", "")
	assert.NoError(t, assert.Err(e.Orders.Get(t.Context(), "under way")))
}

func TestBehindPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "session"} {
		t.Run("orders are completed in the mode "+mode, func(t *testing.T) {
			t.Parallel()
			completesBehindPooler(t, mode)
		})
	}
	t.Run("migrations are applied", func(t *testing.T) {
		t.Parallel()
		behind := dbtest.Pooler(t, dbtest.Empty(t), "transaction")
		for range 2 {
			assert.NoError(t, assert.Err(migrations.Up(t.Context(), behind)))
		}
		list, err := migrations.Status(t.Context(), behind)
		assert.Require(t, err == nil && len(list) != 0, list, err)
		for _, m := range list {
			assert.True(t, m.Applied, m.Name, "is not applied")
		}
	})
}

func completesBehindPooler(t *testing.T, mode string) {
	t.Helper()
	b := &bundle{Database: dbtest.New(t)}
	pool := openPool(t, dbtest.Pooler(t, b.URL, mode))
	b.engine = startOn(t, pool, engine.Config{})
	for range 2 * int(pool.Stat().MaxConns()) { // one server after the other, by chance
		assert.NoError(t, engine.CheckSchema(t.Context(), pool, migrations.Version()))
	}
	b.setStock(t, "few", 10)
	b.completes(t, ask(t, b.engine, requests("order", 500)...), 500)
	answers := ask(t, b.engine, withItem("few", requests("few", 20))...)
	for range 20 {
		a := <-answers
		assert.True(t, a.err == nil && a.order.Status.Final(), a.orderID, "told", a.order.Status, a.err)
	}
	proveBooks(t, b.Pool)
}

const raise = `UPDATE pawl.counter SET n = n + 1 WHERE id = $1 RETURNING n`

// TestDriver is about pgx, not about us: it is what lets us say that a write is sent once.
func TestDriver(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	b.exec(t, `CREATE TABLE counter (id integer PRIMARY KEY, n integer NOT NULL)`)
	b.exec(t, `GRANT SELECT, UPDATE ON counter TO PUBLIC`)
	for i, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b.exec(t, `INSERT INTO counter VALUES ($1, 0)`, i)
			n := 0
			for name, send := range map[string]func(context.Context, *pgx.Conn) error{
				"Exec": func(ctx context.Context, c *pgx.Conn) error { _, err := c.Exec(ctx, raise, i); return err },
				"QueryRow": func(ctx context.Context, c *pgx.Conn) error {
					var n int
					return c.QueryRow(ctx, raise, i).Scan(&n)
				},
				"Query": func(ctx context.Context, c *pgx.Conn) error {
					rows, err := c.Query(ctx, raise, i)
					if err != nil {
						return err
					}
					_, err = pgx.CollectRows(rows, pgx.RowTo[int])
					return err
				},
			} {
				for _, f := range []fate{loseRequest, loseReply} {
					if f == loseReply {
						n++
					}
					err := sendInVain(t, b, vain{mode, f, send})
					got := value[int](t, b.Pool, `SELECT c.n FROM counter AS c WHERE c.id = $1`, i)
					assert.Require(t, got == n, name, f, "executed", got-n+1, "times")
					assert.Equal(t, pg.FaultOf(err), pg.Unknown, name, f, err, "is not unknown")
				}
			}
		})
	}
	t.Run("a commit", func(t *testing.T) {
		t.Parallel()
		err := sendInVain(t, b, vain{pgx.QueryExecModeCacheStatement, loseReply, func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "COMMIT")
			return err
		}})
		t.Logf("%v; pgx calls it safe to send again: %v", err, pgconn.SafeToRetry(err))
		assert.Equal(t, pg.FaultOf(err), pg.Unknown, err, "is not unknown")
	})
}

// vain is a statement that is not answered.
type vain struct {
	mode pgx.QueryExecMode
	fate fate
	send func(context.Context, *pgx.Conn) error
}

// sendInVain sends a statement and returns its error when the server is certainly done with it.
func sendInVain(t *testing.T, b *bundle, v vain) error {
	t.Helper()
	p := newProxy(t, b.URL)
	config, err := pgx.ParseConfig(p.URL)
	assert.NoError(t, err)
	config.DefaultQueryExecMode = v.mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	lost := p.cut(1, 1, v.fate)
	err = v.send(t.Context(), conn)
	assert.Require(t, len(lost()) == 1, "lost", lost())
	return err
}
