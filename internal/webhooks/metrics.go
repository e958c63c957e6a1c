package webhooks

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/db"
)

// metrics are labeled with the endpoint, of which there are at most MostEndpoints at a time.
type metrics struct {
	attempts *prometheus.CounterVec
	seconds  prometheus.Histogram
	disabled prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, query *db.Queries) *metrics {
	factory := promauto.With(registerer)
	m := &metrics{
		attempts: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "pawl_webhook_attempts_total", Help: "Delivery attempts, by outcome: delivered or failed.",
		}, []string{"endpoint", "outcome"}),
		seconds: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "pawl_webhook_attempt_duration_seconds", Help: "Duration of delivery attempts.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 15},
		}),
		disabled: factory.NewCounter(prometheus.CounterOpts{
			Name: "pawl_webhook_endpoints_disabled_total", Help: "Endpoints that this replica has disabled, because they answered 410 or failed for five days.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(newCollector(query))
	}
	return m
}

func (m *metrics) attempted(endpoint string, a *Attempt) {
	outcome := "failed"
	if a.Delivered() {
		outcome = "delivered"
	}
	m.attempts.WithLabelValues(endpoint, outcome).Inc()
	m.seconds.Observe(float64(a.LatencyMs) / 1000)
}

// forget drops what was counted of an endpoint that is gone.
func (m *metrics) forget(endpoint string) {
	m.attempts.DeletePartialMatch(prometheus.Labels{"endpoint": endpoint})
}

// collector reads, at every scrape, how the endpoints stand.
type collector struct {
	query                                *db.Queries
	enabled, failing, exhausted, overdue *prometheus.Desc
}

func newCollector(query *db.Queries) *collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pawl_webhook_"+name, help+" Of all replicas.", []string{"endpoint"}, nil)
	}
	return &collector{
		query:     query,
		enabled:   desc("endpoint_enabled", "1: it is sent to. 0: it was disabled."),
		failing:   desc("endpoint_failing_seconds", "How long nothing was delivered although it was tried; 0: the last attempt was a success."),
		exhausted: desc("deliveries_exhausted", "Deliveries that were given up and wait for a person; counted up to 10000."),
		overdue:   desc("oldest_due_delivery_seconds", "How long the oldest delivery has been due; 0: none is."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.enabled, c.failing, c.exhausted, c.overdue} {
		to <- desc
	}
}

const (
	scrapeLimit = 2 * time.Second // how long the database may take for a scrape
	countMost   = 10_000
)

// Collect implements prometheus.Collector. It leaves out its metrics while the database does not answer.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	rows, err := c.query.WebhookEndpointsState(ctx, countMost)
	if err != nil {
		return
	}
	for _, row := range rows {
		gauge := func(desc *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, EndpointID(row.EndpointNo))
		}
		enabled := 0.0
		if row.State == Enabled {
			enabled = 1
		}
		gauge(c.enabled, enabled)
		gauge(c.failing, row.FailingSeconds)
		gauge(c.exhausted, float64(row.Exhausted))
		gauge(c.overdue, max(row.WaitingSeconds, 0))
	}
}
