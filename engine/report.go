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
	reportAfter = time.Minute // after its last call, a step is no longer reported
	failingFor  = time.Hour   // unless its breaker is not closed: then after this
)

// reportLoop stores what only this replica knows, so that every replica can show an overview of all: how many orders
// it finishes, and the state of its calls. An idle replica has no report, and writes nothing.
func (e *Engine) reportLoop() {
	reported, at, ended := false, time.Now(), e.metrics.ended.Load()
	for e.lastsFor(reportTimes * e.cfg.RecoveryInterval) {
		before, since := ended, time.Since(at)
		at, ended = time.Now(), e.metrics.ended.Load()
		steps := e.callPools.loads(reportAfter)
		switch {
		case ended > before || len(steps) > 0:
			reported = true
			e.report(float64(ended-before)/since.Seconds(), steps)
		case reported:
			reported = !e.removeReport()
		}
	}
	if reported {
		e.removeReport()
	}
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

// removeReport reports whether it succeeded.
func (e *Engine) removeReport() bool {
	ctx, cancel := e.handingBack()
	defer cancel()
	err := e.query.ReplicaReportRemove(ctx, e.owner)
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("remove the report of this replica", "error", err)
	}
	return err == nil
}
