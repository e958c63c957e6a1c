package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"

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
	Actor     string // the principal that asks; kept in the history. Empty: orders.ActorAnonymous
	Reason    string
	RequestID string // a request that comes again with the same id is answered, not done again
	IfSeq     *int32 // only if the order is still at this seq
	DryRun    bool   // say whether it applies and how it would leave the order, and do nothing
	Async     bool   // answer as soon as it is stored

	OnBehalfOf string // for whom the actor says that it asks; kept beside it

	HTTPRequestID string // X-Request-Id of the request, for the log; stored nowhere

	ActivePolicy  bool     // Retry: go on under the active policy, not the one the order started with
	Generation    *int32   // Retry: only if the order is still at this generation
	PaymentMethod string   // Retry: what a failed order is charged with from now on; empty: as before
	Settle        *Settled // StepResult: what became of the step
	Refund        *Refund  // Refund: what is given back
}

// Settled is what a person says became of a step, or of the undo of a late effect.
type Settled struct {
	Step         fsm.Step
	Generation   *int32 // of the open undo of a late effect that this is about; nil: the step the order is at
	Refund       *int32 // the number of the refund that this is about; nil: the step the order is at
	Outcome      string // SettledDone, SettledRefused or SettledNotDone
	Reference    string // of what is done: the provider's name for it
	Code, Detail string // of what is not
}

// What can have become of a step.
const (
	SettledDone    = "done"
	SettledRefused = "refused"  // it is not done and never will be
	SettledNotDone = "not_done" // it is not done and may be tried again
)

// verbTries bounds how often a verb is judged anew because the order has changed
// meanwhile. An order passes through fewer states.
const verbTries = 12

// Do does what a verb asks and waits, like Process, for what comes of it; asynchronously it
// answers with the order as it was stored. A request that was seen before waits with the
// first, and so does a cancellation of an order that is being canceled. Errors:
// orders.ErrNotFound, *orders.NotApplicable, orders.ErrPrecondition, orders.ErrKeyReused, orders.ErrStopping, orders.ErrUnavailable.
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
		case done && q.aboutRefund():
			return e.followRefund(ctx, &q)
		case done:
			return e.follow(ctx, &order, q.Async)
		}
	}
	return orders.Order{}, orders.ErrUnavailable
}

// try judges the order as it is and writes what the verb asks for. done is false when the
// order has changed between the two.
func (e *Engine) try(ctx context.Context, q *Request) (order orders.Order, done bool, err error) {
	order, err = e.Orders.GetDurable(ctx, q.OrderID)
	if err != nil {
		return order, false, err
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
	if e.overtaken(ctx, &order, err) {
		return order, false, nil
	}
	switch {
	case err != nil:
		return order, false, err
	case q.DryRun:
		return e.would(order, q, c), true, nil
	case c == nil:
		return order, true, nil
	}
	done, err = detached(ctx, &e.core, func(ctx context.Context) (bool, error) { return e.write(ctx, &order, q, c) })
	return order, done, err
}

// withhold masks what a person says became of a step, as an executor's answer is masked.
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
	withheld := provider.WithheldOf(append(tokens, or(o.PaymentMethod))...)
	said.Reference, said.Code, said.Detail = withheld.Name(said.Reference), withheld.Hide(said.Code), withheld.Hide(said.Detail)
	q.Settle = &said
	return nil
}

// overtaken reports whether a refusal is about an order that has changed since it was read:
// what else was read for it may be of the order as it is now.
func (e *Engine) overtaken(ctx context.Context, o *orders.Order, refusal error) bool {
	if _, refused := errors.AsType[*orders.NotApplicable](refusal); !refused {
		return false
	}
	now, err := e.Orders.Get(ctx, o.OrderID)
	return err == nil && now.Seq != o.Seq
}

// seen reports whether this request was done to the order before. Errors: orders.ErrKeyReused if its id was used for
// another one, orders.ErrUnavailable.
func (e *Engine) seen(ctx context.Context, o *orders.Order, q *Request) (bool, error) {
	if q.RequestID == "" {
		return false, nil
	}
	was, err := orders.Read(ctx, e.Orders, e.query.TransitionByRequest, db.TransitionByRequestParams{
		OrderNo: o.OrderNo, RequestID: q.RequestID, Actor: q.Actor, Verb: string(q.Verb)})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, orders.Unavailable("read history", err)
	case !bytes.Equal(was, q.fingerprint()):
		return false, reused(was, q.fingerprint(), q.fingerprintNames())
	}
	return true, nil
}

