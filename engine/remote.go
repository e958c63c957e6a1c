package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// The path of a call:
//
//	nextCall ──▶ preflight ──▶ permit ──▶ beginCalls ──▶ makeCall ──▶ commitResults
//	  │          one read                 commit         no lock      commit
//	  └─ stopped, or answered without a call ────────────────────────▶
//
// An order that was just moved or admitted, and has a permit, enters at makeCall: its call was committed with the move.

// nextCall decides where an order at a remote step goes first. While the engine is stopping, it begins no calls.
func (e *remote) nextCall(r *run) destination {
	o := &r.order
	pool := e.poolOf(o)
	switch {
	case orders.Stopping(o) && !o.Status.Undoing() && !pool.stepKeyExpired(o, e.now()):
		return r.withoutCall(pool, stopRequested{})
	case e.stopping.Load():
		return toRelease
	case pool.unread(r):
		return toPreflight
	default:
		return toPermit
	}
}

// confirmInLedger confirms in the database what a provider has reserved. No stock changes here.
func (e *remote) confirmInLedger(r *run) destination {
	o := &r.order
	var result provider.Result = ledgerConfirm{}
	if orders.Stopping(o) {
		result = stopRequested{}
	}
	return r.withoutCall(e.poolOf(o), result)
}

// preflightCalls reads the earlier calls of orders that may have some. A stored answer, such as a callback, replaces the
// next call.
func (e *remote) preflightCalls(runs []*run) []*run {
	found, err := e.readPreflight(e.ctx, runs)
	if e.standsDown("look for what was sent before", err, runs) {
		return runs
	}
	if err != nil {
		e.log.Warn("look for what was sent before", "error", err)
		return goTo(toRetry, runs...)
	}
	for _, r := range runs {
		r.preflight = found[r.no()]
		pool := e.poolOf(&r.order)
		if answer := r.preflight.answer; answer != nil {
			r.call = pool.callOfAnswer(&r.order, answer)
		}
		if r.next = toPermit; r.call != nil {
			r.next = toResult
		}
	}
	return runs
}

// readPreflight reads the earlier calls of each order, by order number. Every order has an entry.
func (e *core) readPreflight(ctx context.Context, runs []*run) (map[int64]*preflight, error) {
	p := db.CallsPreflightParams{}
	for _, r := range runs {
		p.OrderNos, p.Generations = append(p.OrderNos, r.no()), append(p.Generations, r.order.Generation)
		p.Steps, p.Operations = append(p.Steps, string(r.status().Step())), append(p.Operations, string(operationIn(r.status())))
	}
	return preflights(e.query.CallsPreflight(ctx, p))
}

// callPace is the time between two statements that begin calls. Calls that begin together mostly end together
// (batch.Cohort), so this one pause makes batches of all the statements of an order. It is short compared with a call.
// At 200 orders/s, it takes a fifth less CPU time than a pause of 10 ms, and adds 2 ms to the median.
const callPace = 16 * time.Millisecond

// beginKey is what the calls of one statement have in common.
type beginKey struct {
	state      fsm.State
	fence      int64
	seq        int32
	step       fsm.Step
	route      string
	operation  provider.Operation
	voids      bool
	generation int32
	call       time.Duration // the longest it can take
}

func beginKeyOf(r *run) beginKey {
	o, c := &r.order, r.call
	return beginKey{state: o.Status, fence: o.Fence, seq: o.Seq, step: c.step, route: c.pool.route, operation: c.kind(),
		voids: c.voids(o), generation: c.generation, call: c.pool.cfg.Timeout + leaseMargin}
}

// beginCalls commits that calls are about to be made.
func (e *core) beginCalls(key beginKey, runs []*run) []*run {
	asked := time.Now()
	for _, r := range runs {
		r.call.asked = asked
	}
	rows, err := e.query.CallsBegin(e.ctx, e.callsBeginParams(key, runs))
	switch {
	case pg.FaultOf(err) == pg.Bad:
		split(runs, func(half []*run) { e.beginCalls(key, half) }, func(r *run) { dropCalls(r); e.giveUp(r, err) })
		return runs
	case err != nil:
		dropCalls(runs...)
		e.failed("begin calls", err, runs, toRetry)
		return runs
	}
	e.Stats.Batches.Add(1)
	if len(rows) > 0 {
		e.tickOn(rows[0].At)
	}
	byNo := make(map[int64]db.CallsBeginRow, len(rows))
	for _, row := range rows {
		byNo[row.OrderNo] = row
	}
	begun, lost := divide(runs, func(r *run) bool { _, ok := byNo[r.no()]; return ok })
	for _, r := range begun {
		row := byNo[r.no()]
		r.order.Seq = row.Seq
		r.begun(row.Call, row.InDoubtSince, row.At)
	}
	dropCalls(lost...)
	e.missed(lost)
	return runs
}

