package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// sqlstate is an error as PostgreSQL reports it, and routed one as a router in between does.
func sqlstate(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Routine: "some_function"}
}
func routed(code string) error { return &pgconn.PgError{Severity: "ERROR", Code: code} }

// chosen is an error with a code that a trigger chose.
func chosen(code string) error { return &pgconn.PgError{Code: code, Routine: "exec_stmt_raise"} }

func TestFaultOf(t *testing.T) {
	t.Parallel()
	for want, errs := range map[pg.Fault]map[string]error{
		pg.None: {"no error": nil},
		pg.Again: {
			"serialization failure":              sqlstate("40001"),
			"deadlock":                           sqlstate("40P01"),
			"no such prepared statement":         sqlstate("26000"),
			"prepared statement exists":          sqlstate("42P05"),
			"cached plan must not change result": sqlstate("0A000"),
			"wrapped":                            fmt.Errorf("charge orders: %w", sqlstate("40001")),
		},
		pg.Busy: {"lock not available": sqlstate("55P03")},
		pg.Bad: {
			"number out of range":        sqlstate("22003"),
			"NUL in text":                sqlstate("22021"),
			"unique violation":           sqlstate("23505"),
			"check violation":            sqlstate("23514"),
			"raised by a trigger":        sqlstate("P0001"),
			"raised with a code":         chosen("ZZ001"),
			"assertion in a trigger":     sqlstate("P0004"),
			"policy of a row":            sqlstate("44000"),
			"more than one row":          sqlstate("21000"),
			"wrapped":                    fmt.Errorf("charge orders: %w", sqlstate("23505")),
			"joined with something else": errors.Join(errors.New("x"), sqlstate("23505")),
		},
		pg.Unknown: {
			"canceled by the server":         sqlstate("57014"),
			"terminated":                     sqlstate("57P01"),
			"server crashed":                 sqlstate("57P02"),
			"server starts":                  sqlstate("57P03"),
			"connection failure":             sqlstate("08006"),
			"too many connections":           sqlstate("53300"),
			"disk full":                      sqlstate("53100"),
			"read-only after a failover":     sqlstate("25006"),
			"internal error":                 sqlstate("XX000"),
			"a trigger about the server":     chosen("57P03"),
			"a code of an extension":         sqlstate("ZZ001"),
			"snapshot too old":               sqlstate("72000"),
			"foreign data wrapper":           sqlstate("HV00N"),
			"schema does not exist":          sqlstate("3F000"),
			"a router's own code":            routed("SPQRD"),
			"a router's constraint":          routed("23505"),
			"a router's value":               routed("22023"),
			"a router's raise":               routed("P0001"),
			"a router's lost statement":      routed("26000"),
			"a router's deadlock":            routed("40P01"),
			"a router's lock":                routed("55P03"),
			"a router's syntax":              routed("42601"),
			"wrapped, of a router":           fmt.Errorf("charge orders: %w", routed("23505")),
			"no SQLSTATE":                    &pgconn.PgError{Message: "pooler error"},
			"connection lost":                io.ErrUnexpectedEOF,
			"connection closed":              net.ErrClosed,
			"deadline":                       context.DeadlineExceeded,
			"caller gone":                    context.Canceled,
			"lost by pgx, which says retry":  pgconn.ErrConnClosed,
			"could not connect":              &pgconn.ConnectError{},
			"could not connect, and why":     fmt.Errorf("connect: %w", sqlstate("53300")),
			"row that can't be read into Go": pgx.ScanArgError{Err: io.EOF},
		},
	} {
		for name, err := range errs {
			assert.Equal(t, pg.FaultOf(err), want, name, err)
		}
	}
}

func TestSchemaMismatch(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for sql, want := range map[string]bool{
		`SELECT 1`:                                false,
		`SELECT 1 FROM nothing`:                   true,
		`SELECT nothing FROM orders`:              true,
		`SELECT nothing()`:                        true,
		`SET ROLE pg_monitor; DELETE FROM orders`: true,
		`SELECT 1 / 0`:                            false,
		`SET transaction_read_only = on; CREATE TABLE x ()`: false,
	} {
		conn, err := pgconn.Connect(t.Context(), database.AdminURL)
		assert.NoError(t, err)
		_, err = conn.Exec(t.Context(), sql).ReadAll()
		got := pg.SchemaMismatch(fmt.Errorf("wrapped: %w", err))
		assert.True(t, got == want && (!want || pg.FaultOf(err) == pg.Unknown), sql, got, "and fault", pg.FaultOf(err), err)
		assert.NoError(t, conn.Close(t.Context()))
	}
	assert.True(t, !pg.SchemaMismatch(nil) && !pg.SchemaMismatch(sqlstate("42P05")) && !pg.SchemaMismatch(routed("42601")) &&
		!pg.SchemaMismatch(io.EOF), "not every error is that of a wrong schema")
}

