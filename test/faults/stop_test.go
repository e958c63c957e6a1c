package faults

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestStop asks a replica to end, as a deployment does.
func TestStop(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("under load it finishes what it has begun", func(t *testing.T) {
		t.Parallel()
		stopUnderLoad(t)
	})
	t.Run("a second signal ends it at once", func(t *testing.T) {
		t.Parallel()
		stopTwice(t)
	})
}

// stopUnderLoad replaces replicas one after the other. No caller retries: every request that arrived is answered.
func stopUnderLoad(t *testing.T) {
	t.Helper()
	s := seed(t)
	database := dbtest.New(t)
	sign(t, database)
	var loads []*traffic
	for round := range rounds(t, 1) {
		r := startReplicas(t, 1, database.URL)
		load := &traffic{url: r.any, cuts: true, once: true, callers: 32, seed: s + uint64(round), order: smallOrders(fmt.Sprint("stop-", round))}
		load.start(t)
		load.flows(100)
		began := time.Now()
		assert.Equal(t, r.all[0].terminate(), 0, "ended with")
		took := time.Since(began)
		load.finish()
		assert.Equal(t, unfinished(t, database.URL), 0, "orders were left behind")
		heard(t, database.URL, load)
		t.Logf("%d orders; %s; ended in %s", len(load.orders), load.seen(), took)
		loads = append(loads, load)
	}
	prove(t, database.URL, loads...)
	proveFences(t, database.URL)
}

// heard fails for callers who got no answer, or part of one, although their order arrived.
func heard(t *testing.T, url string, load *traffic) {
	t.Helper()
	stored := map[string]bool{}
	for _, id := range query[string](t, url, `SELECT o.order_id FROM books.orders AS o`) {
		stored[id] = true
	}
	for _, s := range load.orders {
		assert.True(t, !s.torn && (!s.cut || !stored[s.id]),
			"order", s.id, "the connection was cut; stored", stored[s.id], "in the middle of the answer", s.torn)
	}
}

// stopTwice sends a second signal.
func stopTwice(t *testing.T) {
	t.Helper()
	database := dbtest.New(t)
	r := startReplicas(t, 1, database.URL, "--grace", "10m")
	url, p := r.addresses()[0], r.all[0]
	c := newClient(1, false)
	stockUp(t, url, scarce, stock)
	lockStock(t, database.URL)
	o := order{id: "stuck", amount: "1.00", item: scarce}
	a := c.process(t.Context(), url, o, "respond-async")
	assert.Require(t, a.code == 202, "answered", a)
	p.signal(syscall.SIGTERM)
	eventually(t, startLimit, "it takes no more callers", func() bool { return c.get(t.Context(), url+"/livez").err != nil })
	assert.Require(t, p.running(), "ended with an order in hand")
	p.terminate() // it is waited for, but not for as long as its grace
}

