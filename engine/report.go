package engine

import (
	"bytes"
	"context"
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
	reportEvery = 2 * time.Second
	reportSoon  = reportEvery / 4  // after a change
	reportAfter = 10 * time.Minute // after its last call, a step is no longer reported
	failingFor  = time.Hour        // unless its breaker is not closed: then after this
	flickerFor  = 10 * time.Second // an outage that ended goes on if calls fail again within this
	flickerMost = 3                // and fewer than so many have worked
	outagesMost = 4                // so many of a pool are kept
	codesMost   = 100              // so many codes of an outage are counted
)

// reportLoop stores what only this replica knows, so that every replica can show an overview of all: how many orders
// it finishes, and the state of its calls. An idle replica reports as well: if it is killed, its report says when it lived.
func (e *Engine) reportLoop() {
	at, ended := time.Now(), e.metrics.ended.Load()
	outages := e.report(0, []orders.ProviderStep{}, nil) // at once: it may take the place of one that was lost
	for e.reportDue() {
		before, since := ended, time.Since(at)
		at, ended = time.Now(), e.metrics.ended.Load()
		e.learn(e.now())
		outages = e.report(float64(ended-before)/since.Seconds(), e.callPools.loads(reportAfter), outages)
	}
	e.endReport()
}

// reportDue waits for the next report, which comes sooner if calls began to fail or work again, or orders were taken over.
func (e *Engine) reportDue() bool {
	ctx, cancel := context.WithTimeout(e.ctx, reportEvery)
	defer cancel()
	wait := time.Duration(0)
	if e.reportNow.heard(ctx) {
		wait = reportSoon
	}
	return e.lastsFor(wait)
}

// report returns the outages and take-overs that are stored. They have the numbers of many orders, so only changes are written.
func (e *Engine) report(ordersPerSecond float64, steps []orders.ProviderStep, stored []byte) []byte {
	ctx, cancel := e.handingBack() // a canceled report could be stored after it was removed
	defer cancel()
	text, err := json.Marshal(steps)
	outages, wrong := json.Marshal(append(e.callPools.outages(e.now()), e.takeOvers.lately(e.now())...))
	p := db.ReplicaReportParams{Owner: e.owner, Name: pg.ReplicaName(), OrdersPerSecond: ordersPerSecond, Steps: text}
	if !bytes.Equal(outages, stored) {
		p.Outages = outages
	}
	if err = errors.Join(err, wrong); err == nil {
		err = e.query.ReplicaReport(ctx, p)
	}
	if e.warnReport("store", err); err != nil {
		return nil
	}
	return outages
}

// learn ends the outages of pools that make no calls, once calls work at another replica.
func (e *Engine) learn(now time.Time) {
	var quiet []*callPool
	e.callPools.each(func(p *callPool) {
		if p.quiet(now) {
			quiet = append(quiet, p)
		}
	})
	if len(quiet) == 0 {
		return
	}
	rows, err := e.query.ReplicaReports(e.ctx, db.ReplicaReportsParams{})
	for _, row := range rows {
		var steps []orders.ProviderStep
		err = errors.Join(err, json.Unmarshal(row.Steps, &steps))
		for _, p := range quiet {
			p.learn(steps)
		}
	}
	e.warnReport("read", err)
}

// quiet reports whether there is an outage, and the breaker has let no call through for a while.
func (p *callPool) quiet(now time.Time) bool {
	return p.outage.ongoing(now) && now.Sub(p.outage.failedAt) > max(flickerFor, p.cfg.Breaker.Open)
}

func (p *callPool) learn(steps []orders.ProviderStep) {
	for _, step := range steps {
		if step.Step == p.step && step.Route == p.route && step.Host == p.cfg.Host() && step.WorkedAt != nil {
			p.outage.works(*step.WorkedAt)
		}
	}
}

func (e *Engine) endReport() {
	ctx, cancel := e.handingBack()
	defer cancel()
	e.warnReport("end", e.query.ReplicaReportEnd(ctx, e.owner))
}

func (e *Engine) warnReport(verb string, err error) {
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("reports of replicas", "verb", verb, "error", err)
	}
}

// outage is what a pool knows of the outages of its provider. One begins with the first of the failures in a row that
// opened the breaker or lasted for a while, and ends with the first call that is answered once the breaker is closed.
// A look-up may be answered while the step still fails, so it counts only if it finds that the step was done, as after a
// timeout. Times are by the database's clock.
type outage struct {
	mu       sync.Mutex
	now      *failures  // that no call was answered after; nil: calls don't fail, as far as is known
	ended    []failures // the last outages
	worked   int        // calls that were answered since the last one ended
	workedAt time.Time

	failedAt time.Time
	code     string        // of the last failed call
	lasts    time.Duration // failures further apart are not in a row
}

// failures are calls that fail in a row, and the orders that wait meanwhile.
type failures struct {
	since, until time.Time
	outage       bool // the breaker opened, or they failed for a while
	waited       map[int64]struct{}
	codes        map[string]int // of the failed calls
}

