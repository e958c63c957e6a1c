package engine

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/sony/gobreaker/v2"

	"pawl/db"
	"pawl/fsm"
)

const (
	activityEvery = 10 * time.Second
	activityMost  = 360 // an hour
	// heldEvery is how often held orders are counted where no reader of the metrics asks for it.
	heldEvery = time.Minute
	heldLimit = 2 * time.Second // how long that may take
)

// Activity is what this replica did in ten seconds. What did not happen is left out.
type Activity struct {
	At           time.Time // their end
	Seconds      float64   // how long they were: no clock is exact
	Admitted     int64
	Ended        map[fsm.State]int64
	Median, Slow time.Duration    // what half and 95 % of the orders that ended took at most, from their creation on
	OnHold       map[string]int64 // how many orders of all replicas waited, by what for, as they were last counted, up to CountsMost; none where that failed
	Moves        map[[2]fsm.State]int64
	Calls        map[fsm.Step]map[string]int64 // to providers, by outcome
	Breakers     map[fsm.Step]gobreaker.State  // the worst of all policies, at the end; those that are closed are left out
}

// activity keeps what the replica did in the last hour, in memory alone.
type activity struct {
	*remote
	own *prometheus.Registry // of the metrics that are read

	mu     sync.Mutex // guards what follows
	before tally
	points []Activity
	onHold map[string]int64 // as they were last counted
	heldAt time.Time        // when that was
}

func newActivity(e *remote) *activity {
	a := &activity{remote: e, own: prometheus.NewRegistry()}
	a.own.MustRegister(e.metrics.finished, e.metrics.orderSeconds, e.metrics.calls)
	a.before = a.tally()
	return a
}

func (a *activity) note(ctx context.Context) {
	a.countHeld(ctx)
	a.sample()
}

// countHeld has the held orders counted, unless they were counted lately, or that was tried. If it fails, their number is unknown.
func (a *activity) countHeld(ctx context.Context) {
	a.mu.Lock()
	lately := time.Since(a.heldAt) < heldEvery
	if !lately {
		a.onHold, a.heldAt = nil, time.Now()
	}
	a.mu.Unlock()
	if lately {
		return
	}
	limited, cancel := context.WithTimeout(ctx, heldLimit)
	defer cancel()
	rows, err := a.query.OrdersHeldStats(limited, db.OrdersHeldStatsParams{Most: CountsMost})
	if err != nil && ctx.Err() == nil {
		a.log.Warn("could not count the held orders", "error", err)
	}
	if err != nil {
		return
	}
	held := map[string]Held{}
	for _, row := range rows {
		held[row.Hold] = Held{Orders: row.Orders}
	}
	a.noteHeld(held)
}

