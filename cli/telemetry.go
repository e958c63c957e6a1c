package cli

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/term"

	"pawl/db"
	"pawl/engine"
)

// newLogger logs to standard error, so that standard output is the command's own.
func newLogger(cfg *config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // validate has refused what is no level
	options := &slog.HandlerOptions{Level: level}
	if cfg.logsJSON() {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

func (c *config) logsJSON() bool {
	return c.LogFormat == "json" || c.LogFormat == "auto" && !term.IsTerminal(int(os.Stderr.Fd()))
}

// observeStatements returns what a pool tells how long its statements took.
func observeStatements(registry prometheus.Registerer) func(statement string, took time.Duration) {
	seconds := promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pawl_db_statement_duration_seconds",
		Help:    "Time for a SQL statement, without the wait for a connection, by its name in queries/.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
	}, []string{"statement"})
	return func(statement string, took time.Duration) { seconds.WithLabelValues(statement).Observe(took.Seconds()) }
}

// registerMetrics registers what the engine and the pool count without labels, what waits in the database, and the
// process. No label holds anything of an order.
func registerMetrics(registry *prometheus.Registry, orders *engine.Engine, pool *db.Pool) {
	counter := func(name, help string, read func() int64) {
		registry.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	gauge := func(name, help string, read func() int64) {
		registry.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	stats := &orders.Stats
	counter("pawl_orders_admitted_total", "Orders stored by this replica.", stats.Admitted.Load)
	counter("pawl_orders_known_total", "Requests for orders that existed.", stats.Known.Load)
	counter("pawl_orders_taken_over_total", "Orders claimed after their lease had ended.", stats.TakenOver.Load)
	counter("pawl_move_batches_total", "Move statements that committed.", stats.Batches.Load)
	counter("pawl_moves_total", "Moves of orders that committed.", stats.Moves.Load)
	counter("pawl_cas_misses_total", "Compare-and-sets that did not match.", stats.CASMisses.Load)
	counter("pawl_moves_fenced_total", "Orders found to be another replica's after a lost move.", stats.Fenced.Load)
	counter("pawl_outcomes_unknown_total", "Statements whose outcome had to be read back.", stats.UnknownOutcome.Load)
	counter("pawl_statements_retried_total", "Statements sent again after a rollback.", stats.Retried.Load)
	counter("pawl_requests_overloaded_total", "Requests turned away because the backlog was long.", stats.Overloaded.Load)
	gauge("pawl_move_batches_at_once", "Statements for new orders and moves that may be under way at the same time: one, or as many as there are kinds.", orders.BatchesAtOnce)
	gauge("pawl_orders_in_flight", "Orders in this replica's memory.", orders.InFlight)
	gauge("pawl_leases_held", "Orders that this replica drives.", orders.LeasesHeld)
	gauge("pawl_db_connections", "Open connections to the database.", func() int64 { return int64(pool.Stat().TotalConns()) })
	gauge("pawl_db_connections_in_use", "Connections running a statement.", func() int64 { return int64(pool.Stat().AcquiredConns()) })
	counter("pawl_orders_expired_total", "Orders asked to stop because their time was up.", stats.Expired.Load)
	counter("pawl_orders_unknown_policy_total", "Looks at due orders that were left alone, because this replica can't run their policy.", stats.UnknownPolicy.Load)
	counter("pawl_step_answers_fenced_total", "Answers of providers that came when the order was another replica's.", stats.FencedAnswers.Load)
	registry.MustRegister(newWaitingCollector(orders))
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// scrapeEvery is how old metrics may be when they are answered.
const scrapeEvery = time.Second

// scrapes gathers metrics once for all who ask within a second, however many these are.
type scrapes struct {
	of prometheus.Gatherer

	mu       sync.Mutex
	began    time.Time
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. Nobody changes what it returns.
func (s *scrapes) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.began) >= scrapeEvery {
		s.began = now
		s.families, s.err = s.of.Gather()
	}
	return slices.Clone(s.families), s.err
}
