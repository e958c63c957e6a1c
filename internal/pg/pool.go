package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool runs statements on pooled connections. It gives up a connection whose server no longer works on the
// statement: an answer that got lost is an error within a second, not a wait without end. It never
// ends a statement that the server works on. Its methods are safe for concurrent use.
type Pool struct {
	pool             *pgxpool.Pool
	gate             *gate
	silence          *silence
	observe          func(statement string, took time.Duration)
	schemaMismatches atomic.Int64
}

// SchemaMismatches is how many statements met an error so far that speaks against the schema.
func (p *Pool) SchemaMismatches() int64 { return p.schemaMismatches.Load() }

func (p *Pool) note(err error) error {
	if SchemaMismatch(err) {
		p.schemaMismatches.Add(1)
	}
	return err
}

// Check has the server prepare every statement of this program, as the function Check does.
func (p *Pool) Check(ctx context.Context) error {
	conn, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return Check(ctx, conn.Conn())
}

// acquireTry is how long to wait for one connection before asking the pool anew: the connection that is being
// made for us may be to somebody who does not answer, while another becomes free.
const acquireTry = 400 * time.Millisecond

// acquireTryAway is acquireTry while no connections can be made: only one that becomes free helps.
const acquireTryAway = 100 * time.Millisecond

// ErrNotSent: whoever wanted the statement had gone before there was a connection for it. FaultOf calls it Again.
var ErrNotSent = errors.New("not sent: nobody waits for it any more")

type callerKey struct{}

// WhileWanted returns a context for statements that are sent only while their caller waits: one that is sent long after its
// caller was told that its outcome is not known could overwrite what he wrote since. Once sent, a statement
// runs until ctx ends.
func WhileWanted(ctx, caller context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// acquire waits for a connection until ctx ends, or whoever wants it has gone.
func (p *Pool) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	caller, _ := ctx.Value(callerKey{}).(context.Context)
	if caller == nil {
		return p.acquireUntil(ctx)
	}
	wanted, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	conn, err := p.acquireUntil(wanted)
	if caller.Err() == nil {
		return conn, err
	}
	if err == nil {
		conn.Release()
	}
	return nil, ErrNotSent
}

// acquireUntil waits for a connection until ctx ends. Errors: ErrAway, if none can be made for a while and none becomes free. Once
// the server has been away for that long, it takes one more attempt.
func (p *Pool) acquireUntil(ctx context.Context) (*pgxpool.Conn, error) {
	for began, failed := time.Now(), p.gate.failed(); ; {
		conn, again, err := p.acquireOnce(ctx)
		if err == nil {
			return conn, nil
		}
		switch away := p.gate.away(); {
		case ctx.Err() != nil && away == nil:
			return nil, ctx.Err()
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w: %w", ErrAway, ctx.Err(), away)
		case !again:
			return nil, err
		case away != nil && (time.Since(began) >= repeatFor || p.gate.awayFor(repeatFor, failed)):
			return nil, fmt.Errorf("%w: %w", ErrAway, away)
		}
	}
}

// acquireOnce asks the pool for a connection. Again reports that it may have one later.
func (p *Pool) acquireOnce(ctx context.Context) (conn *pgxpool.Conn, again bool, err error) {
	try, away := acquireTry, p.gate.away() != nil
	if away {
		try = acquireTryAway
	}
	ctx, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	if away {
		ctx = context.WithValue(ctx, waiterKey{}, ctx)
	}
	conn, err = p.pool.Acquire(ctx)
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	return conn, refused || ctx.Err() != nil, err
}

// Query runs a statement that returns rows. It ends, and its connection is released, when the rows are closed.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	s := p.silence.begin(conn, sql)
	rows, err := conn.Query(ctx, sql, args...) //nolint:rowserrcheck // whoever reads them does
	if err != nil {
		return nil, errors.Join(p.note(err), p.end(s))
	}
	return &watchedRows{Rows: rows, pool: p, statement: s}, nil
}

// QueryRow runs a statement that returns one row; Scan ends it.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...) //nolint:rowserrcheck // Scan does
	return row{rows, err}
}

// Exec runs a statement that returns no rows.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := p.acquire(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	s := p.silence.begin(conn, sql)
	tag, err := conn.Exec(ctx, sql, args...)
	return tag, errors.Join(p.note(err), p.end(s))
}

// end ends a statement and tells how long it took.
func (p *Pool) end(s *statement) error {
	if p.observe != nil {
		p.observe(nameOf(s.text), time.Since(s.began))
	}
	return s.end()
}

// nameOf is the name that sqlc wrote into the first line of a statement.
func nameOf(sql string) string {
	rest, named := strings.CutPrefix(sql, "-- name: ")
	if !named {
		return "other"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}

// Close waits for the statements under way and closes all connections.
func (p *Pool) Close() {
	p.silence.dropAll()
	p.pool.Close()
	p.silence.close()
}

// Reset closes all connections as they become free: after a failover they lead to the wrong server.
func (p *Pool) Reset() { p.pool.Reset() }

// Pooled tells whether a pooler stands between us and the server.
func (p *Pool) Pooled() bool { return p.silence.pooled }

// Stat tells how many connections there are, and how many are in use.
func (p *Pool) Stat() *pgxpool.Stat { return p.pool.Stat() }

// watchedRows are the rows of a statement under way. Their error, once they are closed, is the verdict on the statement.
type watchedRows struct {
	pgx.Rows
	pool      *Pool
	statement *statement
	err       error // of the end of the statement
	ended     bool
}

func (r *watchedRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.end() // the rows close themselves after the last one
	}
	return more
}

func (r *watchedRows) Close() {
	r.Rows.Close()
	r.end()
}

func (r *watchedRows) Err() error { return errors.Join(r.Rows.Err(), r.err) }

func (r *watchedRows) end() {
	if !r.ended {
		_ = r.pool.note(r.Rows.Err())
		r.ended, r.err = true, r.pool.end(r.statement)
	}
}

// row is the one row of a statement, or why there is none.
type row struct {
	rows pgx.Rows
	err  error
}

// Scan reads the row. Errors: pgx.ErrNoRows.
func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	_, err := pgx.CollectOneRow(r.rows, func(only pgx.CollectableRow) (any, error) { return nil, only.Scan(dest...) })
	return err
}
