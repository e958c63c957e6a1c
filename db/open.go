package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Open returns a pool on the database at url and checks that it answers. Behind a
// pooler that hands each transaction to another server (PgBouncer in transaction
// mode) prepared statements are not used; an exec mode named in the url wins.
func Open(ctx context.Context, url string, maxConns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	config.MaxConns = maxConns
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
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
	return pool, nil
}

// behindPooler finds out whether two connections are served by one backend, or one
// connection by several: only a transaction pooler does that.
func behindPooler(ctx context.Context, config *pgx.ConnConfig) (bool, error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statement
	backends := map[int32]int{}
	for conn := range 2 {
		c, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return false, err
		}
		defer c.Close(ctx)
		for range 3 {
			pid, err := New(c).BackendPID(ctx)
			if err != nil {
				return false, err
			}
			if first, seen := backends[pid]; seen && first != conn {
				return true, nil
			}
			backends[pid] = conn
		}
	}
	return len(backends) > 2, nil
}
