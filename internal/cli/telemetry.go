package cli

import (
	"bytes"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
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
	"pawl/internal/pg"
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

// scrapes answers with metrics. They are gathered and written once for all who ask within a second.
type scrapes struct {
	write http.Handler

	mu       sync.Mutex
	began    time.Time
	prepared map[[2]string]*scrape // by format and encoding
}

func newScrapes(of prometheus.Gatherer) *scrapes {
	return &scrapes{write: promhttp.HandlerFor(of, promhttp.HandlerOpts{OfferedCompressions: []promhttp.Compression{promhttp.Identity, promhttp.Gzip}})}
}

// ServeHTTP answers a request. What it asks for beside the format is left out: there would be as many answers as requests.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := s.find(string(expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...)), r.Header.Get("Accept-Encoding"))
	maps.Copy(w.Header(), found.header)
	w.WriteHeader(found.status)
	_, _ = w.Write(found.body.Bytes()) // the caller has gone
}

func (s *scrapes) find(format, encodings string) *scrape {
	of := [2]string{format, "identity"}
	if strings.Contains(encodings, "gzip") {
		of[1] = "gzip"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.began) >= scrapeEvery {
		s.began, s.prepared = now, map[[2]string]*scrape{}
	}
	found := s.prepared[of]
	if found == nil {
		found = &scrape{header: http.Header{}, status: http.StatusOK}
		s.write.ServeHTTP(found, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/metrics"}, Header: http.Header{"Accept": of[:1], "Accept-Encoding": of[1:]}})
		s.prepared[of] = found
	}
	return found
}

// scrape is an answer in memory.
type scrape struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (s *scrape) Header() http.Header             { return s.header }
func (s *scrape) WriteHeader(status int)          { s.status = status }
func (s *scrape) Write(piece []byte) (int, error) { return s.body.Write(piece) }
