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
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

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
			if (err != nil) != (len(c.says) > 0) || err != nil && !errors.Is(err, pg.ErrSchemaMismatch) {
				t.Fatalf("%v", err)
			}
			for _, words := range c.says {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%v, want %q", err, words)
				}
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
		if answered {
			t.Fatalf("sent after an answer: %s", line)
		}
		switch fields[1] {
		case "Parse":
			if !strings.HasPrefix(fields[3], `"" `) {
				t.Errorf("prepared under a name, which a pooler does not keep: %s", fields[3])
			}
			parsed = append(parsed, parsedName.FindStringSubmatch(line)[1])
		case "Describe", "Sync":
		default:
			t.Errorf("sent %s", fields[1])
		}
	}
	slices.Sort(parsed)
	if all := names(t); !slices.Equal(parsed, all) || len(all) == 0 {
		t.Errorf("parsed %q\nthere are %q", parsed, all)
	}
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
			if err := pg.Check(ctx, conn); err == nil || errors.Is(err, pg.ErrSchemaMismatch) {
				t.Error(err)
			}
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
