package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/console"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/version"
	"pawl/internal/webhooks"
	"pawl/migrations"
)

func serveCommand() *cobra.Command {
	cfg := config{makesDatabase: true}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve orders over HTTP (the default)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer tuneRuntime()()
			if err := cfg.OIDC.check(); err != nil {
				return configError{err}
			}
			err := serve(cmd.Context(), &cfg, cmd.OutOrStdout())
			if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
				err = nil // interrupted during the start
			}
			return err
		},
	}
	cfg.addTo(cmd)
	cfg.serveFlags(cmd.Flags())
	return cmd
}

// serve runs the service until ctx ends or the database server does. It stops in the reverse order of the start: new
// orders, orders in flight, connections, database.
func serve(ctx context.Context, cfg *config, out io.Writer) error {
	log := newLogger(cfg)
	source, err := loadPolicy(cfg.Policy)
	if err != nil {
		return configError{err}
	}
	how, err := listening(ctx, cfg, log)
	if err != nil {
		return err
	}
	log.Info("starting", slog.String("version", version.Build()), slog.Group("settings", cfg.settings...))
	database, err := ownDatabase(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := database.close(); err != nil {
			log.Error("stop database", "error", err)
		}
	}()
	start := start{cfg, database, newPolicy{source, cfg.Bounds}, how, telemetry{log: log}}
	for {
		err := start.serve(ctx, out)
		if !errors.Is(err, errMoved) || ctx.Err() != nil {
			return err
		}
		log.Warn("starting again", "reason", err)
	}
}

// start is what a service is started with.
type start struct {
	cfg      *config
	database *database
	policy   newPolicy
	how      httpapi.Listening
	telemetry
}

// serve runs the service on the current database, until ctx ends or another database answers (errMoved). If the
// database belongs elsewhere, the service drives no orders, calls no providers and sends no events.
func (s start) serve(ctx context.Context, out io.Writer) error {
	registry := prometheus.NewRegistry()
	s.registry = registry
	cfg, database, log := s.cfg, s.database, s.log
	place, pool, control, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer control.Stop()
	if err := checkOpen(ctx, cfg, control, s.telemetry); err != nil {
		return err
	}
	edge, err := openEdge(ctx, cfg)
	if err != nil {
		return err
	}
	orders := engine.New(pool, engine.Config{
		Lease: cfg.Lease, RecoveryInterval: cfg.RecoveryInterval, MaxBatch: cfg.MaxBatch, MaxInFlight: cfg.MaxInFlight,
		Currency: cfg.Currency, OrderRetention: cfg.OrderRetention, Cell: place.place.Cell(), SchemaVersion: migrations.Version(), PublicURL: cfg.publicURL(edge.address()), Bounds: cfg.Bounds,
		Log: log, Registerer: registry,
	})
	registerMetrics(registry, orders, pool)
	outbound := newOutbound(cfg, db.New(pool), orders, s.telemetry)
	verification := books.NewVerification(pool, books.VerificationConfig{
		Log: log,
		At: func(ctx context.Context, at []string) (*books.Provider, error) {
			return providerAt(ctx, db.New(pool), at)
		},
		Named: func(ctx context.Context) ([]string, error) { return simulatorsOf(ctx, db.New(pool)) },
	})
	defer verification.Stop()
	edge.tail = events.NewTail(outbound.feed, events.TailConfig{Log: log, Registerer: registry})
	api, forOperations := handlers(cfg, orders, httpapi.Config{
		Currency: cfg.Currency, ResponseTimeout: cfg.ResponseTimeout, Log: log, Access: control, Webhooks: outbound.endpoints,
		Books: verification, Events: edge.tail, AllowedHosts: cfg.allowedHosts(), Proxies: cfg.proxies,
		Quarantine: place.stranger, Cell: place.place.Cell(), Registerer: registry, Metrics: newScrapes(registry),
		Console: func(api http.Handler) http.Handler { return console.New(console.Config{Client: console.InMemory(api)}) },
	})
	traces := startTracing(ctx, os.Getenv, log)
	if place.stranger != "" {
		orders.StartReading()
		defer place.awaitAdoption(ctx, db.New(pool))()
	} else {
		orders.Start()
		outbound.start()
	}
	failed := edge.serve(traces.wrap(api), forOperations, s.how)
	announcement{shownURL(cfg.scheme(), cfg.Listen, edge.address()), database.place, cfg.reach()}.say(out, log, cfg.logsJSON())

	grace := cfg.Grace
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case <-database.exited:
		err, grace = errDatabaseExited, min(grace, 2*time.Second) // no order can finish
		pool.Abandon()
	case <-place.moved:
		err, grace = errMoved, min(grace, 2*time.Second) // the orders belong to the other database
	case err = <-failed:
	}
	deadline := time.Now().Add(grace)
	stopped := outbound.stop(deadline)
	err = errors.Join(err, drain(orders, edge, grace, log), <-stopped)
	traces.close(deadline, log)
	return err
}

