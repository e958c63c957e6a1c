package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"pawl/access"
	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/migrations"
)

func serveCommand() *cobra.Command {
	cfg := config{makesDatabase: true}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve orders over HTTP (the default)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getenv("GOGC") == "" {
				// The heap is a few megabytes: to collect it less often costs little memory
				// and saves a good part of the service's CPU time.
				debug.SetGCPercent(200)
			}
			if err := cfg.OIDC.check(); err != nil {
				return configError{err}
			}
			err := serve(cmd.Context(), &cfg, cmd.OutOrStdout())
			if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
				err = nil // asked to end before it had begun
			}
			return err
		},
	}
	cfg.addTo(cmd)
	cfg.serveFlags(cmd.Flags())
	return cmd
}

// serve runs the service until ctx ends or the database server does. What was started
// is stopped in the opposite order: no new orders, those in flight, the connections, the
// database.
func serve(ctx context.Context, cfg *config, out io.Writer) error {
	log := newLogger(cfg)
	log.Info("starting", slog.String("version", version()), slog.Group("settings", cfg.settings...))
	source, err := loadPolicy(cfg.Policy)
	if err != nil {
		return configError{err}
	}
	if err := checkPort(ctx, cfg.address()); err != nil {
		return err
	}
	database, err := ownDatabase(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := database.close(); err != nil {
			log.Error("stop database", "error", err)
		}
	}()

	if err := migrate(ctx, cfg, database.url, log); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	pool, err := db.Open(ctx, database.url, db.Options{MaxConns: int32(cfg.MaxConns), Serves: true, Observe: observeStatements(registry)})
	if err != nil {
		return notOpened(err)
	}
	defer pool.Close()
	if err := engine.CheckSchema(ctx, pool, migrations.Version()); err != nil {
		return databaseError(err)
	}
	if err := usePolicy(ctx, db.New(pool), newPolicy{source, cfg.Bounds}, log); err != nil {
		return err
	}

	control, err := access.New(ctx, db.New(pool), access.Config{Issuer: cfg.OIDC.checked, Registerer: registry, Log: log})
	if err != nil {
		return databaseError(err)
	}
	defer control.Stop()
	if err := tellOpen(cfg, control, registry, log); err != nil {
		return err
	}

	listener, err := net.Listen("tcp", cfg.address())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	orders := engine.New(pool, engine.Config{
		Lease: cfg.Lease, RecoveryInterval: cfg.RecoveryInterval, MaxBatch: cfg.MaxBatch, MaxInFlight: cfg.MaxInFlight, Currency: cfg.Currency, Log: log,
		SchemaVersion: migrations.Version(), PublicURL: cfg.publicURL(listener.Addr()), Registerer: registry, Bounds: cfg.Bounds,
	})
	registerMetrics(registry, orders, pool)
	handler := httpapi.New(orders, httpapi.Config{
		Currency: cfg.Currency, ResponseTimeout: cfg.ResponseTimeout, Log: log, Access: control,
		Registerer: registry, Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
	})
	traces := startTracing(ctx, os.Getenv, log)
	server := httpapi.NewServer(cfg.address(), traces.wrap(handler))
	orders.Start()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	news := announcement{url: shownURL(cfg.Listen, listener.Addr()), data: database.place, open: cfg.Listen == ""}
	news.say(out, log, cfg)

	grace := cfg.Grace
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case <-database.exited:
		err, grace = errDatabaseExited, min(grace, 2*time.Second) // no order will finish any more
	case err = <-failed:
	}
	deadline := time.Now().Add(grace)
	err = errors.Join(err, drain(orders, server, grace, log))
	traces.close(deadline, log)
	return err
}

// migrate brings the schema of a database that keeps what it has acknowledged to that of this program.
func migrate(ctx context.Context, cfg *config, url string, log *slog.Logger) error {
	if err := checkDurable(ctx, url, cfg.AllowDataLoss, log); err != nil {
		return err
	}
	applied, err := migrations.Up(ctx, url)
	if err != nil {
		return databaseError(err)
	}
	if len(applied) > 0 {
		log.Info("the schema was migrated", "applied", applied)
	}
	return nil
}

// answerTime is how much of the grace period is kept, half of it at most, for handing
// orders back and for the answers of callers who wait for them. A database that does not
// answer makes each take two seconds.
const answerTime = 5 * time.Second

// drain ends the service: the engine first says no to new orders and lets callers that
// wait have their answers, then the server waits for those answers to be written.
func drain(orders *engine.Engine, server *http.Server, grace time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	finish, cancel := context.WithTimeout(ctx, grace-min(grace/2, answerTime))
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- server.Shutdown(ctx) }()
	if err := orders.Stop(finish); err != nil {
		log.Warn("orders were handed back unfinished", "error", err)
	}
	if err := <-closed; err != nil {
		log.Warn("callers were cut off", "error", err)
		return server.Close()
	}
	return nil
}

// checkPort finds out whether we can listen at an address before a database is started, or made, for nothing.
// It does not go on listening: callers would wait for answers until the service is ready.
func checkPort(ctx context.Context, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return listener.Close()
}
