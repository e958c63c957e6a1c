package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
)

// ChargeOperation is what a request asks to be done to the charge of a completed order: its Verb says what.
type ChargeOperation struct {
	Amount  *decimal.Decimal // nil: all that is left, and always for a void
	Final   bool             // of a capture: it voids the rest
	Restock int32            // units that a refund returns to stock, of an order of one item

	// Lines are what it is about, of an order with lines. Without an Amount, it is the sum of their amounts.
	Lines []orders.LinePart
}

// demand is what a charge operation comes to, for an order as it is.
type demand struct {
	amount  decimal.Decimal
	voided  *decimal.Decimal // of a capture: what it voids of the authorization; nil: more captures may follow
	restock int32
	lines   []orders.OperationLine
	refusal string // why the order does not have its lines; empty: it has
}

func (q *Request) demand(o *orders.Order) demand {
	c := q.ChargeOperation
	d := demand{restock: c.Restock}
	if c.Lines != nil {
		d.lines, d.refusal = orders.OperationLines(o, string(q.Verb), c.Lines)
		d.restock = orders.RestockOfLines(d.lines)
	}
	switch {
	case c.Amount != nil:
		d.amount = *c.Amount
	case c.Lines != nil:
		d.amount = orders.AmountOfLines(d.lines)
	case q.Verb == orders.Refund:
		d.amount = orders.Refundable(o)
	default:
		d.amount = orders.Capturable(o)
	}
	if q.Verb == orders.Capture {
		d.voided = c.voids(o, d.amount)
	}
	return d
}

// voids is what a capture of an amount voids. The last capture is final if nothing else is open: a provider that allows
// only one capture accepts it.
func (c *ChargeOperation) voids(o *orders.Order, amount decimal.Decimal) *decimal.Decimal {
	rest, err := orders.Capturable(o).Sub(amount)
	if err != nil || !c.Final && (!rest.IsZero() || orders.Capturing(o)) {
		return nil
	}
	return &rest
}

// parts distinguish it from others with the same request id.
func (c *ChargeOperation) parts() []string {
	amount := "" // all that is left
	if c.Amount != nil {
		amount = c.Amount.Trim(0).String()
	}
	lines, _ := json.Marshal(c.Lines) // our own type
	return []string{amount, strconv.Itoa(int(c.Restock)), string(lines)}
}

// aboutCharge reports whether the request asks for a charge operation or settles one.
func (q *Request) aboutCharge() bool {
	return q.ChargeOperation != nil || q.Settle != nil && q.Settle.ChargeOperation != nil
}

