package pg

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
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
