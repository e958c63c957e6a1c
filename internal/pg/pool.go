// Package pg connects to PostgreSQL: a pool that cancels no statement, a watchdog for statements without an answer,
// what errors mean, and what a connection must be before Pawl trusts it.
package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
)

// Options of a pool.
type Options struct {
	MaxConns int32         // maximum number of connections, besides one of the watchdog
	Patience time.Duration // how long a statement may take before the server is asked about it; 0: DefaultPatience
	Serves   bool          // the pool belongs to a running service: its connections have ServiceName

	// Connected checks every new connection. If it returns an error, the connection is closed. Nil: no check.
	Connected func(context.Context, *pgx.Conn) error

	// Observe is called with the name of every statement that has ended, and the time from when it had a connection to its
	// last row. It must be safe for concurrent use. Nil: not called.
	Observe func(statement string, took time.Duration)
}

// ServiceName begins the application_name of every connection of a running service. The name of the replica and the
// application_name in the url follow.
const ServiceName = "pawl serve"

// ReplicaName tells this process from other services on the same database: host name and process ID.
var ReplicaName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.40s:%d", strings.ReplaceAll(host, " ", "_"), os.Getpid())
})

// Open connects to the database at url and returns a pool. The error is ErrUntrusted if other roles could make our
// statements run their code. Behind a pooler (PgBouncer), which may send each transaction to another server connection,
// prepared statements are not used, unless default_query_exec_mode in the url says so.
func Open(ctx context.Context, url string, options Options) (*Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	harden(config.ConnConfig)
	gate := newGate()
	config.MaxConns, config.ConnConfig.Tracer = options.MaxConns, gate
	config.PingTimeout = askLimit // a connection that has been idle is tried before it is used
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		readDecimalsAsText(conn)
		if options.Connected == nil {
			return nil
		}
		return options.Connected(ctx, conn)
	}
	if options.Serves {
		named := config.ConnConfig.RuntimeParams
		named["application_name"] = strings.TrimSpace(ServiceName + " " + ReplicaName() + " " + named["application_name"])
	}
	pooled, err := fixSearchPath(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if pooled && !strings.Contains(url, "default_query_exec_mode") {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	watchdog := newWatchdog(config.ConnConfig, pooled, cmp.Or(options.Patience, DefaultPatience))
	return &Pool{pool: pool, gate: gate, observe: options.Observe, watchdog: watchdog}, nil
}

// readDecimalsAsText makes PostgreSQL send decimals as text: from the binary format, pgx reads 0.00 as 0.
func readDecimalsAsText(conn *pgx.Conn) {
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "numeric", OID: pgtype.NumericOID, Codec: textDecimals{}})
}

type textDecimals struct{ pgtype.NumericCodec }

// PreferredFormat is the format that pgx requests.
func (textDecimals) PreferredFormat() int16 { return pgtype.TextFormatCode }

// BeginTx starts a transaction, to read several statements in one snapshot. The watchdog does not watch them.
func (p *Pool) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	conn, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return transaction{tx, conn}, nil
}

// transaction releases its connection when it ends.
type transaction struct {
	pgx.Tx
	conn *pgxpool.Conn
}

// Commit commits, and releases the connection.
func (t transaction) Commit(ctx context.Context) error {
	defer t.conn.Release()
	return t.Tx.Commit(ctx)
}

// Rollback rolls back, and releases the connection. After Commit it only returns pgx.ErrTxClosed: a second Release
// has no effect.
func (t transaction) Rollback(ctx context.Context) error {
	defer t.conn.Release()
	return t.Tx.Rollback(ctx)
}

// Pool runs statements on pooled connections. It gives up a connection whose server does not work on the statement: a
// lost answer is an error within a second, not an endless wait. It never ends a statement that the server works on. Its
// methods are safe for concurrent use.
type Pool struct {
	pool             *pgxpool.Pool
	gate             *gate
	watchdog         *watchdog
	observe          func(statement string, took time.Duration)
	schemaMismatches atomic.Int64
	abandoned        atomic.Bool // the server has ended for good
}

// SchemaMismatches counts the statements so far that did not fit the schema.
func (p *Pool) SchemaMismatches() int64 { return p.schemaMismatches.Load() }

func (p *Pool) note(err error) error {
	if SchemaMismatch(err) {
		p.schemaMismatches.Add(1)
	}
	return err
}

// Check is the function Check on a connection of the pool.
func (p *Pool) Check(ctx context.Context) error {
	conn, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return Check(ctx, conn.Conn())
}

// acquireTry is how long to wait for a connection before asking the pool again: the connection that is being made may
// be to a server that does not answer, while another one becomes free.
const acquireTry = 400 * time.Millisecond

// acquireTryAway is acquireTry while no connections can be made, and only one that becomes free helps.
const acquireTryAway = 100 * time.Millisecond

// ErrNotSent says that the caller of the statement had gone before there was a connection. FaultOf calls it Again.
var ErrNotSent = errors.New("not sent: the caller has gone")

type callerKey struct{}

