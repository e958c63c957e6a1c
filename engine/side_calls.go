package engine

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/provider"
)

const (
	sideCallsAtOnce  = 8                // concurrent calls of a kind
	sideCallPause    = 10 * time.Minute // longest pause between tries
	longestSidePause = time.Hour        // longest pause that an answer can request
)

// sideCalls makes one kind of calls that move no order: undos of late effects, or charge operations. Due calls are
// claimed by their rows, like orders, and retried until there is an answer or a person settles them.
type sideCalls struct {
	*core
	claimDue func(most int32) (calls []func()) // claims due calls
	places   chan struct{}                     // one for each call under way
	wake                                       // nudged when calls may be due
}

func newSideCalls(e *core, claim func(most int32) []func()) *sideCalls {
	return &sideCalls{e, claim, make(chan struct{}, sideCallsAtOnce), newWake()}
}

// loop claims due calls whenever it is woken, mostly by the timer.
func (s *sideCalls) loop(ctx context.Context) {
	for s.heard(ctx) {
		if !s.stopping.Load() {
			s.start()
		}
	}
}

// start starts as many calls as there are places. Stop waits for them.
func (s *sideCalls) start() {
	free := cap(s.places) - len(s.places)
	if free == 0 {
		return
	}
	for _, call := range s.claimDue(int32(free)) {
		s.places <- struct{}{}
		s.wg.Go(func() {
			call()
			<-s.places
			s.nudge() // more may be due
		})
	}
}

// sidePause is how long to wait after a number of tries. An answer can request more.
func sidePause(claims int32, after time.Duration) time.Duration {
	return max(min(time.Second<<min(claims, 10), sideCallPause), min(after, longestSidePause))
}

// beginSideCall commits a side call. If another one of the order has committed its number meanwhile, it takes the next.
func beginSideCall[P, Row any](ctx context.Context, begin func(context.Context, P) ([]Row, error), p P) (begun []Row, err error) {
	for {
		if begun, err = begin(ctx, p); pg.Describe(err) != "23505 step_calls_pkey" {
			return begun, err
		}
	}
}

// claimLateUndos claims effects that are absent or undone in the books. Side calls undo each of them, as long as the
// provider can identify it.
func (e *remote) claimLateUndos(most int32) (calls []func()) {
	rows, err := e.query.LateUndosClaim(e.ctx, db.LateUndosClaimParams{Most: most, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		e.log.Warn("look for late effects", "error", err)
	}
	for _, row := range rows {
		calls = append(calls, func() { e.undoLate(row) })
	}
	return calls
}

const sentUnerased = "outcome_unknown: the undo was sent before the customer was erased, and can't be repeated as it was"

func (e *remote) undoLate(row db.LateUndosClaimRow) {
	result, call := e.callLate(row)
	outcome, answer := namedResult(result)
	delay := sidePause(row.Claims, 0)
	if a, ok := result.(attention); ok {
		delay, answer.Code, answer.Detail = sideCallPause, orders.RefusedUnknown, a.reason
		if row.Code != orders.RefusedUnknown {
			e.log.Error("a late effect must be undone by a person", "order_id", row.Order.OrderID,
				"step", row.Step, "generation", row.UndoGeneration, "reason", a.reason)
		}
	}
	err := e.query.LateUndoFinish(e.ctx, db.LateUndoFinishParams{OrderNo: row.Order.OrderNo, Generation: row.UndoGeneration, Step: row.Step,
		Claims: row.Claims, Call: call, Outcome: outcome, Delay: delay.Seconds(), Code: answer.Code, Detail: answer.Detail})
	if err != nil {
		e.log.Warn("store the result of a late undo", "order_id", row.Order.OrderID, "error", err)
	}
}

// callLate undoes one key, whether or not the order has a driver. It does not send an undo with an expired key, which
// would find nothing and report success, nor one that was sent before its customer was erased: with a pseudonym in its
// body, it would be another request with the same key. It returns number 0 if no call was made.
func (e *remote) callLate(row db.LateUndosClaimRow) (result provider.Result, number int32) {
	of := fsm.Step(row.Step)
	p, runs := e.policies.byVersion(row.UndoPolicy)
	if !runs || p == nil || !p.Step(of, row.UndoRoute).Executor.Remote() {
		return provider.Unknown{Code: "policy_unusable"}, 0
	}
	how := p.Step(of, row.UndoRoute)
	ctx, cancel := context.WithTimeout(e.ctx, how.Timeout)
	defer cancel()
	known, err := e.keyOf(ctx, row.Order.OrderNo, sentKey{step: of, generation: row.UndoGeneration}, provider.Undo)
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case known.own.undoKeyExpired(how, &row.Order, nil, e.now()):
		return attention{reason: outcomeUnknown}, 0
	case row.SentUnerased:
		return attention{reason: sentUnerased}, 0
	}
	r := newRun(row.Order.OrderID, Input{})
	r.order, r.preflight = row.Order, known
	r.call = &call{pool: e.callPool(*row.UndoPolicy, p, of, row.UndoRoute), step: of, generation: row.UndoGeneration, operation: provider.Undo,
		fence: row.Order.Fence, undoReference: known.own.referenceToUndo(how.Executor)}
	return e.beginLate(ctx, r, row)
}

// beginLate commits the call and makes it.
func (e *remote) beginLate(ctx context.Context, r *run, row db.LateUndosClaimRow) (provider.Result, int32) {
	c := r.call
	request, err := e.callOf(ctx, r)
	c.asked = time.Now()
	var begun []db.LateUndoBeginRow
	if err == nil {
		begun, err = beginSideCall(ctx, e.query.LateUndoBegin, db.LateUndoBeginParams{OrderNo: r.no(), Seq: row.Order.Seq, Generation: c.generation, Step: string(c.step),
			Claims: row.Claims, Policy: row.UndoPolicy, Route: row.UndoRoute, UndoReference: c.undoReference, LeaseSeconds: (c.pool.cfg.Timeout + leaseMargin).Seconds()})
	}
	switch {
	case err != nil:
		return provider.Unknown{Code: "database_unavailable", Detail: err.Error()}, 0
	case len(begun) == 0:
		return provider.Unknown{Code: "overtaken", Detail: "the order was written to meanwhile"}, 0
	}
	c.number, c.lookOnly = begun[0].Call, r.preflight.own.undoKeyExpired(c.pool.cfg, &r.order, nil, begun[0].StartedAt)
	made := time.Now()
	c.result = c.perform(ctx, request)
	e.noteCall(&answeredCall{r.orderID, "", c.step, c.kind(), c.number, c.fence, c.result, time.Since(made)})
	return c.result, c.number
}