// fingerprint tells the request from others with the same id; nil for one without.
func (q *Request) fingerprint() []byte {
	if q.RequestID == "" {
		return nil
	}
	parts := []string{string(q.Verb), q.OnBehalfOf, q.Reason, strconv.FormatBool(q.ActivePolicy), digits(q.Generation), q.PaymentMethod}
	if s := q.Settle; s != nil {
		parts = append(parts, string(s.Step), digits(s.Generation), digits(s.Refund), s.Outcome, s.Reference, s.Code, s.Detail)
	}
	if r := q.Refund; r != nil {
		amount := "" // all that is left
		if r.Amount != nil {
			amount = r.Amount.Trim(0).String()
		}
		parts = append(parts, amount, strconv.Itoa(int(r.Restock)))
	}
	return fingerprint(parts...)
}

const verbPart = "verb"

// fingerprintNames are the members whose values fingerprint takes, in its order.
func (q *Request) fingerprintNames() []string {
	names := []string{verbPart, "onBehalfOf", "reason", "policy", "generation", "paymentMethod"}
	if q.Settle != nil {
		names = append(names, "step", "generation", "refund", "outcome", "reference", "code", "detail")
	}
	if q.Refund != nil {
		names = append(names, "amount", "restock")
	}
	return names
}

func digits(n *int32) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(int(*n))
}

// follow answers with what comes of a verb that is written.
func (e *Engine) follow(ctx context.Context, o *orders.Order, async bool) (orders.Order, error) {
	order, err := e.readFor(ctx, o.OrderID)
	if err != nil || async || order.Status.Final() || order.Hold != nil && !resumesWithin(ctx, &order, e.now()) {
		return order, err
	}
	if r := e.rejoin(&order); r != nil {
		return e.await(ctx, r, nil)
	}
	return order, nil
}

// judge says what a verb changes in the order, or why it does not apply: *orders.NotApplicable.
// Nil without an error: there is nothing to write, because the same was asked for before.
func (e *Engine) judge(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	switch {
	case q.aboutLateUndo():
		return e.judgeLateUndo(ctx, o, q)
	case q.aboutRefund():
		return e.judgeRefund(o, q)
	}
	if q.Generation != nil && *q.Generation != o.Generation {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedGeneration, Order: *o}
	}
	// Under the active policy the provider may be asked what became of the key.
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
	code, err := e.refusal(ctx, o, q, c)
	switch {
	case err != nil:
		return nil, err
	case code != "":
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return c, nil
}

// saysWhich reports whether the request tells itself from an earlier one: sent twice, it restarts a failed order once.
func (q *Request) saysWhich() bool { return q.RequestID != "" || q.IfSeq != nil || q.Generation != nil }

// aboutLateUndo: not the step that the order is at is settled, but the undo of an effect that
// was reported too late.
func (q *Request) aboutLateUndo() bool { return q.Settle != nil && q.Settle.Generation != nil }

// judgeLateUndo lets a person close an open late undo, of an order that may have ended. The
// order stays as it is.
func (e *Engine) judgeLateUndo(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	if q.Settle.Outcome != SettledDone {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedState, Order: *o}
	}
	open, err := orders.Read(ctx, e.Orders, e.query.LateUndoIsOpen, db.LateUndoIsOpenParams{OrderNo: o.OrderNo, Generation: *q.Settle.Generation, Step: string(q.Settle.Step)})
	switch {
	case err != nil:
		return nil, orders.Unavailable("read late undos", err)
	case !open:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedNoLateUndo, Order: *o}
	}
	return sameAs(o), nil
}

// joins lets a cancellation wait with the one under way. If it has an id it is written
// down, so that it is known when it comes again.
func (e *Engine) joins(o *orders.Order, q *Request) (*change, error) {
	underway := q.Verb == orders.Cancel && or(o.StopRequested) == string(orders.Cancel) && !o.Status.Final()
	switch {
	case !underway:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: q.Verb.RefusalFor(o), Order: *o}
	case q.RequestID == "":
		return nil, nil
	}
	return sameAs(o), nil
}

