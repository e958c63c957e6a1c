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
			Name: "pawl_webhook_endpoints_disabled_total",
			Help: "Endpoints disabled by this replica, because they answered 410 or failed for five days.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(collector{query})
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

// forget removes the metrics of an endpoint that no longer exists.
func (m *metrics) forget(endpoint string) {
	m.attempts.DeletePartialMatch(prometheus.Labels{"endpoint": endpoint})
}

// collector reads the state of the endpoints at every scrape.
type collector struct{ query *db.Queries }

// Describe implements prometheus.Collector. It describes nothing, because metrics are missing while the database is away.
func (collector) Describe(chan<- *prometheus.Desc) {}

const (
	scrapeLimit = 2 * time.Second // timeout of the database for a scrape
	countMost   = 10_000
)

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	rows, err := c.query.WebhookEndpointsState(ctx, countMost)
	if err != nil {
		return
	}
	for _, row := range rows {
		gauge := func(name, help string, value float64) {
			desc := prometheus.NewDesc("pawl_webhook_"+name, help+" Of all replicas.", []string{"endpoint"}, nil)
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, EndpointID(row.EndpointNo))
		}
		enabled := 0.0
		if row.State == Enabled {
			enabled = 1
		}
		gauge("endpoint_enabled", "1: enabled. 0: disabled.", enabled)
		gauge("endpoint_failing_seconds", "How long every attempt has failed; 0: the last one succeeded.", row.FailingSeconds)
		gauge("deliveries_exhausted", "Exhausted deliveries, which wait for a person; counted up to 10000.", float64(row.Exhausted))
		gauge("oldest_due_delivery_seconds", "How long the oldest delivery has been due; 0: none is.", max(row.WaitingSeconds, 0))
	}
}