// TestExitCodes: a supervisor tells by the code whether it helps to start again (sysexits(3)).
func TestExitCodes(t *testing.T) {
	build(t)
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	file := filepath.Join(t.TempDir(), "pawl.yaml")
	assert.NoError(t, os.WriteFile(file, []byte("lease: 5s\nleese: 5s\n"), 0o600))
	nobody := "postgres://pawl:hunter2@127.0.0.1:1/pawl"
	database := dbtest.Empty(t)
	for _, c := range []struct {
		name string
		env  []string
		args string
		code int
		says string
	}{
		{"an unknown command", nil, "bogus", 2, `unknown command "bogus"`},
		{"an unknown flag", nil, "serve --bogus", 2, "unknown flag: --bogus"},
		{"a word too many", nil, "verify everything", 2, `"everything"`},
		{"an unknown migration", nil, "migrate sideways", 2, `"sideways"`},
		{"a flag without sense", nil, "--port many", 2, "--port"},
		{"a variable without sense", []string{"PORT=many"}, "", 78, "PORT"},
		{"a setting out of range", nil, "--lease 1ms", 78, "lease must be at least 1s"},
		{"no currency", nil, "--currency usd", 78, "currency must"},
		{"no log level", []string{"PAWL_LOG_LEVEL=loud"}, "", 78, "log-level must"},
		{"a settings file that is not there", nil, "--config /nonexistent", 78, "/nonexistent"},
		{"a settings file with a misspelt key", nil, "--config " + file, 78, `"leese"`},
		{"no database URL", []string{"DATABASE_URL=nonsense"}, "", 78, "database url"},
		{"a database that loses what it commits", []string{"DATABASE_URL=" + database}, "", 78, "--allow-data-loss"},
		{"nobody at the database URL", []string{"DATABASE_URL=" + nobody}, "", 69, "read the installation: waited 30s for the database: database unavailable: connect to database: failed to connect"},
		{"no such database", []string{"DATABASE_URL=" + database + "&dbname=nowhere"}, "", 69, `database "nowhere" does not exist`}, // waiting would not help
		{"nobody to migrate", []string{"DATABASE_URL=" + nobody}, "migrate up", 69, "refused"},
		{"nobody to verify", []string{"DATABASE_URL=" + nobody}, "verify", 69, "refused"},
		{"no PostgreSQL where it was said to be", nil, "--pg-bin /nonexistent --data-dir " + filepath.Join(dbtest.Folder(t), "pawl"), 78, "/nonexistent"},
		{"a port that is taken", []string{"DATABASE_URL=" + database}, "--allow-data-loss --listen 127.0.0.1 --port " + port, 1, "another program uses"},
		{"a command that was misspelt", nil, "serv", 2, "did you mean serve?"},
		{"a demo of less than no time", nil, "demo --seconds -1", 2, "--seconds must be from 0"},
		{"a demo in a folder that is in use", nil, "demo --data-dir " + filepath.Dir(file), 2, "folder is not empty"},
		{"no database to verify", nil, "verify --data-dir /nonexistent", 69, "pawl migrate up"},
		{"books that were never opened", []string{"DATABASE_URL=" + dbtest.Empty(t)}, "verify", 69, "pawl migrate up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := launch(t, c.env, strings.Fields(c.args)...)
			code, said := p.exitCode(), p.stderr()
			assert.True(t, code == c.code && strings.Contains(said, c.says), "ends with", code, c.code, "and says", said, c.says)
			assert.True(t, !strings.Contains(said, "hunter2") && !strings.Contains(said, "goroutine") && strings.Count(said, "\n") <= 6,
				"says too much", said)
		})
	}
}

// holdOrders locks the stock and waits until that keeps so many orders from ending: the reservation of one waits for the
// lock, and the others wait behind it.
func holdOrders(t *testing.T, url string, n int64) (unlock func()) {
	t.Helper()
	unlock = lockStock(t, url)
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	eventually(t, patience, "orders wait for their stock", func() bool { return count(t, url, waiting) > 0 && unfinished(t, url) >= n })
	return unlock
}

// lockStock blocks every reservation of an item that has a stock until unlock is called.
func lockStock(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	unlock = func() { _ = conn.Close(context.WithoutCancel(t.Context())) }
	t.Cleanup(unlock)
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), "BEGIN")))
	locked, err := conn.Exec(t.Context(), "SELECT FROM pawl.inventory WHERE item = $1 FOR UPDATE", scarce)
	assert.Require(t, err == nil && locked.RowsAffected() == 1, "lock the stock", err, locked)
	return unlock
}

// metric reads a counter from /metrics.
func metric(t testing.TB, url, name string) int64 {
	t.Helper()
	c := newClient(1, false)
	a := c.get(t.Context(), url+"/metrics")
	assert.Require(t, a.err == nil && a.code == 200, "metrics", a)
	for lines := bufio.NewScanner(strings.NewReader(a.text)); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			n, err := strconv.ParseFloat(value, 64)
			assert.NoError(t, err)
			return int64(n)
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
