package engine

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// metrics are the metrics with labels; Stats has the others. No label contains an id. If all values of a label are
// known, their series are created at the start: a series that appears with its first event shows no increase.
type metrics struct {
	finished     *prometheus.CounterVec   // status
	orderSeconds *prometheus.HistogramVec // executor, status
	held         *prometheus.CounterVec   // hold
	calls        *prometheus.CounterVec   // step, operation, outcome
	callSeconds  *prometheus.HistogramVec // step, operation
	batchOrders  *prometheus.HistogramVec // queue
	ended        atomic.Int64             // all of finished
}

// orderBuckets are the histogram buckets for the duration of orders, in seconds.
var orderBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return factory.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &metrics{
		finished: counter("pawl_orders_finished_total", "Orders that this replica finished, by their last status.", "status"),
		orderSeconds: histogram("pawl_order_duration_seconds",
			"Time from the creation of an order to its end, by executor of its steps (mixed: more than one) and last status.",
			orderBuckets, "executor", "status"),
		held:  counter("pawl_orders_held_total", "Holds placed by this replica, by hold.", "hold"),
		calls: counter("pawl_step_calls_total", "Calls to providers made by this replica.", "step", "operation", "outcome"),
		callSeconds: histogram("pawl_step_call_duration_seconds", "Time from the start of a call to a provider to its answer or timeout.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "step", "operation"),
		batchOrders: histogram("pawl_batch_orders", "Orders in a batch, by queue.",
			prometheus.ExponentialBuckets(1, 2, 10), "queue"),
	}
	for _, state := range fsm.States() {
		if state.Final() {
			m.finished.WithLabelValues(string(state))
		}
	}
	for _, hold := range fsm.Holds() {
		m.held.WithLabelValues(hold)
	}
	return m
}

// countFinished counts the runs that ended with a move of this replica at that time.
func (m *metrics) countFinished(runs []*run, at time.Time, by *policies) {
	var count prometheus.Counter
	var seconds prometheus.Observer
	var like *orders.Order // the order that these labels are of; most orders of a batch have the same
	for _, r := range runs {
		o := &r.order
		if !o.Status.Final() {
			continue
		}
		if like == nil || o.Status != like.Status || o.Policy != like.Policy {
			p, _ := by.byVersion(o.Policy)
			count = m.finished.WithLabelValues(string(o.Status))
			seconds = m.orderSeconds.WithLabelValues(executorsOf(p), string(o.Status))
			like = o
		}
		count.Inc()
		m.ended.Add(1)
		seconds.Observe(at.Sub(o.CreatedAt).Seconds())
	}
}

// executorsOf is the label for the executors of a policy. Nil is the ledger; a charge with routes is mixed.
func executorsOf(p *policy.Policy) string {
	switch {
	case p == nil:
		return string(policy.Ledger)
	case p.Charge.Executor != p.Reserve.Executor || p.Charge.Executor != p.Confirm.Executor || len(p.Routes) > 0:
		return "mixed"
	default:
		return string(p.Charge.Executor)
	}
}

// countHeld counts orders that this replica has put on hold.
func (m *metrics) countHeld(hold string, orders int) {
	m.held.WithLabelValues(hold).Add(float64(orders))
}

// Stats are the counters without labels, since the engine was made. They can be read at any time. Metrics with labels
// are in Config.Registerer.
type Stats struct {
	Admitted       atomic.Int64 // orders this replica inserted
	Known          atomic.Int64 // requests for orders that existed
	Batches        atomic.Int64 // committed statements for orders that we drive
	Moves          atomic.Int64 // orders written by them
	CASMisses      atomic.Int64 // orders a move statement did not return
	Fenced         atomic.Int64 // orders found to belong to another replica after a lost move
	TakenOver      atomic.Int64 // orders claimed after their lease had ended
	UnknownOutcome atomic.Int64 // statements whose outcome had to be read back
	Retried        atomic.Int64 // statements sent again after a rollback
	Overloaded     atomic.Int64 // rejected requests
	UnknownPolicy  atomic.Int64 // due orders left to others because their policy is not loaded here
	FencedAnswers  atomic.Int64 // answers of providers that arrived after the order was lost
	Expired        atomic.Int64 // orders that were stopped by their deadline
	Forgotten      atomic.Int64 // orders that were removed after their retention
}
