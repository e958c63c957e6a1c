package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pawl/db"

	"github.com/jackc/pgx/v5"
)

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
