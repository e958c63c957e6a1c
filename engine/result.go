package engine

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// resultKey is what the results of one statement have in common.
type resultKey struct {
	outcome  fsm.Outcome // or suspends, or fallsBack
	next     string      // the route that it falls back to
	policy   int32
	state    fsm.State
	fence    int64
	seq      int32
	stop     bool
	step     fsm.Step
	route    string // of the order, which decides where the next step is
	executor policy.Executor

	capture                  string // these four as in ledger.Results
	captureWithin            time.Duration
	sells, doubted, consumes bool
}

// captureNotice is how long before the end of an authorization the history says that it ends. It is shorter for short
// authorizations.
const captureNotice = 24 * time.Hour

// answersMost is the maximum number of results in one statement. PostgreSQL joins them to their rows with a nested
// loop, so four batches of 128 are four times as fast as one of 512.
const answersMost = 128

func (e *remote) resultKey(r *run) resultKey {
	o, c := &r.order, r.call
	key := resultKey{
		outcome: outcomeFor(c, o), state: o.Status, fence: o.Fence, seq: o.Seq,
		stop: o.StopRequested != nil, step: c.step, consumes: c.source != "",
	}
	if key.outcome == suspends {
		return key
	}
	if key.outcome == fsm.Refused {
		if key.next = nextRoute(c, o); key.next != "" {
			key.outcome = fallsBack
			return key
		}
	}
	key.policy, key.route = *o.Policy, or(o.Route)
	p, _ := e.policies.byVersion(o.Policy)
	how := stepFor(p, o, c.step)
	if how.Executor.Remote() {
		key.executor = how.Executor
	}
	if c.step == fsm.Charge && (how.Capture == policy.CaptureOnConfirm || how.Capture == policy.CaptureLater) {
		key.capture, key.captureWithin = how.Capture, how.CaptureWithin
	}
	key.doubted = c.refusedInDoubt()
	key.sells = !p.Reserve.Executor.Remote()
	return key
}

// outcomeFor returns what a result means to the machine: the order leaves its state as done, refused or stopped, or
// it stays (suspends).
func outcomeFor(c *call, o *orders.Order) fsm.Outcome {
	switch result := c.result.(type) {
	case stopRequested:
		return fsm.Stopped
	case ledgerConfirm:
		return fsm.Done
	case provider.Done: // of a void, it says nothing about this generation
		if !c.voids(o) {
			return fsm.Done
		}
	case provider.Refused: // a refused undo, or a confirmation refused in doubt, is left to a person
		if !o.Status.Undoing() && c.operation != provider.Undo && (!o.Status.Pivot() || !c.refusedInDoubt()) {
			return fsm.Refused
		}
	case provider.Retry:
		// A step that was certainly not done and is not retried counts as refused.
		if !c.doubted && !c.uncalled && c.operation == provider.Do && slices.Contains(c.pool.cfg.Retry.NonRetryable, result.Code) {
			return fsm.Refused
		}
	}
	return suspends
}

// sellsStock reports whether a result writes the stock row. The confirmation of a reservation in the ledger does.
func (e *remote) sellsStock(r *run) bool {
	key := e.resultKey(r)
	return key.outcome == fsm.Done && key.state.Step() == fsm.Confirm && key.sells
}

// commitResults commits the results of calls: the orders leave their state or are put on hold.
func (e *remote) commitResults(key resultKey, runs []*run) []*run {
	switch key.outcome {
	case suspends:
		e.suspend(key, runs)
	case fallsBack:
		e.fallBack(key, runs)
	default:
		e.advance(key, runs)
	}
	return runs
}

// advance moves orders out of their state. For orders that get a permit, the same commit also begins the call of the
// next step.
func (e *remote) advance(key resultKey, runs []*run) {
	if next := e.nextPool(key, runs[0]); next != nil {
		unread, ready := divide(runs, next.lacksReference)
		n := next.acquire(len(ready))
		e.commitMove(permits{pool: next, left: n}, key, ready[:n:n])
		runs = append(unread, ready[n:]...)
	}
	e.commitMove(permits{}, key, runs)
}

// nextPool is the pool for the next call of orders that move forward. It is nil if there is no such call, or if the
// orders may have to stop first.
func (e *remote) nextPool(key resultKey, r *run) *callPool {
	o := &r.order
	next, _ := key.state.Next(key.outcome)
	if key.outcome != fsm.Done || next.Final() || next.Undoing() || o.StopRequested != nil {
		return nil
	}
	p, _ := e.policies.byVersion(o.Policy)
	if !stepFor(p, o, next.Step()).Executor.Remote() {
		return nil
	}
	return e.callPool(*o.Policy, p, next.Step(), or(o.Route))
}

