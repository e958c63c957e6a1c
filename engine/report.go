package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

const (
	reportTimes = 10               // intervals of recovery between two reports: 5 s by default
	idleReports = 12               // of these times per report, if there is nothing to tell: a minute by default
	reportAfter = time.Minute      // after its last call, a step is no longer reported
	failingFor  = time.Hour        // unless its breaker is not closed: then after this
	endedFor    = time.Hour        // after it, an outage is no longer reported
	flickerFor  = 10 * time.Second // an outage that ended goes on if calls fail again within this
	flickerMost = 3                // and fewer than so many have worked
)

// reportLoop stores what only this replica knows, so that every replica can show an overview of all: how many orders
// it finishes, and the state of its calls. An idle replica reports once a minute, so that it leaves a trace if it is killed.
func (e *Engine) reportLoop() {
	at, ended, busy := time.Now(), e.metrics.ended.Load(), false
	outages := e.report(0, []orders.ProviderStep{}, nil) // at once: it may take the place of one that was lost
	for left := 1; e.lastsFor(reportTimes * e.cfg.RecoveryInterval); {
		before, since, wasBusy := ended, time.Since(at), busy
		at, ended = time.Now(), e.metrics.ended.Load()
		steps := e.callPools.loads(reportAfter)
		busy = ended > before || len(steps) > 0
		if left--; busy || wasBusy || left == 0 {
			outages = e.report(float64(ended-before)/since.Seconds(), steps, outages)
			left = idleReports
		}
	}
	e.endReport()
}

// report returns the outages that are stored. They have the numbers of many orders, so only changes are written.
func (e *Engine) report(ordersPerSecond float64, steps []orders.ProviderStep, stored []byte) []byte {
	ctx, cancel := e.handingBack() // a canceled report could be stored after it was removed
	defer cancel()
	text, err := json.Marshal(steps)
	outages, wrong := json.Marshal(e.callPools.outages(e.now()))
	p := db.ReplicaReportParams{Owner: e.owner, Name: pg.ReplicaName(), OrdersPerSecond: ordersPerSecond, Steps: text}
	if !bytes.Equal(outages, stored) {
		p.Outages = outages
	}
	if err = errors.Join(err, wrong); err == nil {
		err = e.query.ReplicaReport(ctx, p)
	}
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("store the report of this replica", "error", err)
	}
	if err != nil {
		return nil
	}
	return outages
}

func (e *Engine) endReport() {
	ctx, cancel := e.handingBack()
	defer cancel()
	if err := e.query.ReplicaReportEnd(ctx, e.owner); err != nil && e.ctx.Err() == nil {
		e.log.Warn("end the report of this replica", "error", err)
	}
}

// outage is the last time during which the breaker of a pool was not closed, from the first of the failures in a row that
// opened it, and the orders that waited meanwhile. Times are by the database's clock.
type outage struct {
	mu           sync.Mutex
	before       []orders.Outage // that ended before it began
	since, until time.Time       // zero: there was none; it goes on
	waited       map[int64]struct{}
	codes        map[string]int // of its failed calls
	worked       int            // calls that were answered since it ended; here look-ups don't count

	// Of the calls that failed since one was answered, also without an outage:
	failures    int
	first, last time.Time
	code        string        // of the last
	lasts       time.Duration // after it without a call, it is not known whether calls fail
}

// outagesBefore is how many earlier outages of a pool are kept.
const outagesBefore = 3

// over is the outage once it has ended.
func (o *outage) over() orders.Outage {
	return orders.Outage{Failure: o.cause(), Since: o.since, Until: o.until, Orders: slices.Sorted(maps.Keys(o.waited))}
}

func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch ended := !o.until.IsZero(); {
	case ended && o.flickers():
		o.until = time.Time{}
	case ended || o.since.IsZero():
		if ended {
			o.before = append(o.before, o.over())
			o.before = o.before[max(len(o.before)-outagesBefore, 0):]
		}
		o.since, o.until, o.waited, o.codes = o.first, time.Time{}, map[int64]struct{}{}, map[string]int{o.code: 1}
	}
}

// flickers reports whether an outage that has ended goes on if calls fail again: few worked, and not for long.
func (o *outage) flickers() bool { return o.worked < flickerMost && o.first.Sub(o.until) < flickerFor }

func (o *outage) end(at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() && o.until.IsZero() {
		o.until, o.worked = at, 0
	}
}

// codesMost is how many codes of an outage are counted.
const codesMost = 100

// answered notes that a call was answered that was no look-up.
func (o *outage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.worked, o.failures = o.worked+1, 0
}

// failed notes when and why a call failed.
func (o *outage) failed(code string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures == 0 || at.Sub(o.last) > o.lasts {
		o.failures, o.first = 0, at
	}
	o.failures, o.last = o.failures+1, at
	if o.code = code; o.codes != nil && o.until.IsZero() && (len(o.codes) < codesMost || o.codes[code] > 0) {
		o.codes[code]++
	}
}

// cause is the code of most of its failed calls.
func (o *outage) cause() (code string) {
	for other, n := range o.codes {
		if n > o.codes[code] || n == o.codes[code] && other < code {
			code = other
		}
	}
	return code
}

// note notes that an order waits, as far as orders are counted.
func (o *outage) note(orderNo int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.until.IsZero() && o.waited != nil && len(o.waited) < orders.CountsMost {
		o.waited[orderNo] = struct{}{}
	}
}

// failing returns since when calls fail, when the last one did, the cause, and that of the last one if it is another; nil:
// they don't. While the breaker is closed, they do if several in a row have failed for a while.
func (o *outage) failing(now time.Time) (since, last *time.Time, cause string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.since.IsZero() && o.until.IsZero():
		if cause = o.cause(); o.code != cause {
			cause += ", now " + o.code
		}
		return new(o.since), new(o.last), cause
	case o.failures > 1 && now.Sub(o.first) >= flickerFor && now.Sub(o.last) < o.lasts:
		return new(o.first), new(o.last), o.code
	}
	return nil, nil, ""
}

// outages returns those that ended lately; the last one of a step once its calls are answered again, and do not only flicker,
// or, without its end, while no call is made: another replica may see that calls work again.
func (all *callPools) outages(now time.Time) []orders.Outage {
	all.mu.Lock()
	defer all.mu.Unlock()
	ended := []orders.Outage{}
	for _, p := range all.byStep {
		o := &p.outage
		o.mu.Lock()
		of := slices.Clone(o.before)
		if goesOn := o.until.IsZero(); goesOn && !o.since.IsZero() && now.Sub(o.last) > flickerFor || !goesOn && (o.failures == 0 || !o.flickers()) {
			of = append(of, o.over())
		}
		o.mu.Unlock()
		for _, one := range of {
			if one.Step, one.Route, one.Host = p.step, p.route, p.cfg.Host(); one.Until.IsZero() || now.Sub(one.Until) < endedFor {
				ended = append(ended, one)
			}
		}
	}
	return ended
}
