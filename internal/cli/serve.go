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
	"pawl/internal/webhooks"
	"pawl/migrations"
)

func serveCommand() *cobra.Command {
	cfg := config{makesDatabase: true}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve orders over HTTP (the default)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			collectGarbage(false)
			defer useProcessors()()
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
	how, err := listening(ctx, cfg, log)
	if err != nil {
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
	start := start{database, newPolicy{source, cfg.Bounds}, how, log}
	for {
		err := start.serve(ctx, cfg, out)
		if !errors.Is(err, errMoved) || ctx.Err() != nil {
			return err
		}
		log.Warn("the service starts anew", "reason", err)
	}
}

// start is what a service is started with.
type start struct {
	database *database
	policy   newPolicy
	how      httpapi.Listening
	log      *slog.Logger
}

// serve runs the service on the database that answers now, until ctx ends or another one answers (errMoved). For one that belongs
// elsewhere it is put together without what drives orders, calls providers and sends events.
func (s start) serve(ctx context.Context, cfg *config, out io.Writer) error {
	database, log := s.database, s.log
	registry := prometheus.NewRegistry()
	opening := opening{cfg: cfg, url: database.url, policy: s.policy, telemetry: telemetry{registry, log}}
	place, pool, control, err := opening.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer control.Stop()
	if err := tellOpen(ctx, cfg, control, telemetry{registry, log}); err != nil {
		return err
	}
	edge, err := openEdge(ctx, cfg)
	if err != nil {
		return err
	}
	orders := engine.New(pool, engine.Config{
		Lease: cfg.Lease, RecoveryInterval: cfg.RecoveryInterval, MaxBatch: cfg.MaxBatch, MaxInFlight: cfg.MaxInFlight, Currency: cfg.Currency, Log: log,
		SchemaVersion: migrations.Version(), PublicURL: cfg.publicURL(edge.address()), Registerer: registry, Bounds: cfg.Bounds,
	})
	registerMetrics(registry, orders, pool)
	outbound := newOutbound(cfg, db.New(pool), orders, telemetry{registry, log})
	verification := books.NewVerification(pool, books.VerificationConfig{Now: orders.Now, Log: log})
	defer verification.Stop()
	edge.tail = events.NewTail(outbound.feed, events.TailConfig{Log: log, Registerer: registry, Crowd: collectGarbage})
	api, forOperations := handlers(cfg, orders, httpapi.Config{
		Currency: cfg.Currency, ResponseTimeout: cfg.ResponseTimeout, Log: log, Access: control, Webhooks: outbound.endpoints, Books: verification, Events: edge.tail,
		AllowedHosts: cfg.allowedHosts(), Proxies: cfg.proxies(),
		Quarantine: place.stranger, Registerer: registry, Metrics: newScrapes(registry),
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
	announcement{url: shownURL(cfg.scheme(), cfg.Listen, edge.address()), data: database.place, reach: cfg.reach()}.say(out, log, cfg)

	grace := cfg.Grace
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case <-database.exited:
		err, grace = errDatabaseExited, min(grace, 2*time.Second) // no order will finish any more
		pool.Abandon()
	case <-place.moved:
		err, grace = errMoved, min(grace, 2*time.Second) // its orders are those of the other one
	case err = <-failed:
	}
	deadline := time.Now().Add(grace)
	stopped := outbound.stop(deadline)
	err = errors.Join(err, drain(orders, edge, grace, log), <-stopped)
	traces.close(deadline, log)
	return err
}

// opening is what a start needs the database for: where it belongs, its settings, its schema, the connections of the service, its
// policy, and who may use it. To a database that belongs elsewhere nothing is written.
type opening struct {
	cfg    *config
	url    string
	policy newPolicy
	telemetry
}

func (o *opening) open(ctx context.Context) (place *standing, pool *pg.Pool, control *access.Control, err error) {
	belongs := func() bool { return place.stranger == "" }
	always := func() bool { return true }
	for _, step := range []struct {
		doing string
		when  func() bool
		do    func(context.Context) error
	}{
		{"see where the database belongs", always, func(ctx context.Context) (err error) {
			place, err = findPlace(ctx, o.cfg, o.url)
			return err
		}},
		{"check the settings of the database", belongs, func(ctx context.Context) error { return checkDurable(ctx, o.url, o.cfg.AllowDataLoss, o.log) }},
		{"migrate the schema", belongs, func(context.Context) error { return migrate(ctx, o.url, o.log) }}, // as long as that takes
		{"store where the database belongs", belongs, func(ctx context.Context) error { return place.settle(ctx, o.url) }},
		{"prepare statements", always, func(ctx context.Context) (err error) {
			pool, err = openPool(ctx, o.url, pg.Options{
				MaxConns: int32(o.cfg.MaxConns), Serves: true, Connected: place.connected, Observe: observeStatements(o.registry),
			})
			return err
		}},
		{"store the policy", belongs, func(ctx context.Context) error { return usePolicy(ctx, db.New(pool), o.policy, o.log) }},
		{"look for tokens", always, func(ctx context.Context) (err error) {
			control, err = access.New(ctx, db.New(pool), access.Config{Issuer: o.cfg.OIDC.checked, Registerer: o.registry, Log: o.log})
			return databaseError(err)
		}},
	} {
		if !step.when() {
			continue
		}
		if err := patiently(ctx, step.doing, o.log, step.do); err != nil {
			if pool != nil {
				pool.Close()
			}
			return nil, nil, nil, err
		}
	}
	place.tell(o.registry, o.log)
	return place, pool, control, nil
}

// startPatience is how long each step of a start waits for the database. Supervisors start things together, in no order, and wait about as
// long. It is also how long one try may take.
const startPatience = 30 * time.Second

// patiently does a step of a start, again and again while the database is away or connections are lost.
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

// comesBack reports whether an error of the database may go away by itself. A server that knows neither the role nor the database, or does not
// let the role in, says the same again.
func comesBack(err error) bool {
	_, misspelt := errors.AsType[*pgconn.ParseConfigError](err)
	code := pg.CodeOf(err)
	refused := strings.HasPrefix(code, "28") || strings.HasPrefix(code, "3D") || strings.HasPrefix(code, "42")
	return errors.Is(err, errUnavailable) && !misspelt && !refused
}

// migrate brings the schema to that of this program.
func migrate(ctx context.Context, url string, log *slog.Logger) error {
	applied, err := migrations.Up(ctx, url)
	if len(applied) > 0 {
		log.Info("the schema was migrated", "applied", applied)
	}
	return databaseError(err)
}

// openPool opens the connections of the service to a database with the schema of this program.
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

// answerTime is how much of the grace period is kept, half of it at most, for handing
// orders back and for the answers of callers who wait for them. A database that does not
// answer makes each take two seconds.
const answerTime = 5 * time.Second

// drain ends the service: the engine first says no to new orders and lets callers that
// wait have their answers, then the server waits for those answers to be written.
func drain(orders *engine.Engine, server *edge, grace time.Duration, log *slog.Logger) error {
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

// handlers are those of the two addresses. Without one for operations the first has everything.
func handlers(cfg *config, orders *engine.Engine, settings httpapi.Config) (api, forOperations http.Handler) {
	if cfg.OpsListen == "" {
		return httpapi.New(orders, settings), nil
	}
	return httpapi.NewWithOperations(orders, settings)
}

// tellOpen warns of a service that is open, and refuses one that must not be.
func tellOpen(ctx context.Context, cfg *config, control *access.Control, to telemetry) error {
	promauto.With(to.registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pawl_open",
		Help: "1 while no token exists and no issuer is set: local callers may do everything, and remote callers may process and read orders.",
	}, func() float64 {
		if control.Open(context.WithoutCancel(ctx)) {
			return 1
		}
		return 0
	})
	switch {
	case !control.Open(ctx):
	case cfg.Auth == authRequired:
		return configError{errors.New("auth is required, and no token was made yet: " + httpapi.HowToClose + " makes one")}
	default:
		to.log.Warn("the service is open: no token was made yet", "this_machine", "may do everything",
			"others", "may process orders and read them", "to_close", httpapi.HowToClose)
	}
	return nil
}

// What --auth can be.
const (
	authOnceThereIsAToken = "auto"
	authRequired          = "required"
)

// announcement is the one thing a person needs from a service that starts.
type announcement struct {
	url, data string
	reach     string // everywhere or byPort, if it listens on all interfaces
}

const (
	everywhere = "it listens on all interfaces"
	byPort     = everywhere + ", because PORT is set; --listen 127.0.0.1 keeps it to this machine"
)

// say prints it, or puts it into the log where that is JSON: a machine that reads it would stumble over lines that are not.
func (a announcement) say(out io.Writer, log *slog.Logger, cfg *config) {
	if cfg.logsJSON() {
		log.Info("pawl serves", "url", a.url, "docs", a.url+"/docs", "data", a.data)
		switch a.reach { // a message of the log is a constant
		case byPort:
			log.Info(byPort)
		case everywhere:
			log.Info(everywhere)
		}
		return
	}
	fmt.Fprintf(out, "pawl serves %s, described at %s/docs, data in %s\n", a.url, a.url, a.data)
	if a.reach != "" {
		fmt.Fprintln(out, a.reach)
	}
}

// shownURL is where a person on this machine reaches what listens.
func shownURL(scheme, listen string, addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if listen == "" || unspecified(listen) {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// reach says that it listens on all interfaces, and why; empty if it doesn't.
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

// outbound is what tells others of events: it numbers them, and sends them to webhook endpoints, each where this replica is the one
// that does. People see and change the endpoints over the API.
type outbound struct {
	feed      *events.Reader
	relay     *events.Relay
	deliverer *webhooks.Deliverer
	endpoints *webhooks.Endpoints
}

// telemetry is where the parts of the service put what they have to tell.
type telemetry struct {
	registry *prometheus.Registry
	log      *slog.Logger
}

func newOutbound(cfg *config, query *db.Queries, orders *engine.Engine, to telemetry) *outbound {
	feed := events.NewReader(query, orders.Orders)
	return &outbound{
		feed:  feed,
		relay: events.NewRelay(query, events.RelayConfig{Lease: cfg.Lease, Retention: cfg.EventRetention, Log: to.log, Registerer: to.registry}),
		deliverer: webhooks.NewDeliverer(query, feed, webhooks.Config{
			Lease: cfg.Lease, Retention: cfg.EventRetention, AllowPrivate: cfg.Bounds.AllowPrivate, Log: to.log, Registerer: to.registry,
		}),
		endpoints: webhooks.NewEndpoints(query, orders.Orders, webhooks.Options{Private: cfg.Bounds.AllowPrivate, Latest: feed.Latest, Now: orders.Now}),
	}
}

func (o *outbound) start() {
	o.relay.Start()
	o.deliverer.Start()
}

// stop begins to end both, until a deadline. What it returns is closed when they have.
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
