package pg_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestOpen(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	t.Run("a direct connection is no pooler", func(t *testing.T) {
		t.Parallel()
		config, err := pgx.ParseConfig(database.URL)
		assert.NoError(t, err)
		for range 20 {
			pooled, err := pg.BehindPooler(t.Context(), config)
			assert.Require(t, !pooled && err == nil, pooled, err)
		}
	})
	t.Run("the pool prepares statements, unless the url says otherwise, and is as large as asked", func(t *testing.T) {
		t.Parallel()
		for url, want := range map[string]pgx.QueryExecMode{
			database.URL: pgx.QueryExecModeCacheStatement, database.URL + "&default_query_exec_mode=exec": pgx.QueryExecModeExec,
		} {
			pool := dbtest.Open(t, url, pg.Options{MaxConns: 3})
			mode := pool.ConnConfig().DefaultQueryExecMode
			assert.True(t, pool.Stat().MaxConns() == 3 && mode == want, pool.Stat().MaxConns(), "connections", mode)
			assert.NoError(t, assert.Err(db.New(pool).InstallationID(t.Context())))
		}
	})
	t.Run("connections of a service can be told from others", func(t *testing.T) {
		t.Parallel()
		for name, options := range map[string]pg.Options{"shop": {MaxConns: 1}, "pawl serve " + pg.ReplicaName() + " shop": {MaxConns: 1, Serves: true}} {
			pool := dbtest.Open(t, database.URL+"&application_name=shop", options)
			var got string
			err := pool.QueryRow(t.Context(), "SHOW application_name").Scan(&got)
			assert.True(t, err == nil && got == name, "named", got, name, err)
			if !options.Serves {
				assert.True(t, service(t, pool, name) == nil, "it is taken for a service")
				continue
			}
			assert.Eventually(t, "the server knows the one connection of the pool", func() bool { // that of Open may still be ending
				found := service(t, pool, name)
				return found != nil && found.Connections == 1
			})
		}
	})
	t.Run("a url that is none, or leads nowhere, is an error without its password", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{
			"postgres://pawl:secret@127.0.0.1:nowhere/x",
			"postgres://pawl:secret@127.0.0.1:1/x?sslmode=disable",
			"postgres://pawl:secret@127.0.0.1:1/x?sslmode=disable&default_query_exec_mode=exec",
		} {
			pool, err := pg.Open(t.Context(), url, pg.Options{MaxConns: 1})
			if err == nil {
				pool.Close()
				t.Errorf("%s: no error", url)
			} else if strings.Contains(err.Error(), "secret") {
				t.Error(err)
			}
		}
	})
}

// service is what the server knows of a running service of that name; nil: it knows none.
func service(t *testing.T, pool *pg.Pool, name string) *db.ServerReplicasRow {
	t.Helper()
	replicas, err := db.New(pool).ServerReplicas(t.Context(), pg.ServiceName)
	assert.NoError(t, err)
	for _, r := range replicas {
		if r.Name == name {
			return &r
		}
	}
	return nil
}

// TestSearchPathOfConnections: whatever the url, the role and the database say, a connection finds nothing but what is
// PostgreSQL's own.
func TestSearchPathOfConnections(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	_, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public', current_database()); END $$`)
	assert.NoError(t, err)
	for _, more := range []string{"", "&search_path=public", "&options=-csearch_path%3Dpublic"} {
		pool := dbtest.Open(t, strings.Replace(database.URL, "&options=-csearch_path%3Dpawl%2Cpublic", more, 1), pg.Options{MaxConns: 4})
		var path string
		err := pool.QueryRow(t.Context(), "SELECT current_setting('search_path')").Scan(&path)
		assert.True(t, err == nil && path == "pg_catalog, pg_temp", "with", more, "it finds", path, err)
	}
}

