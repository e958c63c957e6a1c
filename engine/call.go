package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// The way of a call, from top to bottom:
//
//	call ──▶ preflight ──▶ permit ──▶ begin ──▶ makeCall ──▶ commitResults ──▶ advance, or suspend
//	  │       one read               commit     no lock        commit
//	  └─ to be stopped, or answered without a call ──────────▶
//
// An order that was just moved or admitted, and for which there is a permit, comes in at makeCall: its
// call was committed with the move.

// call takes an order that stands at a remote step. It reports false when the engine is stopping and the
// order would need a call: none is begun any more.
func (e *Engine) call(r *run) bool {
	o := &r.order
	if r.call != nil && !r.call.stands(o) {
		e.fenced(r)
	}
	pool := e.poolOf(o)
	switch {
	case orders.Stopping(o) && !o.Status.Undoing() && !pool.stepKeyExpired(o, e.now()):
		e.withoutCall(r, pool, stopRequested{})
	case e.stopping.Load():
		return false
	case pool.unread(r):
		e.preflights.Add(r)
	default:
		pool.enqueue(r)
	}
	return true
}

// withoutCall has a result committed that no call gave, and that does not count as one. The run is handed over.
func (e *Engine) withoutCall(r *run, p *callPool, result provider.Result) {
	o := &r.order
	r.call = &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, result: result, uncalled: true}
	e.results.Add(r)
}

// unread reports whether the order may have been called for before: then that is read first.
func (p *callPool) unread(r *run) bool {
	o := &r.order
	return r.preflight == nil && (o.InDoubtSince != nil || o.Retries != nil || o.Generation > 0 || o.Status.Undoing() || p.lacksReference(r))
}

// lacksReference reports whether a call goes by what the provider calls the charge, and the run does not know
// it: the order may have been taken up after that was said.
func (p *callPool) lacksReference(r *run) bool {
	return p.cfg.Executor == policy.Stripe && r.order.Calls != nil && or(r.order.ChargeReference) == ""
}

// runPreflight is the flush of the queue of orders that may have been called for before.
func (e *Engine) runPreflight(runs []*run) {
	runs = slices.Clone(runs)
	found, err := e.readPreflight(e.ctx, runs)
	if e.standsDown("look for what was sent before", err, runs) {
		return
	}
	if err != nil {
		e.log.Warn("look for what was sent before", "error", err)
		e.later(runs)
		return
	}
	for _, r := range runs {
		r.preflight = found[r.no()]
		pool := e.poolOf(&r.order)
		if answer := r.preflight.answer; answer != nil {
			r.call = pool.callOfAnswer(&r.order, answer)
		}
		if r.call != nil {
			e.results.Add(r)
		} else {
			pool.enqueue(r)
		}
	}
}

// prepareCall asks the circuit breaker, makes the call of an order that has a permit, and queues it to be committed.
func (e *Engine) prepareCall(r *run, p *callPool) {
	if o := &r.order; o.Status.Undoing() && r.preflight.own.undoKeyExpired(p.cfg, o, o.InDoubtSince, e.now()) {
		p.release()
		e.withoutCall(r, p, attention{reason: outcomeUnknown})
		return
	}
	report, err := p.breaker.Allow()
	if err != nil {
		p.release()
		e.withoutCall(r, p, provider.Retry{Code: "breaker_open", After: p.cfg.Breaker.Open})
		return
	}
	r.call = p.newCall(r)
	r.call.report = report
	e.begins.Add(r)
}

// beginKey is what the calls of one statement have in common.
type beginKey struct {
	state      fsm.State
	fence      int64
	seq        int32
	step       fsm.Step
	operation  provider.Operation
	voids      bool
	generation int32
	call       time.Duration // how long it may take
}

const lookup provider.Operation = "lookup"

func beginKeyOf(r *run) beginKey {
	o, c := &r.order, r.call
	return beginKey{state: o.Status, fence: o.Fence, seq: o.Seq, step: c.step, operation: c.kind(),
		voids: c.voids(o), generation: c.generation, call: c.pool.cfg.Timeout + leaseMargin}
}

