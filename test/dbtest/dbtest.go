// Package dbtest gives every test a PostgreSQL database of its own, migrated and empty, so that tests run in parallel
// against the real thing.
//
// The first test that asks starts a server with pgembed, one for the whole test binary, and migrates a template; each
// database is then a copy of the template. A package that uses dbtest ends its tests through Main:
//
//	func TestMain(m *testing.M) { dbtest.Main(m) }
//
// With PAWL_TEST_DATABASE_URL set (a postgres:// URL whose user may create databases) no server is started and the
// databases are made there. PAWL_TEST_PG_BIN names the folder of the programs of another PostgreSQL to start.
package dbtest

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"pawl/test/assert"
)

// maxConns is small on purpose: many tests share one server, and a test that needs more connections is rare.
const maxConns = 8

// releaseLimit is how long a test may take to release its connections after it has ended.
const releaseLimit = time.Minute

// Database is a database that belongs to one test.
type Database struct {
	// AdminURL is URL with all rights, which the service has not: for tests that change the schema, or look into other
	// places.
	AdminURL string
	// URL is for pgx, for the service under test and, on a failure, for psql. A test finds the tables of `pawl` without
	// that name; the service, whose connections have a search_path of their own, does not. Connections have the role of
	// the service, as pawl migrate roles makes it, also through a proxy or a pooler.
	URL string
	// Pool has all rights, and at most 8 connections. It is closed after the test.
	Pool *pgxpool.Pool
}

// New creates a migrated database without orders. It is dropped after the test, and so are connections to it that are
// still open; one that was acquired from Pool and never released fails the test. Safe for parallel tests.
func New(t testing.TB) *Database {
	t.Helper()
	s := use(t)
	template, err := s.template()
	assert.NoError(t, err)
	return s.copyOf(t, template)
}

// Copy creates a copy of the database as it is. Nothing else may be connected to it.
func (d *Database) Copy(t testing.TB) *Database {
	t.Helper()
	d.Pool.Reset()
	u, err := url.Parse(d.AdminURL)
	assert.NoError(t, err)
	return use(t).copyOf(t, strings.TrimPrefix(u.Path, "/"))
}

func (s *server) copyOf(t testing.TB, template string) *Database {
	t.Helper()
	made := s.url(s.database(t, template))
	admin := withOptions(made, findsTables)
	return &Database{URL: withOptions(made, "-crole="+s.serves()+"\t"+findsTables), AdminURL: admin, Pool: openPool(t, admin)}
}

// Empty creates a database without any tables and returns its URL. It is dropped after the test. Safe for parallel tests.
func Empty(t testing.TB) string {
	t.Helper()
	s := use(t)
	return s.url(s.database(t, "template1"))
}

// findsTables is the option of a search_path on which SQL of tests finds the tables.
const findsTables = "-csearch_path=pawl,public"

// withOptions adds options to a URL, with tabs between them: who encodes it again makes a plus of a space, and to libpq and
// pgx it is one.
func withOptions(database, options string) string {
	u, err := url.Parse(database)
	if err != nil {
		panic(err) // it is ours
	}
	query := u.Query()
	query.Set("options", options)
	u.RawQuery = query.Encode()
	return u.String()
}

// database copies a template for the time of a test, and returns its name.
func (s *server) database(t testing.TB, template string) string {
	t.Helper()
	name := newName("test")
	assert.NoError(t, s.create(t.Context(), name, template))
	t.Cleanup(func() {
		assert.Succeeds(t, s.drop(context.WithoutCancel(t.Context()), name), "dbtest")
	})
	return name
}

func openPool(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL)
	assert.NoError(t, err)
	config.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, closePool(pool, releaseLimit), "dbtest")
	})
	return pool
}

// closePool does not wait for ever for a connection that a test forgot.
func closePool(pool *pgxpool.Pool, limit time.Duration) error {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%d connections of the pool were not released", pool.Stat().AcquiredConns())
	}
}

// SkipIfShort skips a test with -short, under the race detector: one goroutine asks, PostgreSQL computes for long, and what
// runs beside it runs in other tests, too.
func SkipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and does little at the same time")
	}
}

// Main runs the tests of a package, more of them at a time than go test would, stops the server, if one was started,
// removes its folder, and fails if a goroutine still runs. It does not return. A package without it leaves its server
// to the kernel (Linux ends it with the test binary) and its folder to the next run.
func Main(m *testing.M) { MainOf(m, 3) }

// MainOf is Main for a package of which so many tests run at a time on one core. Most of them wait: for a lease to end, a
// provider that is slow, a server that restarts. With one test per core, as go test would have it, the cores wait with them.
func MainOf(m *testing.M, atOnce int) {
	os.Exit(run(m, atOnce)) //nolint:forbidigo // a TestMain ends so
}

func run(m *testing.M, atOnce int) int {
	raiseParallel(atOnce)
	code := m.Run()
	if err := finish(); err != nil {
		fmt.Fprintf(os.Stderr, "dbtest: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// raiseParallel lets more tests run at a time, unless -parallel says how many.
func raiseParallel(atOnce int) {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if told {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce*runtime.GOMAXPROCS(0))); err != nil {
		panic(err) // the testing package has the flag
	}
}

func finish() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.server.close(); err != nil {
			return err
		}
	}
	return goleak.Find()
}

// Check is rapid.Check for properties whose rounds ask a database: one round for every ten that -rapid.checks
// asks for, 10 by default. Where one fails, it looks for a shorter way there as rapid.Check does.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	asked, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	assert.NoError(t, err)
	rounds, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if rounds >= max(asked/10, 1) && !failed {
			return
		}
		rounds++
		defer func() { failed = failed || rt.Failed() }()
		property(rt)
	})
	t.Logf("%d rounds", rounds)
}