// open prepares the database. It writes nothing to one that belongs elsewhere.
func (s start) open(ctx context.Context) (place *standing, pool *pg.Pool, control *access.Control, err error) {
	url := s.database.url
	step := func(doing string, do func(context.Context) error) {
		if err == nil {
			err = patiently(ctx, doing, s.log, do)
		}
	}
	stepAtHome := func(doing string, do func(context.Context) error) {
		if err == nil && place.stranger == "" {
			step(doing, do)
		}
	}
	step("read the installation", func(ctx context.Context) (err error) {
		place, err = findPlace(ctx, s.cfg, url)
		return err
	})
	stepAtHome("check the settings of the database", func(ctx context.Context) error {
		return checkDurable(ctx, url, s.cfg.AllowDataLoss, s.log)
	})
	stepAtHome("migrate the schema", func(context.Context) error { return migrate(ctx, url, s.log) }) // however long it takes
	stepAtHome("store the installation", func(ctx context.Context) error { return place.settle(ctx, url) })
	step("prepare statements", func(ctx context.Context) (err error) {
		pool, err = openPool(ctx, url, pg.Options{
			MaxConns: int32(s.cfg.MaxConns), Serves: true, Connected: place.connected, Observe: observeStatements(s.registry),
		})
		return err
	})
	stepAtHome("store the policy", func(ctx context.Context) error { return usePolicy(ctx, db.New(pool), s.policy, s.log) })
	step("look for tokens", func(ctx context.Context) (err error) {
		control, err = access.New(ctx, db.New(pool), access.Config{Issuer: s.cfg.OIDC.Issuer, Registerer: s.registry, Log: s.log})
		return databaseError(err)
	})
	if err != nil {
		if pool != nil {
			pool.Close()
		}
		return nil, nil, nil, err
	}
	place.tell(s.registry, s.log)
	return place, pool, control, nil
}

// startPatience is how long each step of the start waits for the database, and the timeout of one attempt. Supervisors
// start services together, in any order, and wait about as long.
const startPatience = 30 * time.Second

// patiently repeats a step of the start while the database is unavailable.
func patiently(ctx context.Context, doing string, log *slog.Logger, do func(context.Context) error) error {
	try := func() error {
		ctx, cancel := context.WithTimeout(ctx, startPatience)
		defer cancel()
		return do(ctx)
	}
	err := try()
	if comesBack(err) {
		log.Warn("waiting for the database", "step", doing, "error", err)
	}
	for began, tries := time.Now(), 0; comesBack(err) && ctx.Err() == nil; tries++ {
		if time.Since(began) >= startPatience {
			return fmt.Errorf("%s: waited %s for the database: %w", doing, startPatience, err)
		}
		pg.Sleep(ctx, min(50*time.Millisecond<<min(tries, 5), time.Second))
		err = try()
	}
	return err
}

// comesBack reports whether an error may be temporary. Unknown roles or databases, and missing rights, are not.
func comesBack(err error) bool {
	code := pg.CodeOf(err)
	rejected := strings.HasPrefix(code, "28") || strings.HasPrefix(code, "3D") || strings.HasPrefix(code, "42")
	return errors.Is(err, errUnavailable) && !is[*pgconn.ParseConfigError](err) && !rejected
}

func migrate(ctx context.Context, url string, log *slog.Logger) error {
	applied, err := migrations.Up(ctx, url)
	if len(applied) > 0 {
		log.Info("the schema was migrated", "applied", applied)
	}
	return databaseError(err)
}

// openPool connects to a database with the schema of this version.
func openPool(ctx context.Context, url string, options pg.Options) (*pg.Pool, error) {
	pool, err := pg.Open(ctx, url, options)
	if err != nil {
		return nil, notOpened(err)
	}
	if err := engine.CheckSchema(ctx, pool, migrations.Version()); err != nil {
		pool.Close()
		return nil, databaseError(err)
	}
	return pool, nil
}

// answerTime is the part of the grace period, at most half, that is kept for releasing orders and for answering waiting
// callers. If the database does not answer, each takes two seconds.
const answerTime = 5 * time.Second

