package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/provider"
)

// Request is a verb for one order.
type Request struct {
	OrderID   string
	Verb      orders.Verb
	Actor     string // the authenticated principal, for the history. Empty: orders.ActorAnonymous
	Reason    string
	RequestID string // repeating a request with the same id has no further effect
	IfSeq     *int32 // apply only if the order is still at this seq
	DryRun    bool   // only return the order as the verb would leave it
	Async     bool   // return as soon as the verb is stored

	OnBehalfOf string // as stated by the actor, for the history

	HTTPRequestID string // X-Request-Id of the request; only for the log

	ActivePolicy    bool             // Retry: continue under the active policy instead of the pinned one
	Generation      *int32           // Retry: apply only if the order is still at this generation
	PaymentMethod   string           // Retry: a new payment method for a failed order; empty: as before
	Settle          *Settled         // StepResult
	ChargeOperation *ChargeOperation // Refund, Capture and Void
	Dispute         *Dispute         // with the verb of Dispute.Verb

	known known // in a dry run of many orders
}

// Settled is the result of a step, of a charge operation, or of the undo of a late effect, as recorded by a person.
// Without Generation and ChargeOperation, it is the result of the step that the order is at.
type Settled struct {
	Step            fsm.Step
	Generation      *int32 // the generation of the late effect
	ChargeOperation *int32 // its number
	Kind            string // of the charge operation
	Outcome         string // SettledDone, SettledRefused or SettledNotDone
	Reference       string // SettledDone: the provider's reference
	Code, Detail    string // otherwise: the reason
}

// The outcomes that a person can record.
const (
	SettledDone    = "done"
	SettledRefused = "refused"  // not done, and never will be
	SettledNotDone = "not_done" // not done, and can be retried
)

// verbTries bounds how often a verb is judged again because the order changed after it was read. An order passes through
// fewer states.
const verbTries = 12

// Do applies a verb and, like Process, waits for the result; with Async it returns the order as stored. A repeated
// request waits together with the first one, and so does a cancellation of an order that is being canceled. Errors:
// orders.ErrNotFound, *orders.NotApplicable, orders.ErrPrecondition, orders.ErrKeyReused, orders.ErrStopping,
// orders.ErrUnavailable.
func (e *Engine) Do(ctx context.Context, q Request) (orders.Order, error) {
	if e.stopping.Load() {
		return orders.Order{}, orders.ErrStopping
	}
	q.Actor = cmp.Or(q.Actor, orders.ActorAnonymous)
	for range verbTries {
		order, done, err := e.try(ctx, &q)
		switch {
		case err != nil:
			return orders.Order{}, err
		case done && q.DryRun:
			return order, nil
		case done && q.aboutCharge():
			return e.followOperation(ctx, &q)
		case done:
			return e.follow(ctx, &order, q.Async)
		}
	}
	return orders.Order{}, orders.ErrUnavailable
}

// try reads the order, judges the verb and writes it. done is false if the order changed between the read and the write.
func (e *Engine) try(ctx context.Context, q *Request) (order orders.Order, done bool, err error) {
	order, read := q.known.orders[q.OrderID]
	if !read {
		if order, err = e.Orders.GetDurable(ctx, q.OrderID); err != nil {
			return order, false, err
		}
	}
	if err := e.withhold(ctx, q, &order); err != nil {
		return order, false, err
	}
	if seen, err := e.seen(ctx, &order, q); seen || err != nil {
		return order, seen, err
	}
	if q.IfSeq != nil && *q.IfSeq != order.Seq {
		return order, false, orders.ErrPrecondition
	}
	c, err := e.judge(ctx, &order, q)
	if !read && e.overtaken(ctx, &order, err) {
		return order, false, nil
	}
	switch {
	case err != nil:
		return order, false, err
	case q.DryRun:
		return e.preview(order, q, c), true, nil
	case c == nil:
		return order, true, nil
	}
	done, err = detached(ctx, &e.core, func(ctx context.Context) (bool, error) { return e.write(ctx, &order, q, c) })
	return order, done, err
}

// withhold masks secrets in a result that a person records, as in the answers of executors.
func (e *Engine) withhold(ctx context.Context, q *Request, o *orders.Order) error {
	if q.Settle == nil {
		return nil
	}
	who, err := e.identify(ctx)
	if err != nil {
		return orders.Unavailable("read installation", err)
	}
	said := *q.Settle
	tokens := who.tokens(newTarget(o.OrderNo, o.OrderID, o.Generation, fsm.Charge))
	secrets := provider.NewSecrets(append(tokens, or(o.PaymentMethod))...)
	said.Reference, said.Code, said.Detail = secrets.Name(said.Reference), secrets.Mask(said.Code), secrets.Mask(said.Detail)
	q.Settle = &said
	return nil
}

