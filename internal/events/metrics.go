package events

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are read at each scrape: those of the feed from the database, those of the relay from this process.
type metrics struct {
	relay                     *Relay
	holds, numbered, heldBack *prometheus.Desc
	lastNo, lag               *prometheus.Desc
}

func newMetrics(r *Relay) *metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pawl_events_"+name, help, nil, nil)
	}
	return &metrics{
		relay:    r,
		holds:    desc("relay", "1: this replica numbers events."),
		numbered: desc("numbered_total", "Events that this replica has numbered."),
		heldBack: desc("horizon_age_seconds", "For how long the oldest transaction that has not ended has been holding events back, as seen by the replica that numbers them; 0: none does."),
		lastNo:   desc("last_number", "The number of the last event. Of all replicas."),
		lag:      desc("lag_seconds", "For how long the oldest event that has no number yet has waited. Up to two seconds while nobody listens. Of all replicas."),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.holds, m.numbered, m.heldBack, m.lastNo, m.lag} {
		to <- desc
	}
}

// scrapeLimit is how long the database may take for a scrape.
const scrapeLimit = 2 * time.Second

// Collect implements prometheus.Collector. It leaves out what the database does not say in time.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	value := func(desc *prometheus.Desc, kind prometheus.ValueType, v float64) {
		to <- prometheus.MustNewConstMetric(desc, kind, v)
	}
	value(m.holds, prometheus.GaugeValue, float64(m.relay.holds.Load()))
	value(m.numbered, prometheus.CounterValue, float64(m.relay.numbered.Load()))
	value(m.heldBack, prometheus.GaugeValue, time.Duration(m.relay.heldBackNanos.Load()).Seconds())
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	state, err := m.relay.query.EventRelayState(ctx)
	if err != nil {
		return
	}
	value(m.lastNo, prometheus.GaugeValue, float64(state.LastEventNo))
	value(m.lag, prometheus.GaugeValue, max(state.Lag, 0))
}
