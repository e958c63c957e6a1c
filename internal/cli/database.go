package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/internal/doctor"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

// database is the PostgreSQL in use: one that was given, or our own.
type database struct {
	url    string
	place  string // where the data lies, for people
	exited <-chan struct{}
	server *pgembed.Server // nil when the database was given
}

// openDatabase finds the database for a command, and tells the person on standard error which one it is: the one of
// ownDatabase, or where a service is running on our own, that one.
func openDatabase(cmd *cobra.Command, cfg *config) (*database, error) {
	d, err := ownDatabase(cmd.Context(), cfg, newLogger(cfg))
	if dir, dirErr := dataDir(cfg); errors.Is(err, pgembed.ErrInUse) && dirErr == nil {
		if running, ok := pgembed.Running(dir); ok {
			d, err = &database{url: running, place: dir}, nil
		}
	}
	if err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "database: %s\n", d.place)
	}
	return d, err
}

// ownDatabase finds the database to work on, starting our own if none was given. Our own
// serves one process: it ends with it. It is made where there is none only for a command that makes databases: to
// others an empty one would look as if all were well.
func ownDatabase(ctx context.Context, cfg *config, log *slog.Logger) (*database, error) {
	if cfg.DatabaseURL != "" {
		return &database{url: cfg.DatabaseURL, place: masked(cfg.DatabaseURL)}, nil
	}
	dir, err := dataDir(cfg)
	if err != nil {
		return nil, err
	}
	server, err := pgembed.Start(ctx, pgembed.Config{Dir: dir, BinDir: cfg.PostgresBin, User: cfg.PostgresUser, Log: log, Existing: !cfg.makesDatabase})
	switch {
	case errors.Is(err, pgembed.ErrSetting):
		return nil, configError{err}
	case errors.Is(err, pgembed.ErrNoData):
		return nil, fmt.Errorf("%w: %w: name the database of the service with --data-dir or --database-url; pawl serve and pawl migrate up make one",
			errUnavailable, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return &database{url: server.URL("postgres"), place: dir, exited: server.Exited(), server: server}, nil
}

func dataDir(cfg *config) (string, error) {
	if cfg.DataDir == "" {
		return pgembed.DefaultDir()
	}
	return filepath.Abs(cfg.DataDir)
}

func (d *database) close() error {
	if d.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return d.server.Stop(ctx)
}

// withDatabase opens the database of the settings, which lies at place, for as long as do takes.
func withDatabase(cmd *cobra.Command, cfg *config, do func(pool *pg.Pool, place string) error) error {
	database, err := openDatabase(cmd, cfg)
	if err != nil {
		return err
	}
	defer database.close()
	pool, err := pg.Open(cmd.Context(), database.url, pg.Options{MaxConns: 2})
	if err != nil {
		return notOpened(err)
	}
	defer pool.Close()
	return unmigrated(cmd.Context(), pool, do(pool, database.place))
}

// notOpened is why there is no connection: a database that is away, for which a supervisor waits, or one that can't be
// trusted.
func notOpened(err error) error {
	if errors.Is(err, pg.ErrUntrusted) {
		return configError{err}
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

// unmigrated says what to do about a database on which a command failed because it has no schema of ours.
func unmigrated(ctx context.Context, pool *pg.Pool, err error) error {
	if pg.SchemaMismatch(err) {
		if missing, ok := errors.AsType[*pg.NoSchema](pg.FindSchema(ctx, pool)); ok {
			return fmt.Errorf("%w (%w)", missing, err)
		}
	}
	return err
}

// checkDurable refuses a server that may lose what it has acknowledged, unless that is allowed.
func checkDurable(ctx context.Context, databaseURL string, allow bool, log *slog.Logger) error {
	config, err := pg.ConnectConfig(ctx, databaseURL)
	if err != nil {
		return notOpened(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // also behind a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return notOpened(err)
	}
	defer conn.Close(ctx)
	findings, err := doctor.Durability(ctx, db.New(conn), allow)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	for _, f := range findings {
		if f.State == doctor.Wrong {
			return configError{fmt.Errorf("%s; %s", f.Found, f.Advice)}
		}
		log.Warn("the database may lose what it has committed", "reason", f.Found)
	}
	return nil
}