// begin is the flush of the queue of calls: it commits that calls are about to be made, and makes them.
func (e *Engine) begin(runs []*run) {
	for key, group := range groupBy(runs, beginKeyOf) {
		e.commitCalls(key, group)
	}
}

func (e *Engine) commitCalls(key beginKey, runs []*run) {
	asked := time.Now()
	for _, r := range runs {
		r.call.asked = asked
	}
	rows, err := e.query.CallsBegin(e.ctx, e.beginning(key, runs))
	switch {
	case db.FaultOf(err) == db.Bad:
		e.split(runs, func(half []*run) { e.commitCalls(key, half) }, func(r *run) { notBegun(r); e.giveUp(r, err) })
		return
	case err != nil:
		notBegun(runs...)
		e.failed("begin calls", err, runs, e.later)
		return
	}
	e.Stats.Batches.Add(1)
	if len(rows) > 0 {
		e.tickOn(rows[0].At)
	}
	byNo := make(map[int64]db.CallsBeginRow, len(rows))
	for _, row := range rows {
		byNo[row.OrderNo] = row
	}
	begun, lost := divide(runs, func(r *run) bool { _, ok := byNo[r.no()]; return ok }) // once its call is under way a run is not ours
	for _, r := range begun {
		row := byNo[r.no()]
		r.order.Seq = row.Seq
		e.begun(r, row.Call, row.InDoubtSince, row.At)
	}
	notBegun(lost...)
	e.onCASMiss(lost)
}

func (e *Engine) beginning(key beginKey, runs []*run) db.CallsBeginParams {
	p := db.CallsBeginParams{
		OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Step: string(key.step), Operation: string(key.operation), CallSeconds: key.call.Seconds(),
		LeaseSeconds: max(e.cfg.Lease, key.call).Seconds(),
	}
	if key.voids {
		p.Generation = &key.generation
	}
	if key.operation == provider.Undo {
		for _, r := range runs {
			p.UndoReferences = append(p.UndoReferences, r.call.undoReference)
		}
	}
	return p
}

// notBegun gives back what calls hold that come to nothing.
func notBegun(runs ...*run) {
	for _, r := range runs {
		r.call.report(errUncalled)
		r.call.permit.free()
		r.call = nil
	}
}

// begun notes in the run that its call is committed, with this number and at this time, and starts the call.
// Every call of an order starts here.
func (e *Engine) begun(r *run, number int32, inDoubtSince *time.Time, at time.Time) {
	o, c := &r.order, r.call
	o.Calls, o.InDoubtSince, r.complete, r.vainTries = &number, inDoubtSince, false, 0
	if o.RetryWindowStartedAt == nil {
		o.RetryWindowStartedAt = &at
	}
	c.number, c.fence, c.lookOnly = number, o.Fence, c.lookOnly || c.keyExpired(r, at)
	e.wg.Go(func() { e.makeCall(r) })
}

// makeCall makes one call, with no transaction open and no lock held, and queues its answer to be
// committed. It ends with its own timeout, not when the caller of the order hangs up.
func (e *Engine) makeCall(r *run) {
	c := r.call
	ctx, cancel := context.WithTimeout(e.ctx, c.pool.cfg.Timeout)
	defer cancel()
	request, err := e.callOf(ctx, r)
	if err != nil {
		c.result = provider.Retry{Code: "database_unavailable", Detail: err.Error()}
		c.report(errUncalled)
	} else {
		made := time.Now()
		c.result = c.perform(ctx, request)
		c.report(failureOf(c.result))
		e.answered(r, time.Since(made))
	}
	e.results.Add(r)
	c.permit.free()
}

// commitResults commits what answers mean. It hands runs whose stock row stayed locked to busy.
func (e *Engine) commitResults(runs []*run, busy func([]*run)) {
	for key, group := range groupBy(runs, e.resultKey) {
		if key.outcome == suspends {
			e.suspend(key, group)
		} else {
			e.advance(key, group, busy)
		}
	}
}

