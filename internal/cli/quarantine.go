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
	"pawl/internal/pg"
	"pawl/migrations"
)

// errMoved: another database answers than the one that the service was started on, or it belongs elsewhere now.
var errMoved = errors.New("this is not the database that the service was started on")

// standing is what a service knows of where its database belongs.
type standing struct {
	place        migrations.Place
	installation string // the name of the service's; empty: none
	stranger     string // why the database does not belong here; empty: it does

	once  sync.Once
	moved chan struct{} // closed when another database was seen
}

// findPlace finds out whether a database belongs here.
func findPlace(ctx context.Context, cfg *config, url string) (*standing, error) {
	s := &standing{installation: cfg.Installation, moved: make(chan struct{})}
	return s, s.look(ctx, url, migrations.ReadPlace)
}

// settle stores where a database belongs that is in its place, at the first start on it.
func (s *standing) settle(ctx context.Context, url string) error {
	return s.look(ctx, url, func(ctx context.Context, query *db.Queries) (migrations.Place, error) {
		return migrations.Settle(ctx, query, s.installation)
	})
}

func (s *standing) look(ctx context.Context, url string, read func(context.Context, *db.Queries) (migrations.Place, error)) error {
	pool, err := pg.Open(ctx, url, pg.Options{MaxConns: 1})
	if err != nil {
		return notOpened(err)
	}
	defer pool.Close()
	if s.place, err = read(ctx, db.New(pool)); pg.SchemaMismatch(err) {
		return fmt.Errorf("%w: as its owner, run pawl migrate up: %w", engine.ErrNotMigrated, err)
	} else if err != nil {
		return databaseError(err)
	}
	s.stranger = s.place.Stranger(s.installation) // a replica that has started at the same moment may have given another name
	return nil
}

// tell says that the service is quarantined, in the log and by a metric.
func (s *standing) tell(registry *prometheus.Registry, log *slog.Logger) {
	quarantined := 0.0
	if s.stranger != "" {
		quarantined = 1
		log.Warn("quarantined: nothing is driven, called or sent, because the database belongs elsewhere", "reason", s.stranger,
			"in_place_of_the_original", "pawl adopt", "beside_it", "pawl adopt --as-copy")
	}
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "pawl_quarantined", Help: "1 while the service is quarantined and only reads the database.",
	}).Set(quarantined)
}

// connected looks at a new connection of the service: a server may have been replaced by another one at the same address, with a
// copy of the database. Such a connection is not used, and the service starts anew.
func (s *standing) connected(ctx context.Context, conn *pgx.Conn) error {
	now, err := migrations.ReadPlace(ctx, db.New(conn)) // an error comes again where it can be told
	if err == nil && now != (migrations.Place{}) && !now.Same(s.place) {
		s.once.Do(func() { close(s.moved) })
		return errMoved
	}
	return nil
}

// adoptedEvery is how often a quarantined service looks whether somebody has adopted the database.
const adoptedEvery = 2 * time.Second

// awaitAdoption begins to look for that, until stop is called or ctx ends.
func (s *standing) awaitAdoption(ctx context.Context, query *db.Queries) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			if now, err := migrations.ReadPlace(ctx, query); err == nil && now.Stranger(s.installation) == "" {
				s.once.Do(func() { close(s.moved) })
				return
			}
			pg.Sleep(ctx, adoptedEvery)
		}
	})
	return func() { end(); looking.Wait() }
}

// adoptCommand ends the quarantine of a database.
func adoptCommand() *cobra.Command {
	var cfg config
	var a migrations.Adoption
	cmd := migration("adopt", "Adopt a restored or copied database", &cfg, func(ctx context.Context, url string, out io.Writer) error {
		if a.Actor == "" {
			return usageError{errors.New("actor: want a name")}
		}
		a.Name = cfg.Installation
		if err := migrations.Adopt(ctx, url, a); err != nil {
			return err
		}
		fmt.Fprintln(out, "the database belongs here; services on it go on within seconds")
		return nil
	})
	cmd.Long = "A service that finds its database in another place than it belongs to only reads it: it was restored or copied, and\n" +
		"the original may be in use. This command says that it is the one in use now. With --as-copy it becomes an installation of\n" +
		"its own, for tests: with other keys at providers, without tokens, with webhook endpoints disabled, and without a policy.\n" +
		"Stop the services that drive the database first. It needs the rights of the owner."
	cmd.Example = "  pawl adopt                                    # after a restore, a pg_upgrade or a move\n" +
		"  pawl adopt --as-copy --installation staging   # a copy of production, for tests"
	f := cmd.Flags()
	cfg.installationFlag(f)
	f.BoolVar(&a.AsCopy, "as-copy", false, "the original stays in use: make this an installation of its own")
	actorFlag(f, &a.Actor)
	return cmd
}