// TestSearchPathBehindPooler: there the path can't be set, so one that leads to what others may create is refused.
func TestSearchPathBehindPooler(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	exec := func(sql string) {
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), sql)), sql)
	}
	behind := dbtest.Pooler(t, database.URL, "transaction")
	for _, c := range []struct{ change, found string }{
		{`GRANT CREATE ON SCHEMA public TO PUBLIC`, "public"}, // as in every database of PostgreSQL 14
		{`REVOKE CREATE ON SCHEMA public FROM PUBLIC`, ""},
		{`GRANT CREATE ON SCHEMA public TO pg_monitor`, "public"},
		{`DROP SCHEMA public CASCADE`, ""},
		{`CREATE SCHEMA public AUTHORIZATION pg_monitor GRANT USAGE ON SCHEMA public TO PUBLIC`, "public"},
	} {
		exec(c.change)
		for name, try := range map[string]func() error{
			"a pool": func() error {
				pool, err := pg.Open(t.Context(), behind, pg.Options{MaxConns: 1})
				if err == nil {
					pool.Close()
				}
				return err
			},
			"a migration": func() error {
				_, err := pg.ConnectConfig(t.Context(), behind)
				return err
			},
		} {
			err := try()
			assert.True(t, (err != nil) == (c.found != "") && (err == nil || errors.Is(err, pg.ErrUntrusted) &&
				strings.Contains(err.Error(), "schema "+c.found+",")), name, "after", c.change, err)
		}
	}
}

// TestPlantedTableOfMigrations: on PostgreSQL 14 anybody may make the table that goose would make, with triggers of
// his.
func TestPlantedTableOfMigrations(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"goose_db_version", "goose_lock"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			url := dbtest.Empty(t)
			conn := connect(t, url)
			for _, sql := range []string{`CREATE TABLE public.` + table + ` ()`, `ALTER TABLE public.` + table + ` OWNER TO pg_monitor`} {
				assert.NoError(t, assert.Err(conn.Exec(t.Context(), sql)))
			}
			_, err := migrations.Up(t.Context(), url)
			assert.True(t, errors.Is(err, pg.ErrUntrusted) && strings.Contains(err.Error(), "public."+table), err)
		})
	}
}

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
	assert.True(t, n <= most, n, "attempts in", passed, most, "at most")
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
	n := server.admitted.Load()
	assert.True(t, n <= 2*most, n, "connections for a pool of", most, "when the server was back")
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
		assert.True(t, errors.Is(err, pg.ErrAway) && pg.FaultOf(err) == pg.Again && strings.Contains(err.Error(), "failed to connect"),
			err)
		assert.True(t, !errors.Is(err, context.Canceled) || ctx == brief, err)
	}
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
	assert.ErrorIs(t, err, pg.ErrAway, tx)
}

// TestLostConnectionsDoNotCloseTheGate: where connections can be made, one that is lost costs one new connection, and
// whoever has none waits for those there are. On a busy machine, a connection may take so long that another one is begun.
func TestLostConnectionsDoNotCloseTheGate(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	server := newEntrance(t, database.URL)
	query := db.New(server.pool(t, 4))
	server.attempts.Store(0)
	began := time.Now()
	for range 5 {
		pid, err := query.BackendPID(t.Context())
		assert.NoError(t, err)
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), "SELECT pg_terminate_backend($1, 10000)", pid)))
		_, err = query.BackendPID(t.Context())
		assert.Require(t, !errors.Is(err, pg.ErrAway), "on the connection that was ended, or on another one", err)
	}
	made, slow := server.attempts.Load(), int64(time.Since(began)/(400*time.Millisecond))
	assert.True(t, made <= 5+slow, made, "connections made in the place of 5")
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