// overtaken reports whether the order changed before it was refused. The refusal may then mix facts from before and after
// the change.
func (e *Engine) overtaken(ctx context.Context, o *orders.Order, refusal error) bool {
	if _, refused := errors.AsType[*orders.NotApplicable](refusal); !refused {
		return false
	}
	now, err := e.Orders.Get(ctx, o.OrderID)
	return err == nil && now.Seq != o.Seq
}

// seen reports whether this request was applied before. Errors: orders.ErrKeyReused if its id belongs to a different
// request, orders.ErrUnavailable.
func (e *Engine) seen(ctx context.Context, o *orders.Order, q *Request) (bool, error) {
	if q.RequestID == "" {
		return q.Dispute.recorded(o)
	}
	applied, err := q.known.requests, error(nil)
	if applied == nil {
		applied, err = e.applied(ctx, q, o.OrderNo)
	}
	was, again := applied[o.OrderNo]
	switch {
	case err != nil:
		return false, err
	case !again:
		return q.Dispute.recorded(o)
	case !bytes.Equal(was, q.fingerprint()):
		return false, reused(was, q.fingerprint(), q.fingerprintNames())
	}
	return true, nil
}

// fingerprint distinguishes the request from others with the same id. A request without an id has none.
func (q *Request) fingerprint() []byte {
	if q.RequestID == "" {
		return nil
	}
	parts := []string{string(q.Verb), q.OnBehalfOf, q.Reason, strconv.FormatBool(q.ActivePolicy), digits(q.Generation), q.PaymentMethod}
	if s := q.Settle; s != nil {
		parts = append(parts, string(s.Step), digits(s.Generation), digits(s.ChargeOperation), s.Outcome, s.Reference, s.Code, s.Detail)
	}
	if d := q.Dispute; d != nil {
		parts = append(parts, d.Reference, d.State, d.Amount.Trim(0).String())
	}
	if r := q.ChargeOperation; r != nil {
		parts = append(parts, r.parts()...)
		if q.Verb == orders.Capture {
			parts = append(parts, strconv.FormatBool(r.Final))
		}
	}
	return fingerprint(parts...)
}

const verbPart = "verb"

// fingerprintNames are the JSON members that fingerprint covers, in its order.
func (q *Request) fingerprintNames() []string {
	names := []string{verbPart, "onBehalfOf", "reason", "policy", "generation", "paymentMethod"}
	if q.Settle != nil {
		names = append(names, "step", "generation", "refund", "outcome", "reference", "code", "detail")
	}
	if q.Dispute != nil {
		names = append(names, "reference", "state", "amount")
	}
	if q.ChargeOperation != nil {
		names = append(names, "amount", "restock", "lines")
		if q.Verb == orders.Capture {
			names = append(names, "final")
		}
	}
	return names
}

func digits(n *int32) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(int(*n))
}

// follow waits for the result of a verb that was written.
func (e *Engine) follow(ctx context.Context, o *orders.Order, async bool) (orders.Order, error) {
	order, err := e.readFor(ctx, o.OrderID)
	if err != nil || async || order.Status.Final() || order.Hold != nil && !resumesWithin(ctx, &order, e.now()) {
		return order, err
	}
	if r := e.rejoin(&order); r != nil {
		awaited, err := e.await(ctx, r, nil)
		return or(awaited), err
	}
	return order, nil
}

// judge returns what a verb changes in the order, or *orders.NotApplicable. It returns nil if the verb is already in
// effect and there is nothing to write.
func (e *Engine) judge(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	switch {
	case q.aboutLateUndo():
		return e.judgeLateUndo(ctx, o, q)
	case q.aboutCharge():
		return e.judgeChargeOperation(o, q)
	case q.Dispute != nil:
		return q.judgeDispute(o)
	}
	if q.Generation != nil && *q.Generation != o.Generation {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedGeneration, Order: *o}
	}
	// The active policy may have a look-up that the pinned one lacks.
	canAsk := q.Verb == orders.Retry && q.ActivePolicy && orders.HeldFor(o, fsm.HoldAttention) && orders.HeldAsUnknown(o)
	if !q.Verb.Applies(o) && !canAsk {
		return e.joins(o, q)
	}
	c := changeOf(o, q)
	if q.ActivePolicy && q.Verb == orders.Retry {
		if err := e.switchPolicy(ctx, o, c); err != nil {
			return nil, err
		}
	}
	if err := e.reroute(o, q, c); err != nil {
		return nil, err
	}
	code, err := e.refusal(ctx, o, q, c)
	switch {
	case err != nil:
		return nil, err
	case code != "":
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return c, nil
}