// commitMove moves a batch. With permits it begins the next calls of the orders that move forward.
func (e *remote) commitMove(with permits, key resultKey, runs []*run) {
	if len(runs) == 0 {
		return
	}
	results := make(map[int64]ledger.Answer, len(runs))
	for _, r := range runs {
		_, results[r.no()] = namedResult(r.call.result)
	}
	with.asked = time.Now()
	defer with.freeUnused()
	statement := func(ctx context.Context, q *db.Queries, s ledger.Batch) ([]ledger.Moved, error) {
		return ledger.SaveResults(ctx, q, ledger.Results{
			Batch: s, Outcome: key.outcome, Step: key.step, Executor: string(key.executor), Capture: key.capture, CaptureWithin: key.captureWithin, CaptureDue: key.captureWithin - min(key.captureWithin/4, captureNotice),
			Sells: key.sells, Doubted: key.doubted, Consumes: key.consumes,
			Begins: with.pool != nil, Call: with.leastLease(), Lease: with.lease(), Of: results,
		})
	}
	for _, r := range e.move(mover{statement: statement, outcome: key.outcome, ifLocked: toHot}, runs) {
		r.applyResult()
		r.complete = r.complete && key.capture == "" // the order shows what can be captured
		if with.pool != nil && !r.status().Undoing() {
			with.use(r)
			now := e.now()
			r.begun(or(r.order.Calls)+1, &now, now) // toCall, instead of toStep
		}
	}
}

// applyResult applies to the run what the statement of its result changed in the row.
func (r *run) applyResult() {
	o, c := &r.order, r.call
	if done, ok := c.result.(provider.Done); ok && done.Reference != "" && c.state == fsm.DoneIn(c.step) {
		switch c.step {
		case fsm.Charge:
			o.ChargeReference = &done.Reference
		case fsm.Reserve:
			o.ReserveReference = &done.Reference
		default: // the reference of a confirmation is read when needed
		}
	}
	o.Retries, o.RetryWindowStartedAt, o.Action = nil, nil, nil
	if _, stopped := r.call.result.(stopRequested); !o.Status.Undoing() || !stopped && !r.call.refusedInDoubt() {
		o.InDoubtSince = nil // otherwise the step is undone while in doubt, and InDoubtSince stays
	}
	if o.Status == fsm.Completed {
		o.StopRequested = nil
	}
	r.call, r.preflight = nil, nil
}

// suspend commits results that leave orders in their state: most are held.
func (e *remote) suspend(key resultKey, runs []*run) {
	results := make(map[int64]ledger.Suspension, len(runs))
	for _, r := range runs {
		results[r.no()] = undecided{r.call.pool.cfg, r.call, &r.order, e.now(), rand.Float64()}.decide()
	}
	statement := func(ctx context.Context, q *db.Queries, s ledger.Batch) ([]ledger.Moved, error) {
		return ledger.Suspend(ctx, q, ledger.Suspensions{Batch: s, Of: results, Consumes: key.consumes})
	}
	for _, r := range e.move(mover{statement: statement, outcome: suspends, ifLocked: toRetry}, runs) {
		s := results[r.no()]
		if s.Hold == "" {
			if r.preflight != nil {
				r.preflight.learn(r.call)
			}
			if s.Cleared {
				r.order.InDoubtSince = nil
			}
			r.call = nil
			continue
		}
		e.metrics.countHeld(s.Hold, 1)
		if s.Hold == fsm.HoldAttention {
			e.log.Warn("order held", "order_id", r.orderID, "status", r.status(), "reason", s.Reason)
		}
		r.order.Hold, r.call, r.complete = &s.Hold, nil, false
		endRuns(nil, r)
	}
}

// undecided is the input for decide: an order whose step was neither done nor refused.
type undecided struct {
	cfg    *policy.Step
	call   *call
	order  *orders.Order
	now    time.Time // by the clock of the database
	chance float64   // from 0 to 1, for the jitter of the delay
}

// decide returns the hold of the order. It is a pure function.
func (u undecided) decide() ledger.Suspension {
	s, c, o := u.meaning(), u.call, u.order
	_, unasked := c.result.(attention)
	ofStep := c.operation == provider.Do && !unasked && !c.uncalled && !c.lookOnly
	if s.Hold != "" && (ofStep || c.voids(o)) && orders.Stopping(o) && !o.Status.Undoing() && (s.Cleared || !o.Status.Pivot()) {
		s.Hold, s.Reason, s.Delay = "", "", 0 // the order will be undone, without waiting for the step or the void
	}
	return s
}

