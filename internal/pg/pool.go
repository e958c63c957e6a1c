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

// Options are what a pool can be told.
type Options struct {
	MaxConns int32           // most connections; one more is made when a statement is overdue
	Tracer   pgx.QueryTracer // is told of every statement; nil: nobody is
	Patience time.Duration   // how long a statement may take before the server is asked about it; zero: DefaultPatience
	Serves   bool            // the connections are those of a running service, and say so: ServiceName

	// Connected looks at every new connection before it is used. One that it has an error for is closed. Nil: nobody looks.
	Connected func(context.Context, *pgx.Conn) error

	// Observe is told the name of every statement that has ended, and how long it took from when it had a connection to
	// its last row. It is called by many goroutines at the same time. Nil: nobody is told.
	Observe func(statement string, took time.Duration)
}

// ServiceName begins the application_name of every connection of a running service. The name of the replica follows, and
// then that in the url.
const ServiceName = "pawl serve"

// ReplicaName tells this process from other running services on the same database: by its machine and its number there.
var ReplicaName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.40s:%d", strings.ReplaceAll(host, " ", "_"), os.Getpid())
})

// Open returns a pool on the database at url, which has answered. Its error is ErrUntrusted where others could have code of
// theirs run by our statements. Behind a pooler (PgBouncer) prepared statements are not used, because it may hand each
// transaction to another server; default_query_exec_mode in the url wins.
func Open(ctx context.Context, url string, options Options) (*Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	harden(config.ConnConfig)
	gate := newGate(options.Tracer)
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
	return &Pool{pool: pool, gate: gate, observe: options.Observe, silence: newSilence(config.ConnConfig, pooled, cmp.Or(options.Patience, DefaultPatience))}, nil
}

// readDecimalsAsText has PostgreSQL send decimals as text. In its binary format, pgx reads 0.00 as 0.
func readDecimalsAsText(conn *pgx.Conn) {
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "numeric", OID: pgtype.NumericOID, Codec: textDecimals{}})
}

type textDecimals struct{ pgtype.NumericCodec }

// PreferredFormat is the format that pgx asks the server for.
func (textDecimals) PreferredFormat() int16 { return pgtype.TextFormatCode }

// BeginTx starts a transaction, to read several statements in one snapshot. Its statements are not looked after: see silence.
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

// Rollback rolls back, and releases the connection. After Commit it does nothing.
func (t transaction) Rollback(ctx context.Context) error {
	defer t.conn.Release()
	return t.Tx.Rollback(ctx)
}

// Pool runs statements on pooled connections. It gives up a connection whose server no longer works on the
// statement: an answer that got lost is an error within a second, not a wait without end. It never
// ends a statement that the server works on. Its methods are safe for concurrent use.
type Pool struct {
	pool             *pgxpool.Pool
	gate             *gate
	silence          *silence
	observe          func(statement string, took time.Duration)
	schemaMismatches atomic.Int64
	abandoned        atomic.Bool // the server has ended for good
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

// Abandon has every statement fail at once from now on, with ErrAway: the server has ended for good, and whoever stops with it has
// no time to wait for connections.
func (p *Pool) Abandon() { p.abandoned.Store(true) }

// acquireUntil waits for a connection until ctx ends. Errors: ErrAway, if none can be made for a while and none becomes free. Once
// the server has been away for that long, it takes one more attempt.
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

// ErrUntrusted: other roles could have code of theirs run with the rights of the role that we connect as.
var ErrUntrusted = errors.New("the database can't be trusted")

// searchPath finds what is PostgreSQL's own and nothing else: an operator, function or table that somebody creates in
// another schema is never taken for the one that a statement means (CVE-2018-1058). What is ours is named with its schema.
const searchPath = "pg_catalog, pg_temp"

// fixSearchPath has all connections that are made with config use searchPath. A pooler accepts no such setting. What the
// connections behind it find is looked at instead; where that includes what others could have created, the error is
// ErrUntrusted.
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
		return true, fmt.Errorf("look at the search_path: %w", err)
	}
	if len(found) > 0 {
		return true, fmt.Errorf("%w: behind this pooler the search_path leads to schema %s, where others may create functions and operators. "+
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

// behindPooler finds out whether somebody stands between us and the server: a pooler
// names a process of its own invention when a connection starts. One that pools whole
// sessions would do with prepared statements; the url can say so.
func behindPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	pid, err := db.New(conn).BackendPID(ctx)
	return err == nil && uint32(pid) != conn.PgConn().PID(), err
}

// ErrNotReplicated: somebody ended the wait of a commit for its synchronous standby, as pg_cancel_backend does. The
// statement has committed on this server; whether anywhere else, nobody knows. FaultOf calls it Unknown.
var ErrNotReplicated = errors.New("committed, but the wait for the standby was ended")

const notReplicated = "pawl.not_replicated"

// noteUnreplicated keeps in mind that the statement under way was not waited for. PostgreSQL says so in a warning
// and then answers as if all were well. The routine is the one part of a notice that is not translated.
func noteUnreplicated(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[notReplicated] = true
	}
}

// takeUnreplicated reports whether that was so, once.
func takeUnreplicated(c *pgconn.PgConn) bool {
	was := c.CustomData()[notReplicated] != nil
	delete(c.CustomData(), notReplicated)
	return was
}