// call is one call of a remote step. It exists from before it is committed until
// its answer is committed, and belongs to whoever holds the run.
type call struct {
	pool          *callPool // whose executor it is
	permit        *callPool // whose permit it holds until it is answered or dropped; not pool where an earlier generation is voided
	state         fsm.State // where the order stands meanwhile
	step          fsm.Step
	generation    int32 // of the key: that of the order, or an earlier one that is voided
	operation     provider.Operation
	number        int32
	fence         int64
	doubted       bool      // an earlier call may have had its effect
	undoReference string    // the reference that an undo request gives
	lookOnly      bool      // the provider may have forgotten the key: sending it could do the step twice, or undo nothing
	unseen        bool      // a look-up just before this call said that the provider has not seen the key
	uncalled      bool      // no call is made; only the result is recorded
	asked         time.Time // just before the statement that begins it was sent, on the clocks of this machine
	report        func(error)

	result provider.Result // nil until it is answered
	source string          // of an answer that came without a call: callback, webhook, operator
}

// Where an answer without a call comes from, as it stands in step_answers.
const (
	byCallback = "callback"
	byWebhook  = "webhook"
	byOperator = "operator"
)

// Results that no provider gave. stopRequested: the order is to stop, so no answer is waited for.
// ledgerConfirm: the ledger did this step of an order whose other steps are remote. unseen: a look-up
// found that the provider has not seen the key, so it is sent again by a call of its own. attention: a
// person is needed.
type (
	stopRequested struct{ provider.Done }
	ledgerConfirm struct{ provider.Done }
	unseen        struct{ provider.Retry }
	attention     struct {
		provider.Unknown
		reason string
	}
)

// What the circuit breaker gets for a call that failed, and for one that does not count: mostly it was not made.
var (
	errIll      = errors.New("the other side does not do its part")
	errUncalled = errors.New("not called")
)

// stands reports whether the order still is in the state that the call is for, and in its
// generation. An undo may be about an earlier generation.
func (c *call) stands(o *orders.Order) bool {
	return c.state == o.Status && (!c.voids(o) || c.operation == provider.Undo)
}

// voids reports whether the call is to void a key of an earlier generation. Its result says nothing
// about the step of the current generation, which is as much in doubt as before.
func (c *call) voids(o *orders.Order) bool { return c.generation != o.Generation }

// operationIn is what the step of a state does there.
func operationIn(s fsm.State) provider.Operation {
	if s.Undoing() {
		return provider.Undo
	}
	return provider.Do
}

// newCall makes the next call of a run ready.
func (p *callPool) newCall(r *run) *call {
	o := &r.order
	c := &call{pool: p, permit: p, state: o.Status, step: p.step, generation: o.Generation, operation: operationIn(o.Status),
		doubted: o.InDoubtSince != nil, lookOnly: p.stepKeyExpired(o, p.e.now())}
	switch {
	case r.preflight == nil:
	case c.operation == provider.Do && len(r.preflight.voids) == 0:
		c.unseen = r.preflight.unseen
	case len(r.preflight.voids) > 0:
		c.toVoid(&r.preflight.voids[0])
	case c.operation == provider.Undo: // one that must not be sent has not come this far
		c.undoReference, c.lookOnly = r.preflight.own.referenceToUndo(p.cfg.Executor), false
	}
	return c
}

// toVoid makes the call undo a key of an earlier generation. What the row says about doubt is
// about the current generation, so it does not count here. Only the executor that did the step can
// undo it; if this process can't use that executor, a person is asked.
func (c *call) toVoid(key *sentKey) {
	e := c.pool.e
	c.step, c.generation, c.operation, c.doubted, c.lookOnly = key.step, key.generation, provider.Undo, false, false
	if p, ok := e.policies.byVersion(&key.policy); ok && p != nil && p.Step(key.step).Executor.Remote() {
		c.pool = e.callPool(key.policy, key.step, p)
	} else {
		c.pool = &callPool{e: e, step: key.step, cfg: c.pool.cfg, unusable: fmt.Errorf("no policy %d here to undo the %s with", key.policy, key.step)}
	}
	c.undoReference = key.referenceToVoid(c.pool.cfg.Executor)
}