// isDistinct reports whether the request can be distinguished from an earlier one, so that sending it twice restarts a
// failed order only once.
func (q *Request) isDistinct() bool {
	return q.RequestID != "" || q.IfSeq != nil || q.Generation != nil
}

// aboutLateUndo reports whether the request settles the undo of a late effect, and not the step that the order is at.
func (q *Request) aboutLateUndo() bool { return q.Settle != nil && q.Settle.Generation != nil }

// judgeLateUndo judges a request that closes an open late undo. The order may have ended, and does not change.
func (e *Engine) judgeLateUndo(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	if q.Settle.Outcome != SettledDone {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedState, Order: *o}
	}
	open, err := orders.Read(ctx, e.Orders, e.query.LateUndoIsOpen, db.LateUndoIsOpenParams{
		OrderNo: o.OrderNo, Generation: *q.Settle.Generation, Step: string(q.Settle.Step)})
	switch {
	case err != nil:
		return nil, orders.Unavailable("read late undos", err)
	case !open:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedNoLateUndo, Order: *o}
	}
	return sameAs(o), nil
}

// joins accepts a cancellation of an order that is being canceled. A cancellation with an id is recorded, so that a
// repeat is recognized.
func (e *Engine) joins(o *orders.Order, q *Request) (*change, error) {
	underway := q.Verb == orders.Cancel && orders.Canceling(o)
	switch {
	case !underway:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: q.Verb.RefusalFor(o), Order: *o}
	case q.RequestID == "":
		return nil, nil
	}
	return sameAs(o), nil
}

// refusal returns the code of an obstacle that the row of the order does not show.
func (e *Engine) refusal(ctx context.Context, o *orders.Order, q *Request, c *change) (code string, err error) {
	if q.Verb == orders.Approve {
		own, err := e.wantsAnother(o, q)
		if own || err != nil {
			return orders.RefusedOwnOrder, err
		}
	}
	redrives := o.Status == fsm.Failed
	sends := q.Verb == orders.Retry && !redrives || q.Verb == orders.Resume && orders.HeldFor(o, fsm.HoldPaused)
	unsafe := false
	if sends {
		if unsafe, err = e.unsafeToRepeat(ctx, o, c.policy); err != nil {
			return "", err
		}
	}
	if q.Verb == orders.StepResult && o.Status.Step() != q.Settle.Step {
		return orders.RefusedOtherStep, nil
	}
	if q.PaymentMethod != "" && !redrives {
		return orders.RefusedPaymentMethod, nil
	}
	if !redrives && !unsafe && q.Verb != orders.StepResult {
		return "", nil
	}
	known := q.known.facts
	if known == nil {
		known, err = e.facts(ctx, *o)
	}
	facts := known[o.OrderNo]
	switch {
	case err != nil:
		return "", err
	case redrives && facts.Retried && !q.isDistinct():
		return orders.RefusedRetried, nil
	case redrives && facts.Standing:
		return orders.RefusedStillUndoing, nil
	case unsafe && !facts.Answered:
		return orders.RefusedUnknown, nil
	case q.Verb == orders.StepResult && o.Generation > 0 && !o.Status.Undoing() && !facts.Called:
		return orders.RefusedNotCalled, nil // an effect that a person has seen is of an earlier generation
	case q.Verb == orders.StepResult && facts.Answered:
		return orders.RefusedAnswered, nil
	}
	return "", nil
}

// change is the new state of an order's row, written as a whole.
type change struct {
	hold, holdReason, stopRequested, failureCode *string

	policy   *int32
	route    *string
	approves bool
	renews   bool // starts a new window of retries
	next     string
}

// Who drives an order after a verb.
const (
	nextSame    = "same"    // its driver, if it has one
	nextClaimed = "claimed" // this process
	nextDue     = "due"     // another process: this one can't run its policy
	nextRests   = "rests"   // no process, until a person acts
)

// sameAs is the change of a verb that only adds to the history.
func sameAs(o *orders.Order) *change {
	return &change{hold: o.Hold, holdReason: o.HoldReason, stopRequested: o.StopRequested, failureCode: o.FailureCode,
		policy: o.Policy, route: o.Route, next: nextSame}
}