func (e *core) callsBeginParams(key beginKey, runs []*run) db.CallsBeginParams {
	p := db.CallsBeginParams{
		OrderNos: numbersOf(runs), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Step: string(key.step), Route: key.route, Operation: string(key.operation), CallSeconds: key.call.Seconds(),
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

// makeCall makes one call, with no transaction open and no lock held. It ends by its own timeout, not when the client
// that submitted the order disconnects.
func (e *remote) makeCall(r *run) *run {
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
		e.answered(r, time.Since(made))
	}
	r.next = toResult
	return r
}

func (e *core) answered(r *run, took time.Duration) {
	c := r.call
	err := failureOf(c.result)
	failed := errors.Is(err, errProviderFailing)
	if failed {
		c.pool.noteFailure(c.result)
	}
	c.report(err)
	switch {
	case failed: // after the report, which may begin an outage
		c.pool.outage.note(r.no())
	case err == nil && c.pool.breaker.State() == gobreaker.StateClosed:
		if _, done := c.result.(provider.Done); (done || c.kind() != lookup) && c.pool.outage.works(c.pool.e.now()) {
			e.reportNow.nudge()
		}
	}
	e.noteCall(&answeredCall{r.orderID, r.input.HTTPRequestID, c.step, c.kind(), c.number, c.fence, c.result, took})
}

// identify reads our identity towards providers, once. It never changes.
func (e *remote) identify(ctx context.Context) (*identity, error) {
	if known := e.identity.Load(); known != nil {
		return known, nil
	}
	row, err := pg.Repeat(ctx, e.ctx, e.query.InstallationSecret)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	e.identity.Store(&identity{id: row.ID, secret: row.CallbackSecret})
	return e.identity.Load(), nil
}

// readIdentity reads the identity at the start, so that forged tokens never cost a read.
func (e *remote) readIdentity() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	if _, err := e.identify(ctx); err != nil {
		e.log.Warn("read installation", "error", err)
	}
}

// callOf is the request of a run's call.
func (e *remote) callOf(ctx context.Context, r *run) (*provider.Call, error) {
	o, c := &r.order, r.call
	request, err := e.requestFor(ctx, o, c.step, c.generation)
	if err != nil {
		return nil, err
	}
	request.Number = c.number
	if c.operation == provider.Do && c.step == fsm.Charge {
		request.CaptureLater = c.pool.cfg.Capture == policy.CaptureLater
	}
	if c.operation == provider.Do && c.step != fsm.Charge {
		if err := e.addCharge(ctx, request, o); err != nil {
			return nil, err
		}
	}
	switch {
	case c.operation == provider.Undo:
		request.Reference = c.undoReference
		return request, nil
	case c.step == fsm.Reserve:
		request.Reference = or(o.ReserveReference)
	default:
		request.Reference = or(o.ChargeReference)
	}
	if request.Reference == "" && r.preflight != nil && c.pool.cfg.Executor == policy.Stripe { // other executors need none
		request.Reference = r.preflight.own.reference
	}
	return request, nil
}

// addCharge adds what a later step may want to know about the charge of a provider. Stripe's has no key of ours. An
// order that was taken over does not have its effects, and every call with a key must have the same body, so they are
// read.
func (e *remote) addCharge(ctx context.Context, request *provider.Call, o *orders.Order) error {
	p, known := e.policies.byVersion(o.Policy)
	if !known || !stepFor(p, o, fsm.Charge).Executor.Remote() {
		return nil
	}
	if stepFor(p, o, fsm.Charge).Executor != policy.Stripe {
		request.ChargeKey = request.KeyOfCharge()
	}
	if o.ChargedAt == nil {
		if err := e.readCharge(ctx, o); err != nil {
			return err
		}
	}
	request.ChargeReference = or(o.ChargeReference)
	return nil
}

// readCharge is a function of its own because thousands of calls wait, and the order would be on the stack of each.
func (e *remote) readCharge(ctx context.Context, o *orders.Order) error {
	read, err := e.Orders.Get(ctx, o.OrderID)
	if err == nil {
		o.ChargedAt, o.ChargeReference = read.ChargedAt, read.ChargeReference
	}
	return err
}

