package engine

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// metrics are the counts and durations that have labels; Stats has those without. No label holds an id. Where all
// values of a label are known, they are there from the start: what appears with its first event shows no rise.
type metrics struct {
	finished     *prometheus.CounterVec   // status
	orderSeconds *prometheus.HistogramVec // executor, status
	held         *prometheus.CounterVec   // hold
	calls        *prometheus.CounterVec   // step, operation, outcome
	callSeconds  *prometheus.HistogramVec // step, operation
	batchOrders  *prometheus.HistogramVec // queue
}

// orderBuckets are bounds of how long orders take, in seconds.
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
		finished: counter("pawl_orders_finished_total", "Orders that ended by a move of this replica, by their last status.", "status"),
		orderSeconds: histogram("pawl_order_duration_seconds", "From the creation of an order to its end, by what does its steps (mixed: more than one executor) and its last status.",
			orderBuckets, "executor", "status"),
		held:  counter("pawl_orders_held_total", "Times that this replica put an order on hold, by what for.", "hold"),
		calls: counter("pawl_step_calls_total", "Calls to providers that this replica made.", "step", "operation", "outcome"),
		callSeconds: histogram("pawl_step_call_duration_seconds", "From the start of a call to a provider to its answer, or to the end of waiting for one.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "step", "operation"),
		batchOrders: histogram("pawl_batch_orders", "Orders that were handed over together, by the queue in which they waited.",
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

// ended counts those of the runs whose last move was the one that this replica made at that time.
func (e *Engine) ended(runs []*run, at time.Time) {
	var count prometheus.Counter
	var seconds prometheus.Observer
	var like *orders.Order // what both are for; most of a batch are alike
	for _, r := range runs {
		o := &r.order
		if !o.Status.Final() {
			continue
		}
		if like == nil || o.Status != like.Status || o.Policy != like.Policy {
			p, _ := e.policies.byVersion(o.Policy)
			count = e.metrics.finished.WithLabelValues(string(o.Status))
			seconds = e.metrics.orderSeconds.WithLabelValues(executorsOf(p), string(o.Status))
			like = o
		}
		count.Inc()
		seconds.Observe(at.Sub(o.CreatedAt).Seconds())
	}
}

// executorsOf is what does the steps of a policy's orders; nil is the ledger.
func executorsOf(p *policy.Policy) string {
	switch {
	case p == nil:
		return string(policy.Ledger)
	case p.Charge.Executor != p.Reserve.Executor || p.Charge.Executor != p.Confirm.Executor:
		return "mixed"
	default:
		return string(p.Charge.Executor)
	}
}

// held counts orders that this replica has put on hold.
func (e *Engine) held(hold string, orders int) {
	e.metrics.held.WithLabelValues(hold).Add(float64(orders))
}

// byLostAnswer reports whether the row is what a statement of this replica has made of the order, whose answer was lost.
func (e *Engine) byLostAnswer(r *run, row *orders.Order) bool {
	return row.Fence == r.order.Fence && row.Seq != r.order.Seq && e.runs.owns(row.OrderNo)
}

// answeredCall is a call to a provider that has ended.
type answeredCall struct {
	orderID, requestID string // requestID: of the request that led to it, if it is known
	step               fsm.Step
	operation          provider.Operation
	number             int32
	fence              int64
	result             provider.Result
	took               time.Duration
}

// answered counts and logs the call of a run.
func (e *Engine) answered(r *run, took time.Duration) {
	c := r.call
	e.noteCall(&answeredCall{r.orderID, r.input.HTTPRequestID, c.step, c.kind(), c.number, c.fence, c.result, took})
}

// wasMade reports whether the provider was asked at all.
func wasMade(result provider.Result) bool {
	switch result := result.(type) {
	case attention:
		return false
	case provider.Retry:
		return result.Code != stoodStillCode
	}
	return true
}

// noteCall counts and logs a call: at info if it was refused or failed, else at debug.
func (e *Engine) noteCall(c *answeredCall) {
	outcome, answer := namedResult(c.result)
	step, operation := string(c.step), string(c.operation)
	e.metrics.calls.WithLabelValues(step, operation, outcome).Inc()
	if wasMade(c.result) {
		e.metrics.callSeconds.WithLabelValues(step, operation).Observe(c.took.Seconds())
	}
	level := slog.LevelInfo
	if outcome == "done" || outcome == "waiting" {
		level = slog.LevelDebug
	}
	if !e.log.Enabled(e.ctx, level) {
		return
	}
	if a, ok := c.result.(attention); ok {
		answer.Detail = a.reason
	}
	e.log.LogAttrs(e.ctx, level, "provider called", slog.String("order_id", c.orderID), slog.String("step", step),
		slog.String("operation", operation), slog.Int64("call", int64(c.number)), slog.Int64("fence", c.fence),
		slog.String("request_id", c.requestID), slog.String("outcome", outcome), slog.String("code", answer.Code),
		slog.String("detail", answer.Detail), slog.Float64("duration_seconds", c.took.Seconds()))
}