// noteHeld keeps how many orders wait, for the samples to come.
func (a *activity) noteHeld(held map[string]Held) {
	onHold := map[string]int64{}
	for hold, h := range held {
		if h.Orders > 0 {
			onHold[hold] = h.Orders
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onHold, a.heldAt = onHold, time.Now()
}

// sample adds what was done since the last sample.
func (a *activity) sample() {
	now := a.tally()
	a.mu.Lock()
	defer a.mu.Unlock()
	point := now.since(&a.before)
	point.At, point.OnHold = a.now(), a.onHold
	for _, pool := range a.CallPools() {
		if pool.Breaker != gobreaker.StateClosed {
			if point.Breakers == nil {
				point.Breakers = map[fsm.Step]gobreaker.State{}
			}
			point.Breakers[pool.Step] = max(point.Breakers[pool.Step], pool.Breaker)
		}
	}
	a.before = now
	a.points = append(a.points, point)
	a.points = a.points[max(0, len(a.points)-activityMost):]
}

// tally is what was counted since the start.
type tally struct {
	at       time.Time
	admitted int64
	ended    map[fsm.State]int64
	moves    map[[2]fsm.State]int64
	calls    map[[2]string]int64 // by step and outcome
	took     durations
}

func (a *activity) tally() tally {
	t := tally{at: time.Now(), admitted: a.Stats.Admitted.Load(), ended: map[fsm.State]int64{},
		moves: map[[2]fsm.State]int64{}, calls: map[[2]string]int64{}, took: durations{}}
	for pair, counter := range a.metrics.moves {
		t.moves[pair] = counter.Load()
	}
	families, _ := a.own.Gather() // the engine's own metrics are sound, or nothing would be served
	for _, family := range families {
		for _, m := range family.Metric {
			t.add(family.GetName(), m)
		}
	}
	return t
}

func (t *tally) add(name string, m *dto.Metric) {
	label := map[string]string{}
	for _, pair := range m.Label {
		label[pair.GetName()] = pair.GetValue()
	}
	n := int64(m.GetCounter().GetValue())
	switch name {
	case "pawl_orders_finished_total":
		t.ended[fsm.State(label["status"])] += n
	case "pawl_step_calls_total":
		t.calls[[2]string{label["step"], label["outcome"]}] += n
	case "pawl_order_duration_seconds":
		t.took.add(m.GetHistogram())
	}
}

// since is what was counted between two tallies.
func (t *tally) since(before *tally) Activity {
	a := Activity{
		Seconds: t.at.Sub(before.at).Seconds(), Admitted: t.admitted - before.admitted,
		Ended: rise(t.ended, before.ended), Moves: rise(t.moves, before.moves),
	}
	for key, n := range rise(t.calls, before.calls) {
		if a.Calls == nil {
			a.Calls = map[fsm.Step]map[string]int64{}
		}
		step := fsm.Step(key[0])
		if a.Calls[step] == nil {
			a.Calls[step] = map[string]int64{}
		}
		a.Calls[step][key[1]] = n
	}
	took := durations(rise(t.took, before.took))
	a.Median, a.Slow = took.quantile(.5), took.quantile(.95)
	return a
}

// rise is by how much counts have risen; nil: none has.
func rise[K comparable](now, before map[K]int64) (out map[K]int64) {
	for key, n := range now {
		if n -= before[key]; n > 0 {
			if out == nil {
				out = map[K]int64{}
			}
			out[key] = n
		}
	}
	return out
}

// durations counts by how long something took: at most so many seconds, by the bounds of a histogram. Beyond the last one is
// +Inf.
type durations map[float64]int64

// add adds what a histogram has, which counts in each bucket those before, too.
func (d durations) add(h *dto.Histogram) {
	below := int64(0)
	for _, bucket := range h.Bucket {
		if math.IsInf(bucket.GetUpperBound(), 1) {
			break
		}
		n := int64(bucket.GetCumulativeCount())
		d[bucket.GetUpperBound()] += n - below
		below = n
	}
	d[math.Inf(1)] += int64(h.GetSampleCount()) - below
}

// quantile is how long a share of them took at most, as Prometheus reckons it: evenly spread between two bounds. Beyond the
// last bound it is that one. 0: there are none.
func (d durations) quantile(share float64) time.Duration {
	total := int64(0)
	for _, n := range d {
		total += n
	}
	rank, below := share*float64(total), 0.0
	for _, bound := range slices.Sorted(maps.Keys(d)) {
		n := float64(d[bound])
		if below+n < rank {
			below += n
			continue
		}
		lower := lowerBound(bound)
		if math.IsInf(bound, 1) {
			return duration(lower)
		}
		return duration(lower + (bound-lower)*(rank-below)/n)
	}
	return 0
}

// lowerBound is the bound before one. Those without any orders are not in durations.
func lowerBound(bound float64) float64 {
	i, _ := slices.BinarySearch(orderBuckets, bound)
	if i == 0 {
		return 0
	}
	return orderBuckets[i-1]
}

const (
	// CountsMost is where Waiting stops counting.
	CountsMost = 10_000
	// OldestMost is of how many orders of a hold Waiting looks how long they have waited: those that were created first.
	OldestMost = 1000
)

// Held are the orders that wait for one thing.
type Held struct {
	Orders  int64
	Longest time.Duration // how long the longest wait of the OldestMost oldest orders has lasted
}

// duration is a time that the database has given in seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
