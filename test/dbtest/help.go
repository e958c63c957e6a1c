package dbtest

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pg"
	"pawl/test/assert"
)

// Log is a log that can be read while it is written.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was written until now.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Open opens a pool as the service does, and closes it after the test.
func Open(t testing.TB, databaseURL string, o pg.Options) *pg.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), databaseURL, o)
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Statements counts the statements of a pool that have ended.
type Statements struct {
	mu     sync.Mutex
	all    int
	byName map[string]int
}

// Observe counts a statement, as that of pg.Options.
func (s *Statements) Observe(name string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]int{}
	}
	s.all++
	s.byName[name]++
}

// Sent is how many were sent.
func (s *Statements) Sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// Named is how many of a name were sent.
func (s *Statements) Named(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
}

var generated = regexp.MustCompile("(?s)= `-- name: (\\w+) [^\n]*\n(.*?)\n`")

// Generated calls do with each statement of files that sqlc made.
func Generated(t testing.TB, files []string, do func(name, sql string)) {
	t.Helper()
	for _, file := range files {
		source, err := os.ReadFile(file)
		assert.NoError(t, err)
		for _, match := range generated.FindAllStringSubmatch(string(source), -1) {
			do(match[1], match[2])
		}
	}
}

// Explain has a statement planned, with null for each parameter.
func Explain(ctx context.Context, conn *pgx.Conn, name, sql string) (plan string, err error) {
	if _, err := conn.Exec(ctx, "PREPARE "+name+" AS "+sql); err != nil {
		return "", err
	}
	var parameters int
	row := conn.QueryRow(ctx, `SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1`, strings.ToLower(name))
	if err := row.Scan(&parameters); err != nil {
		return "", err
	}
	execute := "EXPLAIN (COSTS OFF) EXECUTE " + name
	if parameters > 0 {
		execute += "(" + strings.Repeat("NULL, ", parameters-1) + "NULL)"
	}
	rows, _ := conn.Query(ctx, execute) // CollectRows returns its error
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(lines, "\n"), err
}

// Age makes orders and stock as old as if nothing had happened for a while, and their events no longer kept.
func (d *Database) Age(t testing.TB, by time.Duration) {
	t.Helper()
	_, err := d.Pool.Exec(t.Context(), fmt.Sprintf(`DO $$
DECLARE
  change text;
BEGIN
  SET LOCAL session_replication_role = replica; -- no guards
  FOR change IN
    SELECT format('UPDATE %%s SET %%s', c.oid::regclass, string_agg(format('%%1$I = %%1$I - make_interval(secs => %[1]f)', a.attname), ', '))
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'pawl'::regnamespace AND c.relname IN ('orders', 'transitions', 'charges', 'reservations', 'confirmations',
      'charge_operations', 'disputes', 'step_calls', 'step_answers', 'late_undos', 'stock_movements')
      AND a.atttypid IN ('timestamptz'::regtype, 'pawl.moment'::regtype) GROUP BY c.oid
  LOOP
    EXECUTE change;
  END LOOP;
  DELETE FROM pawl.event_batches;
  INSERT INTO pawl.event_batches (first_event_no, last_event_no, position_from, position_to, epoch, whole)
  VALUES (1, 1, txid_current(), txid_current() + 1, 0, true);
END $$`, by.Seconds()))
	assert.NoError(t, err)
}

// FreePort returns a TCP port of the loopback interface that is free, for a server that starts later or starts again. It
// is below those that the system gives to connections and to listeners on port 0, so none of them takes it meanwhile.
func FreePort(t testing.TB) string {
	t.Helper()
	for {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			assert.NoError(t, listener.Close())
			return port
		}
	}
}

// Neutral is the environment without what the program and its database driver would listen to.
func Neutral() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "PORT" || name == "DATABASE_URL" || strings.HasPrefix(name, "PAWL_") || strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_")
	})
}

// ReadSources looks at the folders of the module, as the go command notes: it would take the result of an earlier run of a
// test for the present one's otherwise, because a program that the test builds is not a part of it.
func ReadSources(t testing.TB) {
	t.Helper()
	const root = "../.."
	assert.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "bench") {
			return fs.SkipDir
		}
		return err
	}))
}