// callOfAnswer is the call of an answer that came without one, so that both go one way.
func (p *callPool) callOfAnswer(o *orders.Order, row *db.CallsPreflightRow) *call {
	c := &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, operation: operationIn(o.Status),
		number: or(o.Calls), doubted: or(o.Retries) > 0, source: row.Source}
	switch row.Outcome {
	case "done":
		c.result = provider.Done{Reference: row.AnswerReference, Data: []byte(row.Data)}
	case "refused":
		c.result = provider.Refused{Code: row.Code, Detail: row.Detail}
	default:
		c.result = provider.Retry{Code: row.Code, Detail: row.Detail, Counts: true}
	}
	return c
}

// refusedInDoubt reports whether an earlier call may still have its effect although a later
// one was refused. Not if a person said refused: that is final. Not if the provider offers
// look-ups: then it remembers what it refused, and the earlier call has no effect either.
func (c *call) refusedInDoubt() bool {
	_, refused := c.result.(provider.Refused)
	_, remembers := c.pool.exec.(provider.Looker)
	return refused && c.doubted && !remembers && c.source != byOperator
}

// keyExpired reports whether the key of a call was too old to be sent when the call
// was committed. now is the time of that statement, as the age of the key is: no clock of
// this machine, nor its sleep, has a part in it.
func (c *call) keyExpired(r *run, now time.Time) bool {
	o := &r.order
	if c.operation != provider.Undo || c.voids(o) {
		return c.permit.stepKeyExpired(o, now)
	}
	return r.preflight.own.undoKeyExpired(c.pool.cfg, o, o.InDoubtSince, now)
}

// stoodStillCode is the code of a call that was not made because it would have come too late.
const stoodStillCode = "stood_still"

// stoodStill reports whether so much time has passed since the call was committed that
// its key may be too old by now, whatever its age was then: the process was stopped, or the
// machine slept. The monotonic clock does not see the second and the wall clock may miss
// either, so the one that counts more time is believed. If it is wrong, the call is only
// made a little later, by another call.
func (c *call) stoodStill() bool {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0))) > retentionMargin/2
}

// perform makes the call: a look-up if the step is in doubt and the provider can be asked, otherwise the request itself.
func (c *call) perform(ctx context.Context, request *provider.Call) provider.Result {
	if c.stoodStill() {
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	}
	exec := c.pool.exec
	if exec == nil {
		return attention{reason: "policy_unusable: " + c.pool.unusable.Error()}
	}
	if c.operation == provider.Undo && c.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	if c.operation == provider.Undo {
		result := exec.Undo(ctx, request)
		if _, ok := result.(provider.Waiting); ok {
			return provider.Unknown{Code: "undo_pending"}
		}
		return result
	}
	if c.looksUp() {
		result := exec.(provider.Looker).Lookup(ctx, request)
		if retry, ok := result.(provider.Retry); !ok {
			return result
		} else if !c.lookOnly {
			return unseen{retry}
		}
	}
	if c.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	return exec.Do(ctx, request)
}

// looksUp reports whether the call asks what became of a step in doubt, and sends nothing.
func (c *call) looksUp() bool {
	_, can := c.pool.exec.(provider.Looker)
	return can && c.operation == provider.Do && c.doubted && !c.unseen
}

// kind is the operation that the call is recorded and counted as.
func (c *call) kind() provider.Operation {
	if c.operation == provider.Do && (c.lookOnly || c.looksUp()) {
		return lookup
	}
	return c.operation
}

// preflight is what was read before a call, once and for all: see queries/calls.sql.
type preflight struct {
	answer *db.CallsPreflightRow // one that came without a call and was not used yet; nil: none
	own    sentKey               // of the step that the order is at
	voids  []sentKey             // of earlier generations: a late request with one of them could still be done
	unseen bool                  // a look-up since then said that the provider has not seen the key
}

