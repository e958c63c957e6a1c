package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/internal/cell"
	"pawl/internal/cli/output"
	"pawl/internal/doctor"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

// database is the PostgreSQL in use: a given one, or our own.
type database struct {
	url    string
	place  string // for people: the URL without passwords, or the data directory
	exited <-chan struct{}
	server *pgembed.Server // nil: the database was given
}

// openDatabase opens the database of a command and prints which one it is: the result of ownDatabase, or the database
// of a service that runs on the data directory.
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

// ownDatabase opens the given database, or else starts our own, which ends with this process. Only some commands may
// create one: for the others, an empty database would look as if everything were fine.
func ownDatabase(ctx context.Context, cfg *config, log *slog.Logger) (*database, error) {
	if cfg.DatabaseURL != "" {
		return &database{url: cfg.DatabaseURL, place: masked(cfg.DatabaseURL)}, nil
	}
	dir, err := dataDir(cfg)
	if err != nil {
		return nil, err
	}
	server, err := pgembed.Start(ctx, pgembed.Config{
		Dir: dir, BinDir: cfg.PostgresBin, User: cfg.PostgresUser, Log: log, Existing: !cfg.makesDatabase,
	})
	switch {
	case errors.Is(err, pgembed.ErrSetting):
		return nil, configError{err}
	case errors.Is(err, pgembed.ErrNoData):
		return nil, fmt.Errorf("%w: %w: set --data-dir or --database-url to the database of the service; "+
			"pawl serve and pawl migrate up create one", errUnavailable, err)
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

// withDatabase runs do with a pool of the database. place describes the database to people.
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
	err = do(pool, database.place)
	if pg.SchemaMismatch(err) {
		if missing, ok := errors.AsType[*pg.NoSchema](pg.FindSchema(cmd.Context(), pool)); ok {
			return fmt.Errorf("%w (%w)", missing, err)
		}
	}
	return err
}

// allFlag lets a command with the flags of the database run for all cells.
func allFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("all", false, "run for each cell: --database-url lists the databases of all cells, separated by spaces")
	return cmd
}

func allCells(cmd *cobra.Command) bool {
	all, _ := cmd.Flags().GetBool("all") // false without the flag
	return all
}

// cells returns the settings of the command for each cell of --all, if it has the flag. A database that can't be asked, or does not belong
// where it is, has no number.
func (c *config) cells(cmd *cobra.Command) (each []config, names []output.Cell) {
	if !allCells(cmd) {
		return nil, nil
	}
	for _, url := range strings.Fields(c.DatabaseURL) {
		one, name := *c, output.Cell{URL: masked(url)}
		one.DatabaseURL, one.Cell = url, cell.Cell{}
		if s, err := findPlace(cmd.Context(), &one, url); err == nil && s.stranger == "" {
			name.Cell = s.place.Cell().String()
		}
		each, names = append(each, one), append(names, name)
	}
	return each, names
}

// eachCell runs do once, or with --all for each cell.
func (c *config) eachCell(cmd *cobra.Command, format output.Format, do func(one *config) error) error {
	if !allCells(cmd) {
		return do(c)
	}
	each, names := c.cells(cmd)
	if len(each) == 0 {
		return usageError{errors.New("--all needs --database-url with the databases of all cells")}
	}
	return output.EachCell(cmd.OutOrStdout(), format, names, func(i int) error { return do(&each[i]) })
}

// onDatabase returns a command that runs statements on the database.
func onDatabase(use, short string, args cobra.PositionalArgs,
	run func(cmd *cobra.Command, args []string, query *db.Queries) error,
) *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			format := output.Table
			if f := cmd.Flags().Lookup("output"); f != nil {
				format = output.Format(f.Value.String())
			}
			return cfg.eachCell(cmd, format, func(one *config) error {
				return withDatabase(cmd, one, func(pool *pg.Pool, _ string) error { return run(cmd, args, db.New(pool)) })
			})
		},
	}
	cfg.addTo(cmd)
	return cmd
}

// notOpened classifies an error: a supervisor should wait for an unavailable database, but not for one that can't be
// trusted.
func notOpened(err error) error {
	if errors.Is(err, pg.ErrUntrusted) {
		return configError{err}
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

// checkDurable rejects a server that may lose acknowledged data, unless that is allowed.
func checkDurable(ctx context.Context, databaseURL string, allow bool, log *slog.Logger) error {
	config, err := pg.ConnectConfig(ctx, databaseURL)
	if err != nil {
		return notOpened(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // works behind a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return notOpened(err)
	}
	defer conn.Close(ctx)
	var report doctor.Report
	if err := report.Durability(ctx, db.New(conn), allow); err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	for _, f := range report.Findings {
		if f.State == doctor.Wrong {
			return configError{fmt.Errorf("%s; %s", f.Found, f.Advice)}
		}
		log.Warn("the database may lose committed data", "reason", f.Found)
	}
	return nil
}
