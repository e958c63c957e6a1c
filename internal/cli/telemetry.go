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
		Help:    "SQL statement duration, excluding the wait for a connection, by name in queries/.",
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
	counter("pawl_orders_known_total", "Requests for orders that already existed.", stats.Known.Load)
	counter("pawl_orders_taken_over_total", "Orders claimed after their lease had ended.", stats.TakenOver.Load)
	counter("pawl_move_batches_total", "Move statements that committed.", stats.Batches.Load)
	counter("pawl_moves_total", "Moves of orders that committed.", stats.Moves.Load)
	counter("pawl_cas_misses_total", "Compare-and-sets that did not match.", stats.CASMisses.Load)
	counter("pawl_moves_fenced_total", "Orders found to be owned by another replica after a lost move.", stats.Fenced.Load)
	counter("pawl_outcomes_unknown_total", "Statements whose outcome had to be read back.", stats.UnknownOutcome.Load)
	counter("pawl_statements_retried_total", "Statements sent again after a rollback.", stats.Retried.Load)
	counter("pawl_requests_overloaded_total", "Requests rejected because the backlog was too long.", stats.Overloaded.Load)
	gauge("pawl_move_batches_at_once", "Statements for new orders and moves that may be under way at the same time: one, or as many as there are kinds.", orders.BatchesAtOnce)
	gauge("pawl_orders_in_flight", "Orders in this replica's memory.", orders.InFlight)
	gauge("pawl_leases_held", "Orders that this replica drives.", orders.LeasesHeld)
	gauge("pawl_db_connections", "Open connections to the database.", func() int64 { return int64(pool.Stat().TotalConns()) })
	gauge("pawl_db_connections_in_use", "Connections running a statement.", func() int64 { return int64(pool.Stat().AcquiredConns()) })
	counter("pawl_orders_expired_total", "Orders told to stop because their time limit was reached.", stats.Expired.Load)
	counter("pawl_orders_unknown_policy_total", "Looks at due orders that were left alone, because this replica can't run their policy.", stats.UnknownPolicy.Load)
	counter("pawl_step_answers_fenced_total", "Provider answers that arrived after another replica had taken over the order.", stats.FencedAnswers.Load)
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

// waitingCollector reads, at every scrape, what waits in this replica's memory for remote steps, and what waits in the database.
type waitingCollector struct {
	orders                          *engine.Engine
	inFlight, queued, breaker       *prometheus.Desc
	held, longest, unfinished, late *prometheus.Desc
	overdue, refunds, refund        *prometheus.Desc
}

func newWaitingCollector(orders *engine.Engine) *waitingCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pawl_"+name, help, labels, nil)
	}
	upTo := fmt.Sprintf(" Of all replicas; counted up to %d.", engine.CountsMost)
	return &waitingCollector{
		orders:     orders,
		inFlight:   desc("step_calls_in_flight", "Calls to providers under way.", "policy", "step"),
		queued:     desc("step_queue", "Orders that wait for a call in this replica's memory.", "policy", "step"),
		breaker:    desc("step_breaker_state", "0: calls are made. 1: one is tried. 2: the provider is left alone.", "policy", "step"),
		held:       desc("orders_on_hold", "Orders that wait, by what for; attention is a person."+upTo, "hold"),
		longest:    desc("oldest_hold_age_seconds", fmt.Sprintf("How long the longest wait has lasted, of the %d oldest orders that wait for the same; 0: none waits. Of all replicas.", engine.OldestMost), "hold"),
		unfinished: desc("oldest_unfinished_age_seconds", "How old the oldest order is that is held, overdue, or driven by this replica; 0: there is none."),
		overdue:    desc("oldest_overdue_age_seconds", "How long a lease or a wait had been over, without anybody taking the order up, when this replica last looked at all of them, once a minute; 0: none was."),
		late:       desc("late_undos_open", "Effects that were reported too late and are not undone yet."+upTo),
		refunds:    desc("refunds_open", "Refunds that were asked for and are neither done nor failed."+upTo),
		refund:     desc("oldest_refund_age_seconds", "How old the oldest refund is that is neither done, failed nor accepted by its provider; 0: there is none. Of all replicas."),
	}
}

// Describe implements prometheus.Collector.
func (c *waitingCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.inFlight, c.queued, c.breaker, c.held, c.longest, c.unfinished, c.overdue, c.late, c.refunds, c.refund} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *waitingCollector) Collect(to chan<- prometheus.Metric) {
	for _, pool := range c.orders.CallPools() {
		gauge := func(desc *prometheus.Desc, value int) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), strconv.Itoa(int(pool.Policy)), string(pool.Step))
		}
		gauge(c.inFlight, pool.InFlight)
		gauge(c.queued, pool.Queued)
		gauge(c.breaker, int(pool.Breaker))
	}
	c.collectStored(to)
}

// scrapeLimit is how long the database may take for a scrape.
const scrapeLimit = 2 * time.Second

// collectStored leaves its metrics out when the database does not answer: the others are
// wanted most then.
func (c *waitingCollector) collectStored(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	waiting, err := c.orders.Waiting(ctx)
	if err != nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for hold, held := range waiting.Held {
		gauge(c.held, float64(held.Orders), hold)
		gauge(c.longest, held.Longest.Seconds(), hold)
	}
	gauge(c.unfinished, waiting.Unfinished.Seconds())
	gauge(c.overdue, waiting.Overdue.Seconds())
	gauge(c.late, float64(waiting.LateUndos))
	gauge(c.refunds, float64(waiting.Refunds))
	gauge(c.refund, waiting.Refund.Seconds())
}