// refusal finds what the row does not say, and stands in the way.
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
	facts, err := orders.Read(ctx, e.Orders, e.query.OrderFacts, db.OrderFactsParams{OrderNo: o.OrderNo, Generation: o.Generation, Step: string(cmp.Or(o.Status.Step(), fsm.Charge)), Operation: string(operationIn(o.Status))})
	switch {
	case err != nil:
		return "", orders.Unavailable("read effects", err)
	case redrives && facts.Retried && !q.saysWhich():
		return orders.RefusedRetried, nil
	case redrives && facts.Standing:
		return orders.RefusedStillUndoing, nil
	case unsafe && !facts.Answered:
		return orders.RefusedUnknown, nil
	case q.Verb == orders.StepResult && o.Generation > 0 && !o.Status.Undoing() && !facts.Called:
		return orders.RefusedNotCalled, nil // who knows of an effect has seen one of an earlier generation
	case q.Verb == orders.StepResult && facts.Answered:
		return orders.RefusedAnswered, nil
	}
	return "", nil
}

// switchPolicy lets an order go on under the active policy, unless a step that was done
// under its own, or may have been, could not be undone then.
func (e *Engine) switchPolicy(ctx context.Context, o *orders.Order, c *change) (err error) {
	version, active := e.policies.active()
	if version != nil && active == nil {
		return orders.ErrUnavailable // not known here, or not yet
	}
	pinned, known := e.policies.byVersion(o.Policy)
	refused := !known || needsPinned(o, pinned, active)
	if !refused && !active.Step(fsm.Charge).Executor.Remote() {
		if refused, err = e.hasKeysToVoid(ctx, o); err != nil {
			return err
		}
	}
	if refused {
		return &orders.NotApplicable{Verb: orders.Retry, Code: orders.RefusedPolicySwitch, Order: *o}
	}
	c.policy = version
	return nil
}

// change is what a verb makes of the row of an order, which is written as a whole.
type change struct {
	hold, holdReason, stopRequested, failureCode *string

	policy   *int32
	approves bool
	renews   bool // the window of retries
	next     string
}

// What becomes of an order after a verb.
const (
	nextSame    = "same"    // its driver, or its hold, goes on
	nextClaimed = "claimed" // this process drives it
	nextDue     = "due"     // another process does: this one can't run its policy
	nextRests   = "rests"   // no process does until a person acts
)

// sameAs changes nothing but the history.
func sameAs(o *orders.Order) *change {
	return &change{hold: o.Hold, holdReason: o.HoldReason, stopRequested: o.StopRequested, failureCode: o.FailureCode,
		policy: o.Policy, next: nextSame}
}

// changeOf is what a verb makes of an order that it applies to.
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
			c.goesOn()
		}
	case orders.Pause:
		if row.Hold == nil {
			c.stopRequested = new(string(orders.Pause)) // its driver holds it before the next step
		} else {
			c.hold, c.holdReason, c.next = new(fsm.HoldPaused), nil, nextRests
		}
	case orders.Resume:
		c.unpause()
		if orders.HeldFor(row, fsm.HoldPaused) {
			c.goesOn()
		}
	case orders.Retry:
		c.unpause()
		c.renews = true
		c.goesOn()
	case orders.Approve:
		c.unpause()
		c.approves = true
		c.goesOn()
	case orders.StepResult:
		if !orders.HeldFor(row, fsm.HoldPaused) { // else the answer waits for the end of the pause
			c.goesOn()
		}
	case orders.Refund: // it has a judge of its own
	}
	return c
}

func (c *change) unpause() {
	if c.stopRequested != nil && *c.stopRequested == string(orders.Pause) {
		c.stopRequested = nil
	}
}

// goesOn takes the order out of its hold. write says who drives it.
func (c *change) goesOn() {
	c.hold, c.holdReason, c.next = nil, nil, nextClaimed
}

// write sends the statement of a verb, and takes up the order if it is to go on. False
// without an error: the order has changed since it was read, and nothing was written.
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
	if q.aboutRefund() {
		e.refunds.nudge()
	} else if written[0].Hold == nil {
		e.goOn(q.HTTPRequestID, written)
	}
	return true, nil
}

// would is the order as a verb would leave it, before anything follows from that. It keeps the seq at which it was judged.
func (e *Engine) would(o orders.Order, q *Request, c *change) orders.Order {
	switch {
	case c == nil || q.aboutLateUndo(): // nothing of the order
	case q.aboutRefund():
		refunds := e.refundsAfter(&o, q)
		o.Refunds = new(int32(len(refunds)))
		o.RefundList, _ = json.Marshal(refunds) // our own type
	case o.Status == fsm.Failed:
		return startedAnew(o, c)
	default:
		o.Hold, o.HoldReason, o.StopRequested, o.FailureCode, o.Policy = c.hold, c.holdReason, c.stopRequested, c.failureCode, c.policy
	}
	return o
}

