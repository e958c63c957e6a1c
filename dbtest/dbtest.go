// Package dbtest gives every test a PostgreSQL database of its own, migrated and empty, so that tests run in parallel
// against the real thing.
//
// The first test that asks starts a server with pgembed, one for the whole test binary, and migrates a template; each
// database is then a copy of the template. A package that uses dbtest ends its tests through Main:
//
//	func TestMain(m *testing.M) { dbtest.Main(m) }
//
// With PAWL_TEST_DATABASE_URL set (a postgres:// URL whose user may create databases) no server is started and the
// databases are made there.
package dbtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// maxConns is small on purpose: many tests share one server, and a test that needs more connections is rare.
const maxConns = 8

// releaseLimit is how long a test may take to release its connections after it has ended.
const releaseLimit = 10 * time.Second

// Database is a database that belongs to one test.
type Database struct {
	// URL is for pgx, for the service under test and, on a failure, for psql.
	URL string
	// Pool has at most 8 connections. It is closed after the test.
	Pool *pgxpool.Pool
}

// New creates a migrated database without orders. It is dropped after the test, and so are connections to it that are
// still open; one that was acquired from Pool and never released fails the test. Safe for parallel tests.
func New(t testing.TB) *Database {
	t.Helper()
	s := use(t)
	template, err := s.template()
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	url := s.database(t, template)
	return &Database{URL: url, Pool: openPool(t, url)}
}

// Empty creates a database without any tables and returns its URL. It is dropped after the test. Safe for parallel tests.
func Empty(t testing.TB) string {
	t.Helper()
	return use(t).database(t, "template1")
}

// database copies a template for the time of a test.
func (s *server) database(t testing.TB, template string) string {
	t.Helper()
	name := newName("test")
	if err := s.create(t.Context(), name, template); err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.drop(context.WithoutCancel(t.Context()), name); err != nil {
			t.Errorf("dbtest: %v", err)
		}
	})
	return s.url(name)
}

func openPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	config.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(func() {
		if err := closePool(pool, releaseLimit); err != nil {
			t.Errorf("dbtest: %v", err)
		}
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
