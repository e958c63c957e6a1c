package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/engine"
)

// stepCollector reads what remote steps do, and what waits, at every scrape.
type stepCollector struct {
	orders                                                *engine.Engine
	calls, inFlight, queued, breaker, held, late, refunds *prometheus.Desc
}

func newStepCollector(orders *engine.Engine) *stepCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pawl_"+name, help, labels, nil)
	}
	upTo := fmt.Sprintf(" Of all replicas; counted up to %d.", engine.CountsMost)
	return &stepCollector{
		orders:   orders,
		calls:    desc("step_calls_total", "Calls to providers that this replica made.", "step", "operation", "outcome"),
		inFlight: desc("step_calls_in_flight", "Calls to providers under way.", "policy", "step"),
		queued:   desc("step_queue", "Orders that wait for a call in this replica's memory.", "policy", "step"),
		breaker:  desc("step_breaker_state", "0: calls are made. 1: one is tried. 2: the provider is left alone.", "policy", "step"),
		held:     desc("orders_on_hold", "Orders that wait, by what for; attention is a person."+upTo, "hold"),
		late:     desc("late_undos_open", "Effects that were reported too late and are not undone yet."+upTo),
		refunds:  desc("refunds_open", "Refunds that were asked for and are neither done nor failed."+upTo),
	}
}

// Describe implements prometheus.Collector.
func (c *stepCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.calls, c.inFlight, c.queued, c.breaker, c.held, c.late, c.refunds} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *stepCollector) Collect(to chan<- prometheus.Metric) {
	for _, n := range c.orders.Stats.Calls.All() {
		to <- prometheus.MustNewConstMetric(c.calls, prometheus.CounterValue, float64(n.Count), n.Step, n.Operation, n.Outcome)
	}
	for _, pool := range c.orders.CallPools() {
		gauge := func(desc *prometheus.Desc, value int) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), strconv.Itoa(int(pool.Policy)), string(pool.Step))
		}
		gauge(c.inFlight, pool.InFlight)
		gauge(c.queued, pool.Queued)
		gauge(c.breaker, int(pool.Breaker))
	}
	c.collectWaiting(to)
}

// scrapeLimit is how long the database may take for a scrape.
const scrapeLimit = 2 * time.Second

// collectWaiting leaves its metrics out when the database does not answer: the others are
// wanted most then.
func (c *stepCollector) collectWaiting(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	waiting, err := c.orders.Waiting(ctx)
	if err != nil {
		return
	}
	for hold, n := range waiting.Held {
		to <- prometheus.MustNewConstMetric(c.held, prometheus.GaugeValue, float64(n), hold)
	}
	to <- prometheus.MustNewConstMetric(c.late, prometheus.GaugeValue, float64(waiting.LateUndos))
	to <- prometheus.MustNewConstMetric(c.refunds, prometheus.GaugeValue, float64(waiting.Refunds))
}
