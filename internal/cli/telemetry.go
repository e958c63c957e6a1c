package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/term"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// newLogger logs to standard error, so that standard output is the command's own.
func newLogger(cfg *config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // checked by validate
	options := &slog.HandlerOptions{Level: level}
	if cfg.logsJSON() {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

func (c *config) logsJSON() bool {
	return c.LogFormat == "json" || c.LogFormat == "auto" && !term.IsTerminal(int(os.Stderr.Fd()))
}

// observeStatements returns a histogram of the duration of statements.
func observeStatements(registry prometheus.Registerer) func(statement string, took time.Duration) {
	seconds := promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pawl_db_statement_duration_seconds",
		Help:    "SQL statement duration, excluding the wait for a connection, by name in queries/.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
	}, []string{"statement"})
	return func(statement string, took time.Duration) { seconds.WithLabelValues(statement).Observe(took.Seconds()) }
}

// registerMetrics registers the metrics of the engine, the pool, waiting orders and the process. Labels contain nothing
// of an order.
func registerMetrics(registry *prometheus.Registry, orders *engine.Engine, pool *pg.Pool) {
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
	counter("pawl_orders_known_total", "Requests for orders that already existed.", stats.Known.Load)
	counter("pawl_orders_taken_over_total", "Orders claimed after their lease had ended.", stats.TakenOver.Load)
	counter("pawl_move_batches_total", "Move statements that committed.", stats.Batches.Load)
	counter("pawl_moves_total", "Moves of orders that committed.", stats.Moves.Load)
	counter("pawl_cas_misses_total", "Compare-and-sets that did not match.", stats.CASMisses.Load)
	counter("pawl_moves_fenced_total", "Orders found to be owned by another replica after a lost move.", stats.Fenced.Load)
	counter("pawl_outcomes_unknown_total", "Statements whose outcome had to be read back.", stats.UnknownOutcome.Load)
	counter("pawl_statements_retried_total", "Statements sent again after a rollback.", stats.Retried.Load)
	counter("pawl_requests_overloaded_total", "Requests rejected because the backlog was too long.", stats.Overloaded.Load)
	gauge("pawl_orders_in_flight", "Orders in this replica's memory.", orders.InFlight)
	gauge("pawl_leases_held", "Orders that this replica drives.", orders.LeasesHeld)
	gauge("pawl_db_connections", "Open connections to the database.", func() int64 { return int64(pool.Stat().TotalConns()) })
	gauge("pawl_db_connections_in_use", "Connections running a statement.", func() int64 { return int64(pool.Stat().AcquiredConns()) })
	counter("pawl_orders_expired_total", "Orders stopped because their time limit was reached.", stats.Expired.Load)
	counter("pawl_orders_forgotten_total", "Ended orders removed after --order-retention.", stats.Forgotten.Load)
	counter("pawl_orders_unknown_policy_total", "How often a due order was skipped, because this replica can't run its policy.",
		stats.UnknownPolicy.Load)
	counter("pawl_step_answers_fenced_total", "Provider answers that arrived after another replica had taken over the order.",
		stats.FencedAnswers.Load)
	registry.MustRegister(waiting{orders}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// scrapeEvery is the maximum age of metrics.
const scrapeEvery = time.Second

// scrapes serves metrics. They are gathered and encoded at most once a second: gathering needs the database, and
// encoding takes milliseconds, which a caller in a loop would take from the orders.
type scrapes struct {
	encode http.Handler

	mu      sync.Mutex
	began   time.Time
	encoded map[[2]string]*scrape // by format and compression
}

func newScrapes(of prometheus.Gatherer) *scrapes {
	compressions := []promhttp.Compression{promhttp.Identity, promhttp.Gzip}
	return &scrapes{encode: promhttp.HandlerFor(of, promhttp.HandlerOpts{OfferedCompressions: compressions})}
}

// ServeHTTP distinguishes requests only by format and compression, so that there are only a few answers.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format := string(expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...))
	compression := "identity"
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		compression = "gzip"
	}
	found := s.find([2]string{format, compression})
	maps.Copy(w.Header(), found.header)
	w.WriteHeader(found.status)
	_, _ = w.Write(found.body.Bytes()) // fails if the caller has disconnected
}

