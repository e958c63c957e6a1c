package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/provider"
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
	done, err = detached(ctx, e, func(ctx context.Context) (bool, error) { return e.write(ctx, &order, q, c) })
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
	parts := []string{string(q.Verb), q.OnBehalfOf, q.Reason, strconv.FormatBool(q.ActivePolicy), number(q.Generation), q.PaymentMethod}
	if s := q.Settle; s != nil {
		parts = append(parts, string(s.Step), number(s.Generation), number(s.Refund), s.Outcome, s.Reference, s.Code, s.Detail)
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

func number(n *int32) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(int(*n))
}

// lastLook is how long the read of an order may take for a caller whose time is up.
const lastLook = 2 * time.Second

// readLimit bounds the reads for a caller who has all the time in the world.
const readLimit = 30 * time.Second

// answering bounds the reads that a caller is answered from: as long as he waits, and a moment after that. A verb that is
// written is not told as unavailable to somebody who has the time to hear of it.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := readLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(time.Until(deadline), 0) + lastLook
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
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
