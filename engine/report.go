package engine

import (
	"encoding/json"
	"time"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

const (
	reportTimes = 10          // intervals of recovery between two reports: 5 s by default
	idleReports = 12          // of these times per report, if there is nothing to tell: a minute by default
	reportAfter = time.Minute // after its last call, a step is no longer reported
	failingFor  = time.Hour   // unless its breaker is not closed: then after this
)

// reportLoop stores what only this replica knows, so that every replica can show an overview of all: how many orders
// it finishes, and the state of its calls. An idle replica reports once a minute, so that it leaves a trace if it is killed.
func (e *Engine) reportLoop() {
	at, ended, busy := time.Now(), e.metrics.ended.Load(), false
	for left := 1; e.lastsFor(reportTimes * e.cfg.RecoveryInterval); {
		before, since, wasBusy := ended, time.Since(at), busy
		at, ended = time.Now(), e.metrics.ended.Load()
		steps := e.callPools.loads(reportAfter)
		busy = ended > before || len(steps) > 0
		if left--; busy || wasBusy || left == 0 {
			e.report(float64(ended-before)/since.Seconds(), steps)
			left = idleReports
		}
	}
	e.removeReport()
}

func (e *Engine) report(ordersPerSecond float64, steps []orders.ProviderStep) {
	ctx, cancel := e.handingBack() // a canceled report could be stored after it was removed
	defer cancel()
	text, err := json.Marshal(steps)
	if err == nil {
		err = e.query.ReplicaReport(ctx, db.ReplicaReportParams{Owner: e.owner, Name: pg.ReplicaName(), OrdersPerSecond: ordersPerSecond, Steps: text})
	}
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("store the report of this replica", "error", err)
	}
}

func (e *Engine) removeReport() {
	ctx, cancel := e.handingBack()
	defer cancel()
	if err := e.query.ReplicaReportRemove(ctx, e.owner); err != nil && e.ctx.Err() == nil {
		e.log.Warn("remove the report of this replica", "error", err)
	}
}
