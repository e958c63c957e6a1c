package dbtest

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
	"pawl/migrations"
)

// Server is a PostgreSQL server that belongs to one test, for tests that take it away from the service. Its methods
// are for the test's own goroutine.
type Server struct {
	// URL is of a migrated database. It is the same after every Start.
	URL string

	running *pgembed.Server
	folder  string
}

// Restartable starts a server for this test alone, and stops it after the test. It costs about a second:
// tests that do not stop the server use New.
func Restartable(t testing.TB) *Server {
	t.Helper()
	s := &Server{folder: folder(t, folderPattern)}
	s.Start(t)
	t.Cleanup(func() { s.Stop(t) })
	s.URL = withOptions(s.running.URL("postgres"), findsTables)
	_, err := migrations.Up(t.Context(), s.URL)
	require(t, err)
	return s
}

// Start starts the server again, after Stop or Kill, and returns when it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	running, err := pgembed.Start(ctx, config(s.folder))
	require(t, err)
	s.running = running
}

// Set changes a setting of the running server.
func (s *Server) Set(t testing.TB, name, value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL)
	require(t, err)
	defer conn.Close(t.Context())
	for _, statement := range []string{"ALTER SYSTEM SET " + name + " = '" + value + "'", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("dbtest: %s: %v", statement, err)
		}
	}
	for now := ""; now != value; { // the signal takes a moment
		require(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&now))
	}
	if name == "synchronous_standby_names" && value != "" {
		s.awaitSyncRep(t, conn)
	}
}

// awaitSyncRep returns when commits wait for a standby: it is another process of the server that has them wait, and it
// hears of the setting in its own time.
func (s *Server) awaitSyncRep(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	writer, err := pgx.Connect(t.Context(), s.URL)
	require(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for err == nil {
			_, err = writer.Exec(ctx, "SELECT pg_logical_emit_message(true, 'dbtest', '')")
		}
	})
	for waits := false; !waits; {
		const waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')"
		require(t, conn.QueryRow(t.Context(), waiting, writer.PgConn().PID()).Scan(&waits))
	}
	cancel()
	ended.Wait()
	_ = writer.Close(t.Context()) // it is closed
}

// Stop shuts the server down: clients are disconnected, their transactions rolled back. A stopped server stays stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.running.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("dbtest: %v", err)
	}
}

// Kill ends the server with SIGKILL, as the out-of-memory killer does. The next Start recovers what was committed.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(s.running.PID(), syscall.SIGKILL); err != nil {
		t.Fatalf("dbtest: kill server: %v", err)
	}
	<-s.running.Exited()
	s.Stop(t)
}