// WhileWanted returns a context for statements that are sent only while their caller waits: if the caller was told that
// the outcome is unknown, a statement that is sent later could overwrite what the caller has written since. Once sent,
// a statement runs until ctx ends.
func WhileWanted(ctx, caller context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// acquire waits for a connection until ctx ends or the caller has gone.
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

// Abandon makes every statement fail with ErrAway at once: the server has ended for good, and a service that stops with
// it must not wait for connections.
func (p *Pool) Abandon() { p.abandoned.Store(true) }

// acquireUntil waits for a connection until ctx ends. The error is ErrAway if none can be made for repeatFor, with at
// least one attempt, and none becomes free.
func (p *Pool) acquireUntil(ctx context.Context) (*pgxpool.Conn, error) {
	for began, failed := time.Now(), p.gate.failed(); ; {
		if p.abandoned.Load() {
			return nil, fmt.Errorf("%w: the server has ended", ErrAway)
		}
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

// acquireOnce asks the pool for a connection. again reports that asking again may help.
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
	s := p.watchdog.begin(conn, sql)
	rows, err := conn.Query(ctx, sql, args...) //nolint:rowserrcheck // the caller does
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
	s := p.watchdog.begin(conn, sql)
	tag, err := conn.Exec(ctx, sql, args...)
	return tag, errors.Join(p.note(err), p.end(s))
}

// end ends a statement and reports its duration.
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

// Close waits for the running statements and closes all connections.
func (p *Pool) Close() {
	p.watchdog.dropAll()
	p.pool.Close()
	p.watchdog.close()
}

// Reset closes all connections as they become free, because after a failover they lead to the wrong server.
func (p *Pool) Reset() { p.pool.Reset() }

// Pooled reports whether there is a pooler in front of the server.
func (p *Pool) Pooled() bool { return p.watchdog.pooled }

// Stat counts the connections.
func (p *Pool) Stat() *pgxpool.Stat { return p.pool.Stat() }

// watchedRows are the rows of a running statement. Their error is final only once they are closed.
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
		r.end() // after the last row they are closed
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

// row is the single row of a statement, or its error.
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

// ErrUntrusted says that other roles could have their code run with the rights of our role.
var ErrUntrusted = errors.New("the database can't be trusted")

// searchPath has only what belongs to PostgreSQL, so that an operator, function or table that someone creates in
// another schema is never used by mistake (CVE-2018-1058). Our own objects are named with their schema.
const searchPath = "pg_catalog, pg_temp"

// fixSearchPath sets searchPath for all connections of config. A pooler does not accept that setting, so the path of
// the connections behind it is checked: if others could create objects there, the error is ErrUntrusted.
func fixSearchPath(ctx context.Context, config *pgx.ConnConfig) (pooled bool, err error) {
	first := config.Copy()
	first.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statement
	conn, err := pgx.ConnectConfig(ctx, first)
	if err != nil {
		return false, fmt.Errorf("connect to database: %w", err)
	}
	defer conn.Close(ctx)
	pooled, err = behindPooler(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("connect to database: %w", err)
	}
	if !pooled {
		config.RuntimeParams["search_path"] = searchPath
		return false, nil
	}
	found, err := db.New(conn).SearchPathUntrusted(ctx)
	if err != nil {
		return true, fmt.Errorf("read search_path: %w", err)
	}
	if len(found) > 0 {
		return true, fmt.Errorf("%w: behind this pooler the search_path contains schema %s, where other roles may create functions and operators. "+
			"REVOKE CREATE ON SCHEMA %[2]s FROM PUBLIC, or ALTER ROLE %s SET search_path = %s, and restart the pooler",
			ErrUntrusted, strings.Join(found, ", "), config.User, searchPath)
	}
	return true, nil
}

// ConnectConfig is ParseConfig for connections with the search_path of a Pool. Errors: ErrUntrusted.
func ConnectConfig(ctx context.Context, url string) (*pgx.ConnConfig, error) {
	config, err := ParseConfig(url)
	if err != nil {
		return nil, err
	}
	_, err = fixSearchPath(ctx, config)
	return config, err
}

// behindPooler detects a pooler, which invents a process ID when a connection starts. One that pools whole sessions
// could handle prepared statements; the url can say so.
func behindPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	pid, err := db.New(conn).BackendPID(ctx)
	return err == nil && uint32(pid) != conn.PgConn().PID(), err
}

// ErrNotReplicated says that the wait of a commit for its synchronous standby was canceled, as by pg_cancel_backend.
// The statement has committed on this server, and perhaps nowhere else. FaultOf calls it Unknown.
var ErrNotReplicated = errors.New("committed, but the wait for the standby was ended")

const notReplicated = "pawl.not_replicated"

// noteUnreplicated records that the wait of the current statement was canceled. PostgreSQL sends only a warning about
// it. The routine is the only part of a notice that is not translated.
func noteUnreplicated(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[notReplicated] = true
	}
}

// takeUnreplicated reports whether that was recorded, and clears it.
func takeUnreplicated(c *pgconn.PgConn) bool {
	was := c.CustomData()[notReplicated] != nil
	delete(c.CustomData(), notReplicated)
	return was
}
