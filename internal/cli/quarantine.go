package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/cell"
	"pawl/internal/pg"
	"pawl/migrations"
)

// errMoved means that the database at the address is another copy, or that a quarantined database was adopted.
var errMoved = errors.New("the database was replaced or adopted")

// standing says whether the database belongs to this service.
type standing struct {
	place        migrations.Place
	installation string    // the configured name; empty: none
	cell         cell.Cell // the configured cell; zero: none
	stranger     string    // why the database belongs elsewhere; empty: it does not

	once  sync.Once
	moved chan struct{} // closed when the database has changed
}

// findPlace reads where the database belongs.
func findPlace(ctx context.Context, cfg *config, url string) (*standing, error) {
	s := &standing{installation: cfg.Installation, cell: cfg.Cell, moved: make(chan struct{})}
	return s, s.look(ctx, url, migrations.ReadPlace)
}

// settle stores where the database belongs, when the first service starts on it.
func (s *standing) settle(ctx context.Context, url string) error {
	return s.look(ctx, url, func(ctx context.Context, query *db.Queries) (migrations.Place, error) {
		return migrations.Settle(ctx, query, s.installation, s.cell)
	})
}

func (s *standing) look(ctx context.Context, url string,
	read func(context.Context, *db.Queries) (migrations.Place, error),
) error {
	pool, err := pg.Open(ctx, url, pg.Options{MaxConns: 1})
	if err != nil {
		return notOpened(err)
	}
	defer pool.Close()
	if s.place, err = read(ctx, db.New(pool)); pg.SchemaMismatch(err) {
		return fmt.Errorf("%w: run pawl migrate up as its owner: %w", engine.ErrNotMigrated, err)
	} else if err != nil {
		return databaseError(err)
	}
	if why := s.place.OtherCell(s.cell); why != "" {
		return configError{errors.New(why)}
	}
	s.stranger = s.place.Stranger(s.installation) // a replica that starts at the same time may have stored another name
	return nil
}

// tell logs a quarantine and adds its metric.
func (s *standing) tell(registry *prometheus.Registry, log *slog.Logger) {
	quarantined := 0.0
	if s.stranger != "" {
		quarantined = 1
		log.Warn("quarantined: the service only reads the database, because it belongs elsewhere", "reason", s.stranger,
			"if_it_replaces_the_original", "pawl adopt", "if_the_original_is_in_use", "pawl adopt --as-copy")
	}
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "pawl_quarantined", Help: "1 while the service is quarantined and only reads the database.",
	}).Set(quarantined)
}

// connected checks a new connection: a copy may have replaced the database at the same address. Then the connection is
// not used, and the service starts again.
func (s *standing) connected(ctx context.Context, conn *pgx.Conn) error {
	now, err := migrations.ReadPlace(ctx, db.New(conn)) // after an error, a statement will fail, too
	if err == nil && now != (migrations.Place{}) && !now.Same(s.place) {
		s.once.Do(func() { close(s.moved) })
		return errMoved
	}
	return nil
}

// adoptedEvery is how often a quarantined service checks whether the database was adopted.
const adoptedEvery = 2 * time.Second

// awaitAdoption checks until stop is called or ctx ends.
func (s *standing) awaitAdoption(ctx context.Context, query *db.Queries) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var checking sync.WaitGroup
	checking.Go(func() {
		for ctx.Err() == nil {
			if now, err := migrations.ReadPlace(ctx, query); err == nil && now.Stranger(s.installation) == "" {
				s.once.Do(func() { close(s.moved) })
				return
			}
			pg.Sleep(ctx, adoptedEvery)
		}
	})
	return func() { end(); checking.Wait() }
}

func adoptCommand() *cobra.Command {
	var cfg config
	var a migrations.Adoption
	cmd := migration("adopt", "Adopt a restored or copied database", &cfg, func(ctx context.Context, url string, out io.Writer) error {
		a.Name = cfg.Installation
		if a.Cell = cfg.Cell; a.AsCopy && a.Cell != (cell.Cell{}) {
			return configError{errors.New("as-copy and cell exclude each other")}
		}
		if err := migrations.Adopt(ctx, url, a); err != nil {
			return err
		}
		fmt.Fprintln(out, "adopted; running services continue within seconds")
		return nil
	})
	cmd.Long = "A service only reads a database that was restored or copied, because the original may be in use. This command says\n" +
		"that this database replaces the original. With --as-copy it becomes a new installation for tests: with other keys at\n" +
		"providers, without tokens and policy, and with disabled webhook endpoints. Stop the services on it first. The command\n" +
		"needs the rights of the owner."
	cmd.Example = "  pawl adopt                                    # after a restore, a pg_upgrade or a move\n" +
		"  pawl adopt --as-copy --installation staging   # a copy of production, for tests\n" +
		"  pawl adopt --cell 1/4                         # after pawl divide: this database keeps the orders of the second of four cells"
	f := cmd.Flags()
	cfg.installationFlag(f)
	f.StringVar(&cfg.cellText, "cell", "", "after pawl divide: the cell that this database is, such as 1/4")
	f.BoolVar(&a.AsCopy, "as-copy", false, "the original stays in use: make this a new installation")
	actorFlag(f, &a.Actor)
	return cmd
}

func divideCommand() *cobra.Command {
	var cfg config
	var actor string
	cmd := migration("divide", "Divide the orders of a database into two cells", &cfg, func(ctx context.Context, url string, out io.Writer) error {
		halves, err := migrations.Divide(ctx, url, actor)
		if err == nil {
			fmt.Fprintf(out, "divided: promote a standby that has this, then run pawl adopt --cell %s on this database, and pawl adopt --cell %s on the other\n",
				halves[0], halves[1])
		}
		return err
	})
	cmd.Long = "Each of the two cells gets one half of the orders, and continues in a database of its own: this one, and a standby of it that is\n" +
		"promoted afterwards. Until pawl adopt --cell says which database is which cell, services only read both. Stop the services on it\n" +
		"first. The command needs the rights of the owner. docs/operations.md has all steps."
	actorFlag(cmd.Flags(), &actor)
	return cmd
}