// drain ends the service. First the engine rejects new orders and answers waiting callers, then the server waits until
// the answers are written.
func drain(orders *engine.Engine, server *edge, grace time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	finish, cancel := context.WithTimeout(ctx, grace-min(grace/2, answerTime))
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- server.Shutdown(ctx) }()
	if err := orders.Stop(finish); err != nil {
		log.Warn("unfinished orders were released", "error", err)
	}
	if err := <-closed; err != nil {
		log.Warn("callers were disconnected", "error", err)
		return server.Close()
	}
	return nil
}

// handlers returns the handlers of both addresses. Without an address for operations, the first one serves everything.
func handlers(cfg *config, orders *engine.Engine, settings httpapi.Config) (api, forOperations http.Handler) {
	if cfg.OpsListen == "" {
		return httpapi.New(orders, settings), nil
	}
	return httpapi.NewWithOperations(orders, settings)
}

// checkOpen warns if the service has no tokens, or fails if they are required.
func checkOpen(ctx context.Context, cfg *config, control *access.Control, to telemetry) error {
	promauto.With(to.registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pawl_open",
		Help: "1 while no token exists and no issuer is set: local callers may do everything, " +
			"and remote callers may process and read orders.",
	}, func() float64 {
		if control.Open(context.WithoutCancel(ctx)) {
			return 1
		}
		return 0
	})
	switch {
	case !control.Open(ctx):
	case cfg.Auth == authRequired:
		return configError{errors.New("auth is required, but there is no token: " + httpapi.HowToClose + " creates one")}
	default:
		to.log.Warn("the service is open, because there is no token", "this_machine", "may do everything",
			"others", "may process and read orders", "to_close", httpapi.HowToClose)
	}
	return nil
}

// Values of --auth.
const (
	authOnceThereIsAToken = "auto"
	authRequired          = "required"
)

// announcement tells people the address of the service.
type announcement struct {
	url, data string
	reach     string // of config
}

const (
	everywhere = "it listens on all interfaces"
	byPort     = everywhere + ", because PORT is set; --listen 127.0.0.1 keeps it to this machine"
)

// say prints the announcement, or logs it if the log is JSON, because then programs may read only the log.
func (a announcement) say(out io.Writer, log *slog.Logger, json bool) {
	if json {
		fields := []any{"url", a.url, "docs", a.url + "/docs", "data", a.data}
		if a.reach != "" {
			fields = append(fields, "reach", a.reach)
		}
		log.Info("pawl serves", fields...)
		return
	}
	if a.reach != "" {
		fmt.Fprintln(out, a.reach)
	}
	fmt.Fprintf(out, "data in %s\npawl serves %s\n", a.data, a.url)
}

// shownURL is the URL of a listener on this machine.
func shownURL(scheme, listen string, addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if listen == "" || unspecified(listen) {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// reach says that the service listens on all interfaces, and why; empty: it does not.
func (c *config) reach() string {
	switch {
	case c.Listen == "" && c.everywhere:
		return byPort
	case unspecified(c.Listen):
		return everywhere
	default:
		return ""
	}
}

func unspecified(listen string) bool {
	address, err := netip.ParseAddr(listen)
	return err == nil && address.IsUnspecified()
}

// outbound numbers events and sends them to webhook endpoints, each on one replica at a time.
type outbound struct {
	feed      *events.Reader
	relay     *events.Relay
	deliverer *webhooks.Deliverer
	endpoints *webhooks.Endpoints
}

type telemetry struct {
	registry *prometheus.Registry
	log      *slog.Logger
}

func newOutbound(cfg *config, query *db.Queries, orders *engine.Engine, to telemetry) *outbound {
	feed := events.NewReader(query, orders.Orders)
	return &outbound{
		feed: feed,
		relay: events.NewRelay(query, events.RelayConfig{
			Lease: cfg.Lease, Retention: cfg.EventRetention, Log: to.log, Registerer: to.registry,
		}),
		deliverer: webhooks.NewDeliverer(query, feed, webhooks.Config{
			Lease: cfg.Lease, Retention: cfg.EventRetention, AllowPrivate: cfg.Bounds.AllowPrivate, Log: to.log, Registerer: to.registry,
		}),
		endpoints: webhooks.NewEndpoints(query, orders.Orders, webhooks.Options{
			Private: cfg.Bounds.AllowPrivate, Latest: feed.Latest, Now: orders.Now,
		}),
	}
}

func (o *outbound) start() {
	o.relay.Start()
	o.deliverer.Start()
}

// stop begins to end both, until a deadline. The channel is closed when they have ended.
func (o *outbound) stop(deadline time.Time) <-chan error {
	stopped := make(chan error)
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		o.deliverer.Stop(ctx)
		o.relay.Stop()
	}()
	return stopped
}