// changeOf is the change that a verb makes to an order it applies to.
func changeOf(row *orders.Order, q *Request) *change {
	c := sameAs(row)
	switch q.Verb {
	case orders.Cancel, orders.Reject:
		if row.StopRequested == nil || orders.Pausing(row) {
			c.stopRequested = new(string(orders.Cancel))
		}
		if q.Verb == orders.Reject {
			c.failureCode = new("rejected")
		}
		if row.Hold != nil {
			c.renews = true
			c.resume()
		}
	case orders.Pause:
		if row.Hold == nil {
			c.stopRequested = new(string(orders.Pause)) // its driver puts it on hold before the next step
		} else {
			c.hold, c.holdReason, c.next = new(fsm.HoldPaused), nil, nextRests
		}
	case orders.Resume:
		c.unpause()
		if orders.HeldFor(row, fsm.HoldPaused) {
			c.resume()
		}
	case orders.Retry:
		if row.Status != fsm.Completed { // else OrderVerb has its charge operations tried
			c.unpause()
			c.renews = true
			c.resume()
		}
	case orders.Approve:
		c.unpause()
		c.approves = true
		c.resume()
	case orders.StepResult:
		if !orders.HeldFor(row, fsm.HoldPaused) { // else the answer waits for the end of the pause
			c.resume()
		}
	case orders.Refund, orders.Capture, orders.Void: // see judgeChargeOperation
	}
	return c
}

func (c *change) unpause() {
	if c.stopRequested != nil && *c.stopRequested == string(orders.Pause) {
		c.stopRequested = nil
	}
}

// resume ends the hold. write decides which process drives the order.
func (c *change) resume() {
	c.hold, c.holdReason, c.next = nil, nil, nextClaimed
}

// write sends the statement of a verb, and drives the order on if needed. It returns false if the order changed after it
// was read and nothing was written.
func (e *Engine) write(ctx context.Context, o *orders.Order, q *Request, c *change) (bool, error) {
	if _, runs := e.policies.byVersion(c.policy); c.next == nextClaimed && !runs {
		c.next = nextDue
	}
	written, err := e.askUntilKnown(ctx, o, q, c)
	switch fault := pg.FaultOf(err); {
	case fault == pg.None && len(written) == 0, fault == pg.Again:
		return false, nil
	case fault != pg.None:
		return false, orders.Unavailable(string(q.Verb)+" order", err)
	}
	if hold := written[0].Hold; hold != nil && or(o.Hold) != *hold {
		e.metrics.countHeld(*hold, 1)
	}
	if written[0].Status == fsm.Completed {
		e.chargeOperations.nudge()
	} else if q.Dispute == nil && written[0].Hold == nil {
		e.goOn(q.HTTPRequestID, written)
	}
	return true, nil
}

// preview is the order right after the verb, for a dry run. It keeps the seq at which it was judged.
func (e *Engine) preview(o orders.Order, q *Request, c *change) orders.Order {
	switch {
	case c == nil || q.aboutLateUndo() || q.Dispute != nil: // the order does not change
	case q.aboutCharge():
		operations := e.operationsAfter(&o, q)
		o.ChargeOperations = new(int32(len(operations)))
		o.ChargeOperationList, _ = json.Marshal(operations) // our own type
	case o.Status == fsm.Failed:
		return startedAnew(o, c)
	default:
		o.Hold, o.HoldReason, o.StopRequested, o.FailureCode, o.Policy = c.hold, c.holdReason, c.stopRequested, c.failureCode, c.policy
	}
	return o
}

// startedAnew is a failed order after its restart. It keeps the fields it was submitted with.
func startedAnew(o orders.Order, c *change) orders.Order {
	return orders.Order{
		OrderNo: o.OrderNo, OrderID: o.OrderID, CreatedAt: o.CreatedAt, SubmittedBy: o.SubmittedBy, Seq: o.Seq,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Lines: o.Lines, Metadata: o.Metadata,
		CustomerID: o.CustomerID, StartAt: o.StartAt, CompleteBy: o.CompleteBy, Calls: o.Calls,
		Disputes: o.Disputes, DisputeList: o.DisputeList,
		Status: fsm.Pending, Generation: o.Generation + 1, Policy: c.policy,
	}
}

// settledCode is the failure code of a step that a person settled without giving one.
const settledCode = "step_result"