// connect opens a connection of its own to the database of a test.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// names are those of all statements in queries/.
func names(t testing.TB) (all []string) {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	assert.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		for _, match := range regexp.MustCompile(`(?m)^-- name: (\w+) `).FindAllSubmatch(text, -1) {
			all = append(all, string(match[1]))
		}
	}
	slices.Sort(all)
	return all
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spoil string
		says        []string // empty: fit
	}{
		{"the schema of the migrations", `SELECT 1`, nil},
		{"one that a newer release added to", `ALTER TABLE charges ADD COLUMN tip numeric`, nil},
		{"a column with another name", `ALTER TABLE charges RENAME COLUMN captured_at TO taken_at`,
			[]string{`column "captured_at"`, "42703", "RemoteConfirmed: "}},
		{"a column that is gone", `ALTER TABLE step_calls DROP COLUMN undo_reference`, []string{`"undo_reference"`, "42703", "CallsBegin: "}},
		{"a column of another type", `ALTER TABLE concurrency_keys ALTER COLUMN version TYPE text`,
			[]string{"ConcurrencyGrant: ", "42"}},
		{"a table that is gone", `DROP TABLE step_answers CASCADE`, []string{`"pawl.step_answers" does not exist`, "42P01", "AnswerStore: "}},
		{"a table that is a view now", `ALTER TABLE late_undos RENAME TO undos; CREATE VIEW late_undos AS SELECT DISTINCT * FROM undos`,
			[]string{"LateUndo", "55000"}},
		{"a function that is gone", `ALTER FUNCTION pg_catalog.starts_with(text, text) RENAME TO begins_with`,
			[]string{"starts_with(", "42883", "OrdersFind: "}},
		{"no schema at all", `DROP SCHEMA pawl CASCADE`, []string{"of ", "; and ", " more", "42P01"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, dbtest.New(t).AdminURL)
			assert.NoError(t, assert.Err(conn.Exec(t.Context(), c.spoil)))
			err := pg.Check(t.Context(), conn)
			assert.Require(t, (err != nil) == (len(c.says) > 0) && (err == nil || errors.Is(err, pg.ErrSchemaMismatch)), err)
			for _, words := range c.says {
				assert.Contains(t, err.Error(), words, err)
			}
		})
	}
}

var parsedName = regexp.MustCompile(`-- name: (\w+)`)

// TestCheckReachesEveryStatement looks at the wire: each statement of queries/ is parsed by the server, once, and
// nothing is executed. All are sent before the first answer is waited for.
func TestCheckReachesEveryStatement(t *testing.T) {
	t.Parallel()
	conn := connect(t, dbtest.New(t).AdminURL)
	var wire bytes.Buffer
	conn.PgConn().Frontend().Trace(&wire, pgproto3.TracerOptions{SuppressTimestamps: true})
	assert.NoError(t, pg.Check(t.Context(), conn))
	conn.PgConn().Frontend().Untrace()
	var parsed []string
	answered := false
	for line := range strings.Lines(wire.String()) {
		fields := strings.SplitN(strings.ReplaceAll(line, "\t ", "\t"), "\t", 4)
		answered = answered || fields[0] == "B"
		if fields[0] != "F" {
			continue
		}
		assert.Require(t, !answered, "sent after an answer", line)
		switch fields[1] {
		case "Parse":
			assert.True(t, strings.HasPrefix(fields[3], `"" `), "prepared under a name, which a pooler does not keep", fields[3])
			parsed = append(parsed, parsedName.FindStringSubmatch(line)[1])
		case "Describe", "Sync":
		default:
			t.Errorf("sent %s", fields[1])
		}
	}
	slices.Sort(parsed)
	all := names(t)
	assert.True(t, slices.Equal(parsed, all) && len(all) != 0, "parsed", parsed, "there are", all)
}

// TestCheckTellsATroubledDatabase has a table locked, the server end the connection, and the caller give up: none of it
// says anything about the schema.
func TestCheckTellsATroubledDatabase(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	tx, err := database.Pool.Begin(t.Context())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // it holds the lock only
	assert.NoError(t, assert.Err(tx.Exec(t.Context(), `LOCK TABLE charges`)))
	for name, prepare := range map[string]func(conn *pgx.Conn) (context.Context, error){
		"a locked table": func(conn *pgx.Conn) (context.Context, error) {
			_, err := conn.Exec(t.Context(), `SET lock_timeout = '10ms'`)
			return t.Context(), err
		},
		"a caller who gives up": func(*pgx.Conn) (context.Context, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			t.Cleanup(cancel)
			return ctx, nil
		},
		"a connection that is gone": func(conn *pgx.Conn) (context.Context, error) {
			return t.Context(), conn.Close(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, database.URL)
			ctx, err := prepare(conn)
			assert.NoError(t, err)
			err = pg.Check(ctx, conn)
			assert.True(t, err != nil && !errors.Is(err, pg.ErrSchemaMismatch), err)
		})
	}
}

// BenchmarkCheck is what a proof costs: it is made at the start and by health checks.
func BenchmarkCheck(b *testing.B) {
	conn := connect(b, dbtest.New(b).URL)
	for b.Loop() {
		assert.NoError(b, pg.Check(b.Context(), conn))
	}
}
