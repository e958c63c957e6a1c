package db

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrSchemaMismatch: the schema of the database is not one that the statements of this program can
// run on.
var ErrSchemaMismatch = errors.New("statements can't be prepared")

// Check has the server parse every statement of Queries, and executes none. An error that
// is ErrSchemaMismatch names those that it refuses, each with the SQLSTATE and the message of the
// server; any other error says nothing about the schema. The statements are prepared without
// a name, so it works behind a pooler, too, and leaves nothing behind on the connection.
//
// The server looks at tables, columns, types and functions when it parses. It does not look at
// privileges, at the index that an ON CONFLICT needs, or into the bodies of functions and
// triggers: that only running a statement does.
func Check(ctx context.Context, conn *pgx.Conn) error {
	p := &preparer{conn: conn.PgConn()}
	if err := callAll(ctx, New(p), p); err != nil {
		return fmt.Errorf("prepare statements: %w", err)
	}
	if len(p.refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d: %s", ErrSchemaMismatch, len(p.refused), p.seen, listed(p.refused))
}

// callAll calls every method of the queries that sends a statement, with zero values for
// its arguments. A statement that is added is called without anybody having to list it.
func callAll(ctx context.Context, q *Queries, p *preparer) error {
	queries := reflect.ValueOf(q)
	for i := range queries.NumMethod() {
		method := queries.Method(i)
		signature := method.Type()
		if signature.NumIn() == 0 || signature.In(0) != reflect.TypeFor[context.Context]() {
			continue // WithTx sends nothing
		}
		args := []reflect.Value{reflect.ValueOf(ctx)}
		for n := 1; n < signature.NumIn(); n++ {
			args = append(args, reflect.Zero(signature.In(n)))
		}
		before := p.seen
		method.Call(args) // its error is errPrepared, or that of p
		if p.failed != nil {
			return p.failed
		}
		if p.seen != before+1 {
			panic("db: " + queries.Type().Method(i).Name + " did not send its one statement") // sqlc makes other code now
		}
	}
	return nil
}

// listedMost is how many statements an error names; a table that is missing makes dozens fail.
const listedMost = 5

func listed(refused []string) string {
	if more := len(refused) - listedMost; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(refused[:listedMost], "; "), more)
	}
	return strings.Join(refused, "; ")
}

// preparer is a DBTX that prepares what it should execute.
type preparer struct {
	conn    *pgconn.PgConn
	seen    int
	refused []string
	failed  error // of the connection: nothing more is sent
}

var errPrepared = errors.New("prepared, not executed")

// statementName is what sqlc begins each statement with.
var statementName = regexp.MustCompile(`^-- name: (\w+)`)

func (p *preparer) prepare(ctx context.Context, sql string) error {
	if p.failed != nil {
		return p.failed
	}
	p.seen++
	_, err := p.conn.Prepare(ctx, "", sql, nil)
	var refusal *pgconn.PgError
	switch {
	case err == nil:
		return errPrepared
	case errors.As(err, &refusal) && !passes(refusal.Code):
		name := "a statement"
		if match := statementName.FindStringSubmatch(sql); match != nil {
			name = match[1]
		}
		p.refused = append(p.refused, fmt.Sprintf("%s: %s (%s)", name, refusal.Message, refusal.Code))
		return err
	default:
		p.failed = err
		return err
	}
}

// passes tells the SQLSTATEs that are no verdict on the statement: the connection or the server
// is going, busy or short of something, or a table is locked.
func passes(code string) bool {
	switch code[:2] {
	case "08", "40", "53", "57", "58", "XX":
		return true
	default:
		return code == "55P03"
	}
}

// Exec prepares a statement of Queries.
func (p *preparer) Exec(ctx context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, p.prepare(ctx, sql)
}

// Query prepares a statement of Queries.
func (p *preparer) Query(ctx context.Context, sql string, _ ...any) (pgx.Rows, error) {
	return nil, p.prepare(ctx, sql)
}

// QueryRow prepares a statement of Queries.
func (p *preparer) QueryRow(ctx context.Context, sql string, _ ...any) pgx.Row {
	return row{err: p.prepare(ctx, sql)}
}