// askUntilKnown sends the statement until its outcome is known. The statement compares seq, so at most one try takes
// effect. If the last try finds a higher seq, an earlier one may have raised it. After the first try the caller may
// leave, but the outcome still has to be found out.
func (e *Engine) askUntilKnown(ctx context.Context, o *orders.Order, q *Request, c *change) ([]orders.Order, error) {
	written, err := e.ask(ctx, o, q, c)
	if pg.FaultOf(err) != pg.Unknown {
		return written, err
	}
	for try := 0; !pg.SchemaMismatch(err) && e.ctx.Err() == nil; try++ {
		if fault := pg.FaultOf(err); fault != pg.Unknown && fault != pg.Again {
			break
		}
		e.unknown(string(q.Verb)+" order", err)
		e.backOff(try)
		if written, err = e.ask(e.ctx, o, q, c); err == nil && len(written) == 0 {
			return e.asked(e.ctx, o, q)
		}
	}
	return written, err
}

func (e *Engine) ask(ctx context.Context, o *orders.Order, q *Request, c *change) ([]orders.Order, error) {
	switch {
	case q.aboutLateUndo():
		rows, err := e.query.LateUndoSettle(ctx, db.LateUndoSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Generation: *q.Settle.Generation, Step: string(q.Settle.Step),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.Dispute != nil:
		rows, err := e.query.DisputeRecord(ctx, db.DisputeRecordParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Reference: q.Dispute.Reference, State: q.Dispute.State, Amount: q.Dispute.Amount, At: q.Dispute.At,
			Charge: db.Optional(q.Dispute.Charge),
			Verb:   string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.ChargeOperation != nil:
		wants := q.demand(o)
		rows, err := e.query.ChargeOperationAsk(ctx, db.ChargeOperationAskParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Amount: wants.amount, Voided: db.Optional(wants.voided), Restock: db.Optional(wants.restock),
			Lines: orders.FormatOperationLines(wants.lines),
			Verb:  string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.aboutCharge():
		rows, err := e.query.ChargeOperationSettle(ctx, db.ChargeOperationSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Number: *q.Settle.ChargeOperation, Outcome: q.Settle.Outcome,
			Code: cmp.Or(q.Settle.Code, settledCode), Detail: q.Settle.Detail, Ref: q.Settle.Reference,
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.Verb == orders.StepResult:
		code := q.Settle.Code
		if q.Settle.Outcome != SettledDone {
			code = cmp.Or(code, settledCode)
		}
		rows, err := e.query.OrderSettle(ctx, db.OrderSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Hold: c.hold, Next: c.next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
			Step: string(q.Settle.Step), Operation: string(operationIn(o.Status)),
			Outcome: q.Settle.Outcome, Code: code, Detail: q.Settle.Detail, Ref: q.Settle.Reference,
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case o.Status == fsm.Failed:
		return e.redrive(ctx, db.OrderRedriveParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Policy: c.policy, Route: c.route, Claims: c.next == nextClaimed, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint(),
			PaymentMethod: db.Optional(q.PaymentMethod), ReplacedPaymentMethod: replacedBy(o, q)})
	}
	rows, err := e.query.OrderVerb(ctx, db.OrderVerbParams{
		OrderNo: o.OrderNo, Seq: o.Seq, Hold: c.hold, HoldReason: c.holdReason, StopRequested: c.stopRequested, FailureCode: c.failureCode,
		Policy: c.policy, Route: c.route, Approves: c.approves, Renews: c.renews, Next: c.next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
		Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
		RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
	return writtenOrders(rows), err
}

// replacedBy is the payment method that the request replaces, possibly empty; nil if it replaces none.
func replacedBy(o *orders.Order, q *Request) *string {
	if q.PaymentMethod == "" || q.PaymentMethod == or(o.PaymentMethod) {
		return nil
	}
	return new(or(o.PaymentMethod))
}

// asked finds out whether a statement whose reply was lost was executed, by the row it would have added to the history.
// It returns no order if a different row took that place.
func (e *Engine) asked(ctx context.Context, o *orders.Order, q *Request) ([]orders.Order, error) {
	rows, err := untilKnown(&e.core, "read history", func() ([]db.Transition, error) {
		return e.query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: o.OrderNo, After: o.Seq, Before: math.MaxInt32, Most: 1, Durable: true})
	})
	if err != nil || len(rows) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable) // the engine is stopping
	}
	t := &rows[0]
	if or(t.Verb) != string(q.Verb) || or(t.Actor) != q.Actor || or(t.OnBehalfOf) != q.OnBehalfOf || or(t.Reason) != q.Reason ||
		or(t.RequestID) != q.RequestID || !bytes.Equal(t.Fingerprint, q.fingerprint()) || (t.PaymentMethod == nil) != (replacedBy(o, q) == nil) {
		return nil, nil
	}
	found, err := e.readUntilKnown([]int64{o.OrderNo}, true)
	if err != nil || len(found) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable)
	}
	return found[:1], nil
}