// startedAnew is a failed order that starts again, with what it has of its beginning.
func startedAnew(o orders.Order, c *change) orders.Order {
	return orders.Order{
		OrderNo: o.OrderNo, OrderID: o.OrderID, CreatedAt: o.CreatedAt, SubmittedBy: o.SubmittedBy, Seq: o.Seq,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: o.CustomerID, StartAt: o.StartAt, CompleteBy: o.CompleteBy, Calls: o.Calls,
		Status: fsm.Pending, Generation: o.Generation + 1, Policy: c.policy,
	}
}

// settledCode is why a step is not done, where the person who said so gave no code.
const settledCode = "step_result"

// askUntilKnown sends the statement until it has a verdict. It compares seq, so of all tries one counts at most; when
// the last one finds another seq, an earlier one may have raised it. After the first try the caller may go: what was sent has to
// be found out.
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
	case q.Verb == orders.Refund:
		rows, err := e.query.RefundAsk(ctx, db.RefundAskParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Amount: q.Refund.amountOf(o), Restock: db.Optional(max(q.Refund.Restock, 0)),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case q.aboutRefund():
		rows, err := e.query.RefundSettle(ctx, db.RefundSettleParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Number: *q.Settle.Refund, Outcome: q.Settle.Outcome,
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
			Step: string(q.Settle.Step), Operation: string(operationIn(o.Status)), Outcome: q.Settle.Outcome, Code: code, Detail: q.Settle.Detail, Ref: q.Settle.Reference,
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
		return writtenOrders(rows), err
	case o.Status == fsm.Failed:
		return e.redrive(ctx, db.OrderRedriveParams{
			OrderNo: o.OrderNo, Seq: o.Seq, Policy: c.policy, Claims: c.next == nextClaimed, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
			Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
			RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint(),
			PaymentMethod: db.Optional(q.PaymentMethod), ReplacedPaymentMethod: replacedBy(o, q)})
	}
	rows, err := e.query.OrderVerb(ctx, db.OrderVerbParams{
		OrderNo: o.OrderNo, Seq: o.Seq, Hold: c.hold, HoldReason: c.holdReason, StopRequested: c.stopRequested, FailureCode: c.failureCode,
		Policy: c.policy, Approves: c.approves, Renews: c.renews, Next: c.next, Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
		Verb: string(q.Verb), Actor: q.Actor, OnBehalfOf: db.Optional(q.OnBehalfOf), Reason: db.Optional(q.Reason),
		RequestID: db.Optional(q.RequestID), Fingerprint: q.fingerprint()})
	return writtenOrders(rows), err
}

// replacedBy is the payment method of the order that a request replaces by another, empty where it has none; nil: it does not.
func replacedBy(o *orders.Order, q *Request) *string {
	if q.PaymentMethod == "" || q.PaymentMethod == or(o.PaymentMethod) {
		return nil
	}
	return new(or(o.PaymentMethod))
}

// asked looks whether a statement whose answer was lost was executed: then the row that it would have written to the
// history is there. No order without an error: another row is there, so it was not.
func (e *Engine) asked(ctx context.Context, o *orders.Order, q *Request) ([]orders.Order, error) {
	rows, err := untilKnown(&e.core, "read history", func() ([]db.Transition, error) {
		return e.query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: o.OrderNo, After: o.Seq, Before: math.MaxInt32, Most: 1, Durable: true})
	})
	if err != nil || len(rows) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable) // the engine stops
	}
	t := &rows[0]
	if or(t.Verb) != string(q.Verb) || or(t.Actor) != q.Actor || or(t.OnBehalfOf) != q.OnBehalfOf || or(t.Reason) != q.Reason ||
		or(t.RequestID) != q.RequestID || !bytes.Equal(t.Fingerprint, q.fingerprint()) || (t.PaymentMethod == nil) != (replacedBy(o, q) == nil) {
		return nil, nil
	}
	found, err := e.readUntilKnown([]int64{o.OrderNo}, false)
	if err != nil || len(found) == 0 {
		return nil, cmp.Or(err, orders.ErrUnavailable)
	}
	return found[:1], nil
}