// TestFaultsOfAServer asks a real server for each kind.
func TestFaultsOfAServer(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	raise := func(code string) string {
		return `DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '` + code + `'; END $$`
	}
	for _, c := range []struct {
		name, sql, describe string
		want                pg.Fault
	}{
		{"raised", raise("P0001"), "P0001", pg.Bad},
		{"serialization", raise("40001"), "40001", pg.Again},
		{"a check", `INSERT INTO charges (order_no, generation, currency, amount) VALUES (1, 0, 'USD', -1)`, "23514 money_amount", pg.Bad},
		{"a key", `INSERT INTO installation DEFAULT VALUES`, "23505 installation_pkey", pg.Bad},
		{"a number", `INSERT INTO orders (order_id, status, currency, item, amount) VALUES ('x', 'charging', 'USD', 'y', 1 / 0)`, "22012", pg.Bad},
		{"the guard", `INSERT INTO orders (order_id, status, ended_as, currency, item, amount) VALUES ('x', 'completed', 'completed', 'USD', 'y', 1)`,
			"23514 orders_guard_insert", pg.Bad},
		{"a timeout", `SET statement_timeout = '1ms'; SELECT pg_sleep(60)`, "57014", pg.Unknown},
		{"a standby", `SET transaction_read_only = on; CREATE TABLE x ()`, "25006", pg.Unknown},
		{"a killed connection", `SELECT pg_terminate_backend(pg_backend_pid())`, "57P01", pg.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := pgconn.Connect(t.Context(), database.AdminURL)
			assert.NoError(t, err)
			defer conn.Close(t.Context())
			_, err = conn.Exec(t.Context(), c.sql).ReadAll()
			if got := pg.FaultOf(err); got != c.want || pg.Describe(err) != c.describe {
				t.Errorf("%v is %d and described as %q, want %d and %q", err, got, pg.Describe(err), c.want, c.describe)
			}
			assert.Equal(t, pg.Stale(err), (c.describe == "25006" || c.describe == "57P01"), err, "stale")
		})
	}
	t.Run("what else a standby says", func(t *testing.T) {
		t.Parallel()
		for _, refused := range []pgconn.PgError{{Code: "0A000", Routine: "get_relation_info"}, {Code: "XX000", Routine: "GetNewTransactionId"}} {
			if err := error(&refused); !pg.Stale(err) || pg.FaultOf(err) != pg.Unknown {
				t.Errorf("%s of %s: stale %t, fault %d", refused.Code, refused.Routine, pg.Stale(err), pg.FaultOf(err))
			}
		}
	})
	t.Run("a lock", func(t *testing.T) {
		t.Parallel()
		holder, err := database.Pool.Begin(t.Context())
		assert.NoError(t, err)
		defer holder.Rollback(t.Context())
		assert.NoError(t, assert.Err(holder.Exec(t.Context(), `LOCK TABLE charge_operations`)))
		_, err = database.Pool.Exec(t.Context(), `SET lock_timeout = '1ms'; LOCK TABLE charge_operations`)
		assert.Equal(t, pg.FaultOf(err), pg.Busy, err)
	})
	t.Run("a server that is not there", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := pgx.Connect(ctx, "postgres://pawl@127.0.0.1:1/x?sslmode=disable")
		assert.True(t, err != nil && pg.FaultOf(err) == pg.Unknown && pg.Describe(err) == "connection",
			err, "is", pg.FaultOf(err), "described as", pg.Describe(err))
	})
}

func TestDescribeTellsNoData(t *testing.T) {
	t.Parallel()
	err := &pgconn.PgError{Code: "23505", ConstraintName: "orders_order_id_key", Message: "secret", Detail: "Key (order_id)=(secret) exists", Where: "secret"}
	got := pg.Describe(fmt.Errorf("secret: %w", err))
	assert.True(t, !strings.Contains(got, "secret") && got == "23505 orders_order_id_key", got)
}