func (s *scrapes) find(of [2]string) *scrape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.began) >= scrapeEvery {
		s.began, s.encoded = now, map[[2]string]*scrape{}
	}
	found := s.encoded[of]
	if found == nil {
		found = &scrape{header: http.Header{}, status: http.StatusOK}
		header := http.Header{"Accept": of[:1], "Accept-Encoding": of[1:]}
		s.encode.ServeHTTP(found, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/metrics"}, Header: header})
		s.encoded[of] = found
	}
	return found
}

// scrape is a stored answer. It implements http.ResponseWriter.
type scrape struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (s *scrape) Header() http.Header         { return s.header }
func (s *scrape) WriteHeader(status int)      { s.status = status }
func (s *scrape) Write(b []byte) (int, error) { return s.body.Write(b) }

// waiting collects what waits for remote steps in memory, and what waits in the database.
type waiting struct{ orders *engine.Engine }

// Describe implements prometheus.Collector. It describes nothing, because metrics are missing while the database is
// away.
func (waiting) Describe(chan<- *prometheus.Desc) {}

// scrapeLimit is the timeout of the database for a scrape.
const scrapeLimit = 2 * time.Second

// Collect implements prometheus.Collector. If the database does not answer, it collects the rest, which is most needed
// then.
func (c waiting) Collect(to chan<- prometheus.Metric) {
	gauge := func(name, help string, value float64, labels prometheus.Labels) {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("pawl_"+name, help, nil, labels), prometheus.GaugeValue, value)
	}
	for _, pool := range c.orders.CallPools() {
		step := prometheus.Labels{"policy": strconv.Itoa(int(pool.Policy)), "step": string(pool.Step)}
		if pool.Route != "" {
			step["route"] = pool.Route
		}
		gauge("step_calls_in_flight", "Calls to providers in progress.", float64(pool.InFlight), step)
		gauge("step_queue", "Orders that wait for a call in this replica's memory.", float64(pool.Queued), step)
		gauge("step_breaker_state", "0: closed. 1: half open, one call is tried. 2: open, orders wait.", float64(slices.Index(orders.BreakerStates, pool.Breaker)), step)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	waiting, err := c.orders.Orders.Waiting(ctx, c.orders.Backlog())
	if err != nil {
		return
	}
	upTo := fmt.Sprintf(" Of all replicas; counted up to %d.", orders.CountsMost)
	longest := fmt.Sprintf("Age of the longest hold among the %d oldest of each kind; 0: there is none. Of all replicas.", orders.OldestMost)
	for hold, held := range waiting.Held {
		labels := prometheus.Labels{"hold": hold}
		gauge("orders_on_hold", "Orders on hold, by what they wait for; attention is a person."+upTo, float64(held.Orders), labels)
		gauge("oldest_hold_age_seconds", longest, held.Longest.Seconds(), labels)
	}
	gauge("oldest_unfinished_age_seconds", "Age of the oldest order that is held, overdue, or driven by this replica; 0: there is none.",
		waiting.Unfinished.Seconds(), nil)
	gauge("oldest_overdue_age_seconds", "How long the most overdue order had waited to be claimed when this replica last looked at all orders, "+
		"once a minute; 0: there was none.", waiting.Overdue.Seconds(), nil)
	gauge("late_undos_open", "Late effects that are not undone yet."+upTo, float64(waiting.LateUndos), nil)
	gauge("authorizations_ending", "Authorizations that are about to end, or should have ended, and of which something is neither captured nor voided."+upTo,
		float64(waiting.Authorizations), nil)
	gauge("charge_operations_open", "Refunds, captures and voids that are neither done nor failed."+upTo, float64(waiting.ChargeOperations), nil)
	gauge("oldest_charge_operation_age_seconds", "Age of the oldest refund, capture or void that is neither done, failed nor accepted by its provider; "+
		"0: there is none. Of all replicas.", waiting.OldestChargeOperation.Seconds(), nil)
}
