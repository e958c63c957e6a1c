package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/engine"
)

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
