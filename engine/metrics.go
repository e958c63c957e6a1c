package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/sony/gobreaker/v2"

	"pawl/db"
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

// Stats counts what the engine did since it was made. The counters only rise; read
// them at any time. What has labels is in Config.Registerer.
type Stats struct {
	Admitted       atomic.Int64 // orders this replica inserted
	Known          atomic.Int64 // requests for orders that existed
	Batches        atomic.Int64 // statements that committed for orders that we drive
	Moves          atomic.Int64 // orders written by them
	CASMisses      atomic.Int64 // orders a move statement did not return
	Fenced         atomic.Int64 // orders found to be another's after a lost move
	TakenOver      atomic.Int64 // orders claimed after their lease had ended
	UnknownOutcome atomic.Int64 // statements whose outcome had to be read back
	Retried        atomic.Int64 // statements sent again after a rollback
	Overloaded     atomic.Int64 // requests turned away
	UnknownPolicy  atomic.Int64 // due orders left alone: their policy is not known here
	FencedAnswers  atomic.Int64 // answers of providers that came when the order was another's
	Expired        atomic.Int64 // orders asked to stop because their time was up
}

// InFlight is the number of orders in this replica's memory.
func (e *Engine) InFlight() int64 { return e.runs.size.Load() }

// BatchesAtOnce is how many statements of the ledger may be under way at the same time now. See batch.Turns.
func (e *Engine) BatchesAtOnce() int64 { return int64(e.turns.AtOnce()) }

// CallPoolStats is how busy this replica is with a step of a policy that is done remotely.
type CallPoolStats struct {
	Policy   int32
	Step     fsm.Step
	InFlight int // calls under way, or about to be
	Queued   int // orders that wait for a call
	Breaker  gobreaker.State
}

// CallPools returns the steps this replica has made calls for, by policy and step.
func (e *Engine) CallPools() []CallPoolStats {
	e.callPoolsMu.Lock()
	defer e.callPoolsMu.Unlock()
	all := make([]CallPoolStats, 0, len(e.callPools))
	for key, p := range e.callPools {
		p.mu.Lock()
		all = append(all, CallPoolStats{Policy: key.version, Step: key.step, InFlight: p.calling, Queued: len(p.waiting), Breaker: p.breaker.State()})
		p.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b CallPoolStats) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Step, b.Step))
	})
	return all
}

// LeasesHeld is the number of orders that this replica drives.
func (e *Engine) LeasesHeld() int64 { return e.runs.leases() }

const (
	// CountsMost is where Waiting stops counting.
	CountsMost = 10_000
	// OldestMost is of how many orders of a hold Waiting looks how long they have waited: those that were created first.
	OldestMost = 1000
)

// Waiting is what waits in the database, for all replicas together; each number goes up to
// CountsMost.
type Waiting struct {
	Held       map[string]Held // orders by what they wait for, those for which none waits, too
	Overdue    time.Duration   // how long an order was due when this replica last looked at all that are; 0: none was
	Unfinished time.Duration   // the age of the oldest order that is held, was due then, or is driven by this replica; 0: there is none
	LateUndos  int64           // effects that were reported too late and are not undone yet
	Refunds    int64           // refunds that were asked for and are neither done nor failed
	Refund     time.Duration   // the age of the oldest of these that its provider has not accepted; 0: there is none
}

// Held are the orders that wait for one thing.
type Held struct {
	Orders  int64
	Longest time.Duration // how long the longest wait of the OldestMost oldest orders has lasted
}

// Waiting asks the database. Errors: orders.ErrUnavailable.
func (e *Engine) Waiting(ctx context.Context) (Waiting, error) {
	w, err := e.waiting(ctx, CountsMost)
	if err == nil {
		e.activity.noteHeld(w.Held)
	}
	return w, err
}

// waiting counts the held orders up to a number: with 0, whoever asks counts them.
func (e *Engine) waiting(ctx context.Context, most int32) (Waiting, error) {
	rows, err := orders.Read(ctx, e.Orders, e.query.OrdersHeldStats, db.OrdersHeldStatsParams{Most: most, Oldest: OldestMost})
	if err != nil {
		return Waiting{}, orders.Unavailable("count held orders", err)
	}
	overdue := e.overdue.Load()
	oldest, err := orders.Read(ctx, e.Orders, e.query.OrderAge, lowest(e.runs.oldest(), overdue.orderNo))
	if err != nil {
		return Waiting{}, orders.Unavailable("look for the oldest order", err)
	}
	w := Waiting{Held: map[string]Held{}, Overdue: overdue.age}
	for _, row := range rows {
		w.Held[row.Hold] = Held{Orders: row.Orders, Longest: duration(row.Longest)}
		oldest = max(oldest, row.Oldest)
	}
	w.Unfinished = duration(oldest)
	if w.LateUndos, err = orders.Read(ctx, e.Orders, e.query.LateUndosCount, CountsMost); err != nil {
		return Waiting{}, orders.Unavailable("count late effects", err)
	}
	refunds, err := orders.Read(ctx, e.Orders, e.query.RefundsOpen, CountsMost)
	if err != nil {
		return Waiting{}, orders.Unavailable("count refunds", err)
	}
	w.Refunds, w.Refund = refunds.Open, duration(refunds.Oldest)
	return w, nil
}

// lowest is the lower of two order numbers; 0 is no order.
func lowest(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// duration is a time that the database has given in seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
