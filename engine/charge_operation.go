package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
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
	Amount  *decimal.Decimal // nil: the rest of the charge
	Restock int32            // units to return to stock, of an order of one item

	// Lines are what it is about, of an order with lines. Without an Amount, it is the sum of their amounts.
	Lines []orders.LineUnits
}

// demand is what a charge operation comes to, for an order as it is.
type demand struct {
	amount  decimal.Decimal
	restock int32
	lines   []orders.OperationLine
	refusal string // why the order does not have its lines; empty: it has
}

func (c *ChargeOperation) of(o *orders.Order) demand {
	d := demand{restock: c.Restock}
	if c.Lines != nil {
		d.lines, d.refusal = orders.OperationLines(o, orders.OperationRefund, c.Lines)
		d.restock = orders.RestockOfLines(d.lines)
	}
	switch {
	case c.Amount != nil:
		d.amount = *c.Amount
	case c.Lines != nil:
		d.amount = orders.AmountOfLines(d.lines)
	default:
		d.amount = orders.Refundable(o)
	}
	return d
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
	code := ""
	if q.ChargeOperation != nil {
		code = e.refundRefusal(o, q.ChargeOperation)
	} else if !slices.ContainsFunc(orders.ChargeOperations(o), q.isOpen) {
		code = orders.RefusedNoRefund
	}
	if code != "" {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return sameAs(o), nil
}

// refundRefusal is the code why an order can't be refunded, or empty.
func (e *core) refundRefusal(o *orders.Order, r *ChargeOperation) string {
	p, known := e.policies.byVersion(o.Policy)
	wants := r.of(o)
	switch {
	case o.Status != fsm.Completed:
		return orders.RefusedState
	case wants.refusal != "":
		return wants.refusal
	case wants.amount.Cmp(orders.Refundable(o)) > 0 || !wants.amount.IsPos():
		return orders.RefusedRefundTooLarge
	case o.Lines != nil && r.Restock > 0, // of which item?
		wants.restock > orders.Restockable(o, !known || !stepFor(p, o, fsm.Reserve).Executor.Remote()):
		return orders.RefusedRestockTooLarge
	case known && stepFor(p, o, fsm.Charge).Executor == policy.HTTP && stepFor(p, o, fsm.Charge).RefundURL == "":
		return orders.RefusedNoRefundURL
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
		wants := q.ChargeOperation.of(o)
		return append(operations, orders.ChargeOperation{
			Number: int32(len(operations)) + 1, Kind: string(q.Verb), State: state, Amount: wants.amount, Restock: wants.restock, Lines: wants.lines,
			Reason: q.Reason, RequestID: q.RequestID, CreatedAt: e.now(),
		})
	}
	states := map[string]string{
		SettledDone: orders.OperationDone, SettledRefused: orders.OperationFailed, SettledNotDone: orders.OperationPending,
	}
	for i := range operations {
		if r := &operations[i]; r.Number == *q.Settle.ChargeOperation {
			r.State, r.Reference = states[q.Settle.Outcome], cmp.Or(q.Settle.Reference, r.Reference)
			r.Code, r.Detail = q.Settle.Code, q.Settle.Detail
		}
	}
	return operations
}

// operationPoll is the shortest interval at which a waiting caller polls a charge operation.
const operationPoll = 250 * time.Millisecond

// followOperation waits until the operation is settled or the caller's time is up. It polls the database, because any replica
// may make the call.
func (e *Engine) followOperation(ctx context.Context, q *Request) (orders.Order, error) {
	for try := 0; ; try++ {
		order, err := e.readFor(ctx, q.OrderID)
		if err != nil || q.Async || ctx.Err() != nil || !slices.ContainsFunc(orders.ChargeOperations(&order), q.isOpen) || e.stopping.Load() {
			return order, err
		}
		pg.Sleep(ctx, min(5*time.Millisecond<<min(try, 6), operationPoll))
	}
}

// isOpen reports whether the request is about this operation and it is not settled.
func (q *Request) isOpen(r orders.ChargeOperation) bool {
	is := q.ChargeOperation != nil && r.RequestID == q.RequestID || q.Settle != nil && r.Number == *q.Settle.ChargeOperation
	return is && !r.Settled()
}

// onRefundEvent makes a refund due at once, if the event is signed for the account that charged the order.
func (e *Engine) onRefundEvent(ctx context.Context, o *orders.Order, hint stripe.Hint, secret policy.Secret) error {
	p, known := e.policies.byVersion(o.Policy)
	if !known {
		return orders.ErrUnavailable // so that Stripe retries: nothing else reports changes of a finished refund
	}
	if p == nil || stepFor(p, o, fsm.Charge).WebhookSecret != secret || o.Generation != hint.Generation {
		return nil
	}
	found, err := e.query.ChargeOperationHint(ctx, db.ChargeOperationHintParams{OrderNo: o.OrderNo, Generation: hint.Generation, RequestID: hint.RefundID,
		Executor: string(policy.Stripe)})
	if len(found) > 0 {
		e.chargeOperations.nudge()
	}
	return orders.Unavailable("heed an event of a refund", err)
}

// operationCall is a call for a claimed charge operation: the operation itself or a look-up.
type operationCall struct {
	row       db.ChargeOperationsClaimRow
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
	c.how, c.exec, c.operation = pool.cfg, pool.exec, provider.Refund
	if _, looks := c.exec.(provider.Looker); looks && (c.row.State != orders.OperationPending || c.keyOld(c.asked)) {
		c.operation = lookup
	}
	if c.expired(c.asked) {
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
		begun, err = e.query.ChargeOperationBegin(ctx, db.ChargeOperationBeginParams{OrderNo: c.row.Order.OrderNo, Generation: c.row.Order.Generation,
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

// send sends the operation or looks it up. If the provider may have forgotten the key, not having seen it proves nothing.
func (c *operationCall) send(ctx context.Context, request *provider.Call) provider.Result {
	if c.operation != lookup {
		return c.exec.Refund(ctx, request)
	}
	result := c.exec.(provider.Looker).Lookup(ctx, request)
	if _, unseen := result.(provider.Retry); unseen && c.keyForgotten(request.Now()) {
		return attention{reason: outcomeUnknown}
	}
	return result
}

func (e *remote) operationRequest(ctx context.Context, row *db.ChargeOperationsClaimRow) (*provider.Call, error) {
	request, err := e.requestFor(ctx, &row.Order, fsm.Charge, row.Order.Generation)
	if err != nil {
		return nil, err
	}
	request.Amount, request.Reference = row.Amount, or(row.Order.ChargeReference)
	request.RefundID, request.Reason, request.RefundReference = row.RequestID, row.Reason, row.Reference
	request.RefundLines = row.Lines
	return request, nil
}

// expired reports whether the provider may have forgotten the key of an operation that was sent. Sending it again could
// have its effect twice.
func (c *operationCall) expired(now time.Time) bool {
	return c.operation == provider.Refund && c.keyForgotten(now)
}

// keyForgotten reports whether the provider may have forgotten the key. Stripe finds refunds of any age by their
// metadata.
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