// learn notes what the result of a call says about the next one: the key was not seen, or an earlier key is void. After any
// other result an order goes on only to stop.
func (p *preflight) learn(c *call) {
	switch c.result.(type) {
	case unseen:
		p.unseen = true
	case provider.Done:
		is := func(k sentKey) bool { return k.generation == c.generation && k.step == c.step }
		if i := slices.IndexFunc(p.voids, is); i >= 0 {
			p.voids = slices.Delete(p.voids, i, i+1)
		}
	}
}

// sentKey is the key of a step, and what is known of it before it is undone.
type sentKey struct {
	step          fsm.Step
	generation    int32
	policy        int32     // it was sent under; known of earlier generations
	reference     string    // the provider's own name for what was done
	undoBegun     bool      // an undo request was sent before
	undoReference string    // the reference it gave; empty: none
	sentAt        time.Time // when the key was first sent
}

// referenceToUndo is the reference that an undo request gives; empty: it goes by the key of the original
// request. An endpoint compares bodies, so every undo request gives what the first one gave.
// Not so with Stripe: there the request is the same, whether the reference was known or is
// found by the key.
func (k *sentKey) referenceToUndo(how policy.Executor) string {
	if k.undoBegun && how != policy.Stripe {
		return k.undoReference
	}
	return k.reference
}

// referenceToVoid is the same for a key of an earlier generation. As far as we know nothing stands
// under it, and the undo request is there to void the key, so it gives no reference of its own.
func (k *sentKey) referenceToVoid(how policy.Executor) string {
	if !k.undoBegun && how != policy.Stripe {
		return ""
	}
	return k.referenceToUndo(how)
}

// undoKeyExpired reports whether an undo request would go by a key that the provider may have
// forgotten. It would find nothing and report success, and the effect would stand.
// since: when the step came to be in doubt, if it is.
func (k *sentKey) undoKeyExpired(how *policy.Step, o *orders.Order, since *time.Time, now time.Time) bool {
	sent := k.sentAt
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !foundByReference(how.Executor, k.referenceToUndo(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// readPreflight reads what has to be known before the next call of each order, by order number. Without an error none is missing.
func (e *Engine) readPreflight(ctx context.Context, runs []*run) (map[int64]*preflight, error) {
	p := db.CallsPreflightParams{}
	for _, r := range runs {
		p.OrderNos, p.Generations = append(p.OrderNos, r.no()), append(p.Generations, r.order.Generation)
		p.Steps, p.Operations = append(p.Steps, string(r.status().Step())), append(p.Operations, string(operationIn(r.status())))
	}
	return preflights(e.query.CallsPreflight(ctx, p))
}

// keyOf reads what is known of one key, for somebody who waits for it, or who undoes it late.
func (e *Engine) keyOf(ctx context.Context, orderNo int64, key sentKey, operation provider.Operation) (*preflight, error) {
	found, err := preflights(orders.Read(ctx, e.Orders, e.query.CallsPreflight, db.CallsPreflightParams{OrderNos: []int64{orderNo}, Generations: []int32{key.generation},
		Steps: []string{string(key.step)}, Operations: []string{string(operation)}}))
	if err != nil {
		return nil, orders.Unavailable("read what was sent before", err)
	}
	return found[orderNo], nil
}

func preflights(rows []db.CallsPreflightRow, err error) (map[int64]*preflight, error) {
	found := map[int64]*preflight{}
	for _, row := range rows {
		f := found[row.OrderNo]
		if f == nil {
			f = &preflight{}
			found[row.OrderNo] = f
		}
		key := sentKey{fsm.Step(row.Step), row.Generation, row.Policy, row.Reference, row.UndoBegun, row.UndoNamed, row.SentAt}
		if row.Voids {
			f.voids = append(f.voids, key)
			continue
		}
		f.own = key
		if row.Outcome != "" {
			f.answer = &row
		}
	}
	return found, err
}
