package engine_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/internal/pg"
	"pawl/test/dbtest"
)

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
					if got := value[int](t, b.Pool, `SELECT c.n FROM counter AS c WHERE c.id = $1`, i); got != n {
						t.Fatalf("%s, %s: executed %d times", name, f, got-n+1)
					}
					if pg.FaultOf(err) != pg.Unknown {
						t.Errorf("%s, %s: %v is not unknown", name, f, err)
					}
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
		if pg.FaultOf(err) != pg.Unknown {
			t.Errorf("%v is not unknown", err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = v.mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	lost := p.cut(1, 1, v.fate)
	err = v.send(t.Context(), conn)
	if len(lost()) != 1 {
		t.Fatalf("lost %q", lost())
	}
	return err
}