// begin notes that the breaker opened.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now != nil {
		o.now.outage = true
	}
}

// works notes that a call worked while the breaker was closed, here or at another replica. again: the one before failed.
func (o *outage) works(at time.Time) (again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at.Before(o.failedAt) {
		return false
	}
	again = o.now != nil
	if o.now != nil && o.now.outage {
		o.now.until, o.worked = at, 0
		o.ended = append(o.ended, *o.now)
		o.ended = o.ended[max(len(o.ended)-outagesMost, 0):]
	}
	o.now, o.worked, o.workedAt = nil, o.worked+1, at
	return again
}

// failed notes when and why a call failed. An outage that has just ended goes on. begins: it is one of the first two in a row.
func (o *outage) failed(code string, at time.Time) (begins bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == nil || !o.now.outage && at.Sub(o.failedAt) > o.lasts {
		o.now = &failures{since: at, waited: map[int64]struct{}{}, codes: map[string]int{}}
	}
	if n := len(o.ended) - 1; n >= 0 && !o.now.outage && o.worked < flickerMost && at.Sub(o.ended[n].until) < flickerFor {
		o.now, o.ended = new(o.ended[n]), o.ended[:n]
	}
	begins = !o.failedAt.After(o.now.since)
	o.failedAt, o.code = at, code
	if len(o.now.codes) < codesMost || o.now.codes[code] > 0 {
		o.now.codes[code]++
	}
	return begins
}

// cause is the code of most failed calls.
func (a *failures) cause() (code string) {
	for other, n := range a.codes {
		if n > a.codes[code] || n == a.codes[code] && other < code {
			code = other
		}
	}
	return code
}

// note notes that an order waits, as far as orders are counted.
func (o *outage) note(orderNo int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now != nil && len(o.now.waited) < orders.CountsMost {
		o.now.waited[orderNo] = struct{}{}
	}
}

// ongoing reports whether there is an outage. Several failures in a row become one after a while, also if there are no
// more calls. The caller has locked.
func (o *outage) ongoing(now time.Time) bool {
	a := o.now
	if a != nil && o.failedAt.After(a.since) && now.Sub(a.since) >= flickerFor && now.Sub(o.failedAt) < o.lasts {
		a.outage = true
	}
	return a != nil && a.outage
}

// tell adds how the last call ended, and since when calls fail if several have failed in a row.
func (o *outage) tell(step *orders.ProviderStep) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch a := o.now; {
	case a != nil:
		step.FailedAt, step.Failure = new(o.failedAt), o.code
		if a.outage || o.failedAt.After(a.since) {
			step.FailingSince = new(a.since)
		}
		if cause := a.cause(); cause != o.code {
			step.Failure = cause + ", now " + o.code
		}
	case o.worked > 0:
		step.WorkedAt = new(o.workedAt)
	}
}

// each visits the pools, with their outages locked.
func (all *callPools) each(visit func(*callPool)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, p := range all.byStep {
		p.outage.mu.Lock()
		visit(p)
		p.outage.mu.Unlock()
	}
}

// outages returns those that ended lately.
func (all *callPools) outages(now time.Time) []orders.Outage {
	ended := []orders.Outage{}
	all.each(func(p *callPool) {
		for _, a := range p.outage.ended {
			if now.Sub(a.until) < orders.OutagesFor {
				ended = append(ended, orders.Outage{Step: p.step, Route: p.route, Host: p.cfg.Host(), Failure: a.cause(),
					Since: a.since, Until: a.until, Orders: slices.Sorted(maps.Keys(a.waited))})
			}
		}
	})
	slices.SortFunc(ended, func(a, b orders.Outage) int { return a.Until.Compare(b.Until) }) // what is the same is not written again
	return ended
}

// takeOvers are the orders that this replica took over, by the replica that drove them before.
type takeOvers struct {
	mu   sync.Mutex
	from []orders.Outage
}

// note notes the claimed orders that another replica drove until its lease ended, and reports whether there are any.
func (t *takeOvers) note(due []db.LeasesDueRow, claimed []*run, at time.Time) (some bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, row := range due {
		if row.Owner == nil || !slices.ContainsFunc(claimed, func(r *run) bool { return r.no() == row.OrderNo }) {
			continue
		}
		from := row.Owner.String()
		i := slices.IndexFunc(t.from, func(o orders.Outage) bool { return o.Replica == from })
		if i < 0 {
			i, t.from = len(t.from), append(t.from, orders.Outage{Replica: from, Since: at})
		}
		if o := &t.from[i]; len(o.Orders) < orders.CountsMost {
			o.Until, o.Orders = at, append(o.Orders, row.OrderNo)
		}
		some = true
	}
	return some
}

// lately returns those of the last hour.
func (t *takeOvers) lately(now time.Time) []orders.Outage {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from = slices.DeleteFunc(t.from, func(o orders.Outage) bool { return now.Sub(o.Until) >= orders.OutagesFor })
	return slices.Clone(t.from)
}