// requestFor is what all requests about a step of one generation of an order have in common.
func (e *remote) requestFor(ctx context.Context, o *orders.Order, of fsm.Step, generation int32) (*provider.Call, error) {
	who, err := e.identify(ctx)
	if err != nil {
		return nil, err
	}
	paymentMethod, err := e.paymentMethodOf(ctx, o, generation)
	if err != nil {
		return nil, err
	}
	tokens := who.tokens(newTarget(o.OrderNo, o.OrderID, generation, of))
	return &provider.Call{
		Installation: who.id, OrderID: o.OrderID, Step: of, Generation: generation,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Lines: o.Lines, Metadata: o.Metadata,
		CustomerID: or(o.CustomerID), PaymentMethod: paymentMethod, Fence: o.Fence, Clock: e.now,
		CallbackURL: e.cfg.PublicURL + "/api/callbacks/" + tokens[slices.Index(fsm.Steps(), of)], Tokens: tokens,
	}, nil
}

// paymentMethodOf is the payment method of a generation of an order. A retry may have replaced it since, and providers
// compare requests that share a key.
func (e *core) paymentMethodOf(ctx context.Context, o *orders.Order, generation int32) (string, error) {
	if generation >= o.Generation {
		return or(o.PaymentMethod), nil
	}
	return e.storedPaymentMethod(ctx, o.OrderNo, generation)
}

func (e *core) storedPaymentMethod(ctx context.Context, orderNo int64, generation int32) (string, error) {
	was, err := orders.Read(ctx, e.Orders, e.query.PaymentMethodOf, db.PaymentMethodOfParams{OrderNo: orderNo, Generation: generation})
	if err != nil {
		return "", orders.Unavailable("read payment method", err)
	}
	return was, nil
}

// keyOf reads the earlier calls with one key, for a waiting caller or a late undo.
func (e *core) keyOf(ctx context.Context, orderNo int64, key sentKey, operation provider.Operation) (*preflight, error) {
	found, err := preflights(orders.Read(ctx, e.Orders, e.query.CallsPreflight, db.CallsPreflightParams{OrderNos: []int64{orderNo}, Generations: []int32{key.generation},
		Steps: []string{string(key.step)}, Operations: []string{string(operation)}}))
	if err != nil {
		return nil, orders.Unavailable("read what was sent before", err)
	}
	return found[orderNo], nil
}

// unsafeToRepeat reports whether the provider may have forgotten the key of the next call and has no look-up. An undo is
// never looked up, but may use a reference.
func (e *remote) unsafeToRepeat(ctx context.Context, o *orders.Order, version *int32) (bool, error) {
	p, known := e.policies.byVersion(version)
	if !known || p == nil || o.Status.Step() == "" || !stepFor(p, o, o.Status.Step()).Executor.Remote() {
		return false, nil
	}
	pool := e.callPool(*version, p, o.Status.Step(), or(o.Route))
	if o.Status.Undoing() {
		known, err := e.keyOf(ctx, o.OrderNo, sentKey{step: pool.step, generation: o.Generation}, provider.Undo)
		return err == nil && known.own.undoKeyExpired(pool.cfg, o, o.InDoubtSince, e.now()), err
	}
	_, looks := pool.exec.(provider.Looker)
	return !looks && pool.stepKeyExpired(o, e.now()), nil
}

// hasKeysToVoid reports whether keys of earlier generations must be voided before the order is charged. Only a remote
// charge does that.
func (e *remote) hasKeysToVoid(ctx context.Context, o *orders.Order) (bool, error) {
	generation := o.Generation
	if o.Status == fsm.Failed {
		generation++ // of the restart
	} else if generation == 0 || o.Status.Undoing() {
		return false, nil
	}
	known, err := e.keyOf(ctx, o.OrderNo, sentKey{step: fsm.Charge, generation: generation}, provider.Do)
	return err == nil && len(known.voids) > 0, err
}

// answeredCall is a call to a provider that has ended.
type answeredCall struct {
	orderID, requestID string // requestID: of the HTTP request that led to the call, if known
	step               fsm.Step
	operation          provider.Operation
	number             int32
	fence              int64
	result             provider.Result
	took               time.Duration
}

// wasMade reports whether a call reached the network.
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
func (e *core) noteCall(c *answeredCall) {
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