func (u undecided) meaning() (s ledger.Suspension) {
	c := u.call
	if s.Outcome, s.Answer = namedResult(c.result); c.uncalled {
		s.Outcome = ""
	}
	switch result := c.result.(type) {
	case attention:
		s.Hold, s.Reason, s.Delay = fsm.HoldAttention, result.reason, -1
	case provider.Refused: // of an undo, or of a confirmation, which can't be undone
		reason := "undo_refused: "
		switch {
		case c.voids(u.order):
			reason = orders.VoidRefused
		case c.operation != provider.Undo:
			reason = "refused_in_doubt: "
		case c.source == byOperator && result.Code != settledCode:
			reason += settledCode + ": " // the provider has not said so
		}
		s.Hold, s.Reason, s.Delay, s.Counts = fsm.HoldAttention, reason+result.Code, -1, true
	case provider.Waiting:
		s.Hold, s.Delay, s.Action = fsm.HoldCallback, u.cfg.CallbackTimeout, result.Action
	case provider.Retry:
		s.Counts = result.Counts
		// A callback with "not done" may be about an earlier call than the last one.
		s.Cleared = !c.doubted || c.source == byOperator
		// That an undo had no effect says nothing about the step.
		s.Cleared = s.Cleared && !c.voids(u.order) && !c.uncalled && !(c.operation == provider.Undo && c.source == byOperator)
		return u.again(s, result.After)
	case unseen: // send the request again at once
	case provider.Unknown:
		s.Counts = true
		return u.again(s, result.After)
	default: // an earlier key is void now: continue with the next call
		s.Answer = ledger.Answer{}
	}
	return s
}

// again holds the order for a retry, or for a person once retries and budget are used up.
func (u undecided) again(s ledger.Suspension, after time.Duration) ledger.Suspension {
	cfg, retries, spent := u.cfg, or(u.order.Retries), time.Duration(0)
	if u.order.RetryWindowStartedAt != nil {
		spent = max(u.now.Sub(*u.order.RetryWindowStartedAt), 0)
	}
	if s.Counts {
		retries++
	}
	s.Hold, s.Reason = fsm.HoldRetry, s.Code
	// With jitter even after Retry-After, or orders with the same one would call together.
	s.Delay = after + time.Duration(u.chance*delayBound(&cfg.Retry, retries, s.Counts, spent))
	left := cfg.Retry.Budget - spent
	switch {
	case slices.Contains(cfg.Retry.NonRetryable, s.Code):
		s.Hold, s.Reason = fsm.HoldAttention, "non_retryable: "+s.Code
	case int(retries) > cfg.Retry.MaxRetries && left <= 0:
		s.Hold, s.Reason = fsm.HoldAttention, fmt.Sprintf("retries_exhausted: no success in %s, last %s", spent.Round(time.Second), s.Code)
	case after > left && after > cfg.Retry.Cap && !u.call.uncalled:
		s.Hold, s.Reason = fsm.HoldAttention, fmt.Sprintf("retry_after: the provider asks to wait until %s", u.now.Add(after).UTC().Format(time.RFC3339))
	}
	if s.Hold == fsm.HoldAttention {
		s.Delay = -1
	}
	return s
}

// Retries are the tries of a step that failed and count, and how many are left. Once none is and Until has passed, the order
// needs a person after the next one that fails: see again.
type Retries struct {
	Failed, Left int32
	Until        *time.Time // nil: there was no call yet
}

// Retries returns those of an order that waits for its next try; nil: it does not, or this process does not know its policy.
func (e *Engine) Retries(o *orders.Order) *Retries {
	if !orders.HeldFor(o, fsm.HoldRetry) {
		return nil
	}
	p, _ := e.policies.byVersion(o.Policy)
	if p == nil {
		return nil
	}
	retry, failed := &stepFor(p, o, o.Status.Step()).Retry, or(o.Retries)
	r := &Retries{Failed: failed, Left: max(int32(retry.MaxRetries)+1-failed, 0)}
	if o.RetryWindowStartedAt != nil {
		r.Until = new(o.RetryWindowStartedAt.Add(retry.Budget).UTC())
	}
	return r
}

// delayBound is the upper bound of the random delay before a retry, in nanoseconds (full jitter: Brooker, "Exponential
// Backoff And Jitter", 2015). It grows with the number of retries. Answers that do not count leave that number
// unchanged, so after these the bound grows with the time spent.
func delayBound(r *policy.Retry, retries int32, counts bool, spent time.Duration) float64 {
	bound := float64(max(spent/2, r.Initial))
	if counts {
		bound = float64(r.Initial) * math.Pow(r.Factor, float64(min(retries-1, 64)))
	}
	return min(bound, float64(r.Cap))
}
