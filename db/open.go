package db

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Open returns a pool on the database at url and checks that it answers. Behind a
// pooler (PgBouncer) prepared statements are not used, because it may hand each
// transaction to another server; default_query_exec_mode in the url wins.
func Open(ctx context.Context, url string, maxConns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	config.MaxConns = maxConns
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	if !strings.Contains(url, "default_query_exec_mode") {
		pooled, err := behindPooler(ctx, config.ConnConfig)
		if err != nil {
			return nil, fmt.Errorf("connect to database: %w", err)
		}
		if pooled {
			config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	return pool, nil
}

// behindPooler finds out whether somebody stands between us and the server: a pooler
// names a process of its own invention when a connection starts. One that pools whole
// sessions would do with prepared statements; the url can say so.
func behindPooler(ctx context.Context, config *pgx.ConnConfig) (bool, error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statement
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	pid, err := New(conn).BackendPID(ctx)
	return err == nil && uint32(pid) != conn.PgConn().PID(), err
}