// judgeChargeOperation judges a request that asks for a charge operation or settles one. The order does not change.
func (e *Engine) judgeChargeOperation(o *orders.Order, q *Request) (*change, error) {
	var code string
	switch {
	case q.ChargeOperation == nil:
		code = q.settlingRefusal(o)
	case q.Verb == orders.Refund:
		code = e.refundRefusal(o, q)
	default:
		code = e.captureRefusal(o, q)
	}
	if code != "" {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return sameAs(o), nil
}

// settlingRefusal is the code why a person can't settle a charge operation, or empty. While a call is under way, its
// answer may differ from what the person has found out.
func (q *Request) settlingRefusal(o *orders.Order) string {
	operations := orders.ChargeOperations(o)
	switch i := slices.IndexFunc(operations, q.isOpen); {
	case i < 0:
		return orders.RefusedNoChargeOperation
	case operations[i].Calling:
		return orders.RefusedBusy
	}
	return ""
}

// refundRefusal is the code why an order can't be refunded, or empty.
func (e *core) refundRefusal(o *orders.Order, q *Request) string {
	p, known := e.policies.byVersion(o.Policy)
	wants := q.demand(o)
	switch {
	case o.Status != fsm.Completed:
		return orders.RefusedState
	case wants.refusal != "":
		return wants.refusal
	case wants.amount.Cmp(orders.Refundable(o)) > 0 || !wants.amount.IsPos():
		return orders.RefusedRefundTooLarge
	case o.Lines != nil && q.ChargeOperation.Restock > 0, // of which item?
		wants.restock > orders.Restockable(o, !known || !stepFor(p, o, fsm.Reserve).Executor.Remote()):
		return orders.RefusedRestockTooLarge
	case known && stepFor(p, o, fsm.Charge).Executor == policy.HTTP && stepFor(p, o, fsm.Charge).RefundURL == "":
		return orders.RefusedNoRefundURL
	}
	return ""
}

// captureRefusal is the code why the charge of an order can't be captured or voided, or empty. What an open capture
// takes is not known, so nothing voids the rest meanwhile.
func (e *core) captureRefusal(o *orders.Order, q *Request) string {
	p, known := e.policies.byVersion(o.Policy)
	wants, how := q.demand(o), stepFor(p, o, fsm.Charge)
	switch {
	case o.Status != fsm.Completed || !orders.CapturedLater(o):
		return orders.RefusedState
	case wants.refusal != "":
		return wants.refusal
	case wants.amount.Cmp(orders.Capturable(o)) > 0 || !wants.amount.IsPos():
		return orders.RefusedCaptureTooLarge
	case (q.Verb == orders.Void || q.ChargeOperation.Final) && orders.Capturing(o):
		return orders.RefusedCaptureOpen
	case known && how.Executor == policy.HTTP && (how.CaptureURL == "" || how.VoidURL == ""):
		return orders.RefusedNoCaptureURL
	}
	return ""
}

// operationsAfter are the charge operations of an order after the request, for a dry run.
func (e *Engine) operationsAfter(o *orders.Order, q *Request) []orders.ChargeOperation {
	operations := orders.ChargeOperations(o)
	if q.ChargeOperation != nil {
		state := orders.OperationPending
		if p, known := e.policies.byVersion(o.Policy); known && !stepFor(p, o, fsm.Charge).Executor.Remote() {
			state = orders.OperationDone
		}
		wants := q.demand(o)
		return append(operations, orders.ChargeOperation{
			Number: int32(len(operations)) + 1, Kind: string(q.Verb), State: state, Amount: wants.amount, Voided: wants.voided, Restock: wants.restock, Lines: wants.lines,
			Reason: q.Reason, RequestID: q.RequestID, CreatedAt: e.now(),
		})
	}
	states := map[string]string{
		SettledDone: orders.OperationDone, SettledRefused: orders.OperationFailed, SettledNotDone: orders.OperationPending,
	}
	for i := range operations {
		if c := &operations[i]; c.Number == *q.Settle.ChargeOperation {
			c.State, c.Reference = states[q.Settle.Outcome], cmp.Or(q.Settle.Reference, c.Reference)
			c.Code, c.Detail = q.Settle.Code, q.Settle.Detail
		}
	}
	return operations
}

// operationPoll is the shortest interval at which a waiting caller polls a charge operation.
const operationPoll = 250 * time.Millisecond

// followOperation waits until the operation is settled or the caller's time is up. It polls the database, because any
// replica may make the call.
func (e *Engine) followOperation(ctx context.Context, q *Request) (orders.Order, error) {
	for try := 0; ; try++ {
		order, err := e.readFor(ctx, q.OrderID)
		if err != nil || q.Async || ctx.Err() != nil || !q.Open(&order) || e.stopping.Load() {
			return order, err
		}
		pg.Sleep(ctx, min(5*time.Millisecond<<min(try, 6), operationPoll))
	}
}

// isOpen reports whether the request is about this operation and it is not settled.
func (q *Request) isOpen(c orders.ChargeOperation) bool {
	return q.isAbout(&c) && !c.Settled()
}

// Open reports whether the request asks for a charge operation of the order, or settles one, that is not settled.
func (q *Request) Open(o *orders.Order) bool {
	return slices.ContainsFunc(orders.ChargeOperations(o), q.isOpen)
}

// isAbout reports whether the request asks for this operation or settles it.
func (q *Request) isAbout(c *orders.ChargeOperation) bool {
	if q.ChargeOperation != nil {
		return c.RequestID == q.RequestID
	}
	return q.aboutCharge() && c.Number == *q.Settle.ChargeOperation && c.Kind == q.Settle.Kind
}

// onChargeEvent makes a refund due at once, or the open captures and voids of the charge, if the event is signed for
// the account that charged the order. If the authorization has ended, the provider is asked about it.
func (e *Engine) onChargeEvent(ctx context.Context, o *orders.Order, hint stripe.Hint, secret policy.Secret) error {
	p, known := e.policies.byVersion(o.Policy)
	if !known {
		return orders.ErrUnavailable // so that Stripe retries: nothing else reports changes of a finished refund
	}
	if p == nil || stepFor(p, o, fsm.Charge).WebhookSecret != secret || o.Generation != hint.Generation {
		return nil
	}
	found, err := e.query.ChargeOperationHint(ctx, db.ChargeOperationHintParams{OrderNo: o.OrderNo, Generation: hint.Generation, RequestID: hint.RefundID,
		Executor: string(policy.Stripe)})
	if err == nil && hint.Ended {
		_, err = e.query.AuthorizationHint(ctx, db.AuthorizationHintParams{OrderNo: o.OrderNo, Generation: hint.Generation})
	}
	if len(found) > 0 {
		e.chargeOperations.nudge()
	}
	return orders.Unavailable("heed an event of a charge", err)
}

// hastenMost bounds how many operations are tried early; their success hastens others.
const hastenMost = 10_000

// operationCall is a call for a claimed charge operation: the operation itself or a look-up.
type operationCall struct {
	row       db.ChargeOperationsClaimRow
	pool      *callPool // of its charge
	how       *policy.Step
	exec      provider.Executor
	operation provider.Operation
	number    int32     // of the call; 0: not made
	asked     time.Time // when it was decided, by the clock of the database
	result    provider.Result
}

// claimChargeOperations claims charge operations that are due.
func (e *remote) claimChargeOperations(most int32) (calls []func()) {
	rows, err := e.query.ChargeOperationsClaim(e.ctx, db.ChargeOperationsClaimParams{Most: most, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		e.log.Warn("look for charge operations", "error", err)
	}
	for _, row := range rows {
		calls = append(calls, func() { e.makeOperation(&operationCall{row: row}) })
	}
	return calls
}

// makeOperation makes the next call of a charge operation, and commits the result.
func (e *remote) makeOperation(c *operationCall) {
	c.result = e.callProvider(c)
	outcome, answer := namedResult(c.result)
	if outcome == "refused" && c.row.Kind == orders.OperationVoid && answer.Code == provider.AuthorizationExpired {
		outcome, c.result = "done", provider.Done{} // nothing is left, as was asked for; the provider's words are kept
	}
	if a, ok := c.result.(attention); ok {
		answer.Code, answer.Detail = orders.RefusedUnknown, a.reason
		if c.row.Code != orders.RefusedUnknown {
			e.log.Error("a charge operation must be settled by a person", "order_id", c.row.Order.OrderID, "charge_operation", c.row.Number, "reason", a.reason)
		}
	}
	state := c.state()
	err := e.query.ChargeOperationFinish(e.ctx, db.ChargeOperationFinishParams{
		OrderNo: c.row.Order.OrderNo, Generation: c.row.Order.Generation, Number: c.row.Number, Claims: c.row.Claims, Call: c.number,
		Outcome: outcome, Code: answer.Code, Detail: answer.Detail, Ref: answer.Reference,
		State: state, Settled: c.settled(state), Unsent: c.unsent(state), Delay: c.delay().Seconds()})
	if err != nil {
		e.log.Warn("keep what came of a charge operation", "order_id", c.row.Order.OrderID, "charge_operation", c.row.Number, "error", err)
	}
	if _, done := c.result.(provider.Done); done && c.row.Code != "" && c.pool.hastens(e.now()) {
		e.hasten(c.pool)
	}
}

// hastens reports whether a success hastens others. The others that had failed before the last one that did are due already,
// so that each success need not look for them among those of another provider, which may be many.
func (p *callPool) hastens(now time.Time) bool {
	last := p.hastened.Load()
	return now.Sub(time.Unix(0, last)) >= p.cfg.Retry.Cap && p.hastened.CompareAndSwap(last, now.UnixNano())
}

// hasten has the operations of a provider that works again tried within the longest pause between retries of orders.
func (e *remote) hasten(pool *callPool) {
	q := db.ChargeOperationsHastenParams{Seconds: pool.cfg.Retry.Cap.Seconds(), Most: hastenMost}
	for version, p := range e.policies.now.Load().byVersion {
		for _, place := range p.Places() {
			if step := p.Step(place.Step, place.Route); place.Step == fsm.Charge && step.Executor.Remote() && step.Host() == pool.cfg.Host() {
				q.Places = append(q.Places, strings.TrimSpace(fmt.Sprint(version)+" "+place.Route))
			}
		}
	}
	if err := e.query.ChargeOperationsHasten(e.ctx, q); err != nil {
		e.log.Warn("hasten charge operations", "error", err)
	}
}

// callProvider makes the call at the provider of the charge, unless its key may be forgotten.
func (e *remote) callProvider(c *operationCall) provider.Result {
	c.asked = e.now()
	p, runs := e.policies.byVersion(c.row.Order.Policy)
	if !runs || p == nil || !p.Charge.Executor.Remote() {
		return provider.Retry{Code: "policy_unusable"}
	}
	pool := e.callPool(*c.row.Order.Policy, p, fsm.Charge, or(c.row.Order.Route))
	if pool.exec == nil {
		return provider.Retry{Code: "policy_unusable", Detail: pool.unusable.Error()}
	}
	c.pool, c.how, c.exec, c.operation = pool, pool.cfg, pool.exec, provider.Operation(c.row.Kind)
	_, looks := c.exec.(provider.Looker)
	if c.asks() || looks && (c.row.State != orders.OperationPending || c.keyOld(c.asked)) {
		c.operation = lookup
	}
	if c.expired(c.asked) || c.asks() && !looks {
		return attention{reason: outcomeUnknown}
	}
	ctx, cancel := context.WithTimeout(e.ctx, c.how.Timeout)
	defer cancel()
	return e.performOperation(ctx, c)
}

// performOperation commits the call and makes it.
func (e *remote) performOperation(ctx context.Context, c *operationCall) provider.Result {
	request, err := e.operationRequest(ctx, &c.row)
	began := call{asked: time.Now()}
	var begun []db.ChargeOperationBeginRow
	if err == nil {
		begun, err = beginSideCall(ctx, e.query.ChargeOperationBegin, db.ChargeOperationBeginParams{OrderNo: c.row.Order.OrderNo, Generation: c.row.Order.Generation,
			Number: c.row.Number, Claims: c.row.Claims, Fence: c.row.Order.Fence, Policy: c.row.Order.Policy, Route: c.row.Order.Route, Operation: string(c.operation),
			LeaseSeconds: (c.how.Timeout + leaseMargin).Seconds()})
	}
	switch {
	case err != nil: // if it was committed, the next claim finds the operation in doubt
		return provider.Retry{Code: "database_unavailable", Detail: err.Error()}
	case len(begun) == 0:
		return provider.Retry{Code: "overtaken", Detail: "the operation was settled or claimed meanwhile"}
	}
	c.number, request.Number = begun[0].Call, begun[0].Call
	switch {
	case began.stoodStill():
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	case c.expired(begun[0].StartedAt):
		return attention{reason: outcomeUnknown}
	}
	made := time.Now()
	result := c.send(ctx, request)
	e.noteCall(&answeredCall{c.row.Order.OrderID, "", fsm.Charge, c.operation, c.number, c.row.Order.Fence, result, time.Since(made)})
	return result
}

// send sends the operation or looks it up. If the provider may have forgotten the key, not having seen it proves
// nothing.
func (c *operationCall) send(ctx context.Context, request *provider.Call) provider.Result {
	if c.operation != lookup {
		return c.exec.Operate(ctx, request)
	}
	result := c.exec.(provider.Looker).Lookup(ctx, request)
	if c.asks() {
		return c.ended(result)
	}
	if _, unseen := result.(provider.Retry); unseen && c.keyForgotten(request.Now()) {
		return attention{reason: outcomeUnknown}
	}
	return result
}

// asks reports whether the operation asks whether the authorization has ended, and sends nothing.
func (c *operationCall) asks() bool { return c.row.RequestID == "" }

// ended is the result of the look-up of an authorization that should have ended: while the charge is as it was, it has
// not.
func (c *operationCall) ended(charge provider.Result) provider.Result {
	switch result := charge.(type) {
	case provider.Done:
		return provider.Refused{Code: "still_authorized", Detail: "the authorization has not ended yet"}
	case provider.Refused:
		return provider.Refused{Code: provider.AuthorizationExpired, Detail: result.Detail}
	case provider.Retry:
		return provider.InDoubt(result)
	}
	return charge
}

func (e *remote) operationRequest(ctx context.Context, row *db.ChargeOperationsClaimRow) (*provider.Call, error) {
	request, err := e.requestFor(ctx, &row.Order, fsm.Charge, row.Order.Generation)
	if err != nil {
		return nil, err
	}
	request.Amount, request.Final, request.Reference = row.Amount, row.Final, or(row.Order.ChargeReference)
	request.OperationKind, request.OperationID = provider.Operation(row.Kind), row.RequestID
	request.OperationReference, request.Reason = row.Reference, row.Reason
	request.RefundLines = row.Lines
	return request, nil
}

// expired reports whether the provider may have forgotten the key of an operation that was sent. Sending it again could
// have its effect twice.
func (c *operationCall) expired(now time.Time) bool {
	return c.operation != lookup && c.keyForgotten(now)
}

// keyForgotten reports whether the provider may have forgotten the key. Stripe finds refunds of any age by their
// metadata, and an intent that is captured or canceled stays so.
func (c *operationCall) keyForgotten(now time.Time) bool {
	return c.how.Executor != policy.Stripe && c.keyOld(now)
}

// keyOld reports whether the key was sent so long ago that sending it again could have its effect twice.
func (c *operationCall) keyOld(now time.Time) bool {
	return c.row.SentAt != nil && now.Sub(*c.row.SentAt) > c.how.KeyRetention-retentionMargin
}

// state is the state of the operation after the call. One in doubt stays so until its outcome is known. A finished one
// only changes if it fails.
func (c *operationCall) state() string {
	before := c.row.State
	done, pending := before == orders.OperationDone, before == orders.OperationPending
	switch c.result.(type) {
	case provider.Done:
		return orders.OperationDone
	case provider.Refused: // as with steps, an earlier request may still have an effect, unless the provider remembers refusals
		if _, remembers := c.exec.(provider.Looker); remembers || pending {
			return orders.OperationFailed
		}
		return before
	case provider.Waiting:
		if !done {
			return orders.OperationAccepted
		}
	case provider.Retry:
		if c.unseen() && !done {
			return orders.OperationPending // send it again
		}
	case provider.Unknown:
		if pending && c.number != 0 {
			return orders.OperationInDoubt
		}
	}
	if pending && c.row.SentAt != nil { // an earlier request may still be on its way
		return orders.OperationInDoubt
	}
	return before
}

// unseen reports whether a look-up found that the provider has not seen the key.
func (c *operationCall) unseen() bool {
	r, ok := c.result.(provider.Retry)
	return ok && c.number != 0 && c.operation == lookup && r.Code != stoodStillCode
}

// settled reports whether the provider need not be asked again.
func (c *operationCall) settled(state string) bool {
	_, unknown := c.result.(provider.Unknown)
	_, person := c.result.(attention)
	_, retry := c.result.(provider.Retry)
	unheard := unknown || person || retry && !c.unseen()
	return state == orders.OperationFailed || state == orders.OperationDone && !unheard
}

// unsent reports whether no earlier request can still have an effect: there was none, or Stripe, which finds refunds of
// any age, has seen none for as long as it remembers keys.
func (c *operationCall) unsent(state string) bool {
	return state == orders.OperationPending && (c.row.SentAt == nil || c.unseen() && c.keyOld(c.asked))
}

// delay is the time until the next call.
func (c *operationCall) delay() time.Duration {
	switch result := c.result.(type) {
	case attention:
		return sideCallPause
	case provider.Retry:
		if c.unseen() {
			return 0
		}
		return sidePause(c.row.Claims, result.After)
	case provider.Unknown:
		return sidePause(c.row.Claims, result.After)
	}
	return sidePause(c.row.Claims, 0)
}
