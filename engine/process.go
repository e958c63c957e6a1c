package engine

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// Process takes the order through its steps and answers with it as soon as it is final
// or held for a person, or when ctx ends: then with what is stored, while the order goes
// on. A known order is not started again: the caller gets its outcome, or waits for the
// one run of it with everybody else. Errors: *orders.Conflict, orders.ErrKeyReused, orders.ErrOverloaded,
// orders.ErrStopping, orders.ErrUnavailable, that of ctx if it was canceled, or orders.ErrNotFound if the key stands for
// this request and its order was removed.
func (e *Engine) Process(ctx context.Context, in Input) (orders.Order, error) {
	return anew(ctx, func() (orders.Order, error) { return e.process(ctx, in) })
}

func (e *Engine) process(ctx context.Context, in Input) (orders.Order, error) {
	r, made, err := e.enter(ctx, in)
	if err != nil {
		return orders.Order{}, err
	}
	stored := r.known
	if made {
		stored = r.found
	}
	select {
	case <-stored:
		if err := e.agrees(ctx, r, &in); err != nil {
			return orders.Order{}, err
		}
	case <-r.done:
	case <-ctx.Done():
	}
	return e.await(ctx, r, &in)
}

// Admit is Process that does not wait for the end: it answers when the order is stored.
func (e *Engine) Admit(ctx context.Context, in Input) (orders.Order, error) {
	return anew(ctx, func() (orders.Order, error) { return e.admitAsync(ctx, in) })
}

func (e *Engine) admitAsync(ctx context.Context, in Input) (orders.Order, error) {
	r, _, err := e.enter(ctx, in)
	if err != nil {
		return orders.Order{}, err
	}
	select {
	case <-r.known:
		if err := e.agrees(ctx, r, &in); err != nil {
			return orders.Order{}, err
		}
		return e.readStored(ctx, r, &in)
	case <-r.done:
		return e.outcome(ctx, r, &in)
	case <-ctx.Done():
		return orders.Order{}, ended(ctx)
	}
}

// enter joins the run of the order, or sends a new one to be admitted.
func (e *Engine) enter(ctx context.Context, in Input) (r *run, made bool, err error) {
	if e.stopping.Load() {
		return nil, false, orders.ErrStopping
	}
	if e.overloaded(in.Item) && !e.runs.has(in.OrderID) {
		r, err = e.enterKnown(ctx, in.OrderID)
		return r, false, err
	}
	if e.schemaHealth.still.Load() && !e.runs.has(in.OrderID) {
		return nil, false, errSchemaMismatch
	}
	if version, p := e.policies.active(); version != nil && p == nil {
		return nil, false, orders.ErrUnavailable // the policy is not known here, or not yet
	}
	r, made = e.runs.join(in.OrderID, in)
	if r == nil {
		return nil, false, orders.ErrStopping
	}
	if made {
		e.admits.Add(r)
	}
	return r, made, nil
}

// enterKnown lets in those who ask for an order that is stored, while new ones are turned away: what is known is
// answered from the database, which costs little beside an order.
func (e *Engine) enterKnown(ctx context.Context, orderID string) (*run, error) {
	select {
	case e.knownReads <- struct{}{}:
		defer func() { <-e.knownReads }()
	default:
		e.Stats.Overloaded.Add(1)
		return nil, orders.ErrOverloaded
	}
	order, err := e.Orders.GetDurable(ctx, orderID)
	if errors.Is(err, orders.ErrNotFound) {
		e.Stats.Overloaded.Add(1)
		return nil, orders.ErrOverloaded
	}
	if err != nil {
		return nil, err
	}
	if r := e.rejoin(&order); r != nil {
		return r, nil
	}
	return nil, orders.ErrStopping
}

// knownReadsMost is how many of them read at a time: the orders that flow need connections, too.
const knownReadsMost = 4

// await waits for the end of the run, and goes on waiting when the order is held for
// something that comes by itself within the caller's time. in is nil for callers that
// bring no input.
func (e *Engine) await(ctx context.Context, r *run, in *Input) (orders.Order, error) {
	for {
		order, err := e.awaitRun(ctx, r, in)
		if err != nil || ctx.Err() != nil || e.stopping.Load() || !resumesWithin(ctx, &order, e.now()) {
			return order, err
		}
		if r = e.rejoin(&order); r == nil {
			return order, nil
		}
	}
}

// resumesWithin reports whether an order may end before the caller's time does: a replica drives
// it again, who took it up while it was read, or its hold ends in time, which the callback of a provider may
// do at any moment. What waits for a person does not count, and neither does what waits for a customer, who has
// to be shown the action first: the caller asks again later.
func resumesWithin(ctx context.Context, o *orders.Order, now time.Time) bool {
	switch {
	case o.Hold == nil:
		return !o.Status.Final()
	case orders.HeldFor(o, fsm.HoldApproval, fsm.HoldPaused, fsm.HoldAttention):
		return false
	case orders.HeldFor(o, fsm.HoldCallback):
		return len(o.Action) == 0
	}
	deadline, ok := ctx.Deadline()
	return !ok || o.DueAt == nil || o.DueAt.Sub(now) < time.Until(deadline)
}

func (e *Engine) awaitRun(ctx context.Context, r *run, in *Input) (orders.Order, error) {
	r.waiters.Add(1)
	defer r.waiters.Add(-1)
	select {
	case <-r.done:
		return e.outcome(ctx, r, in)
	case <-ctx.Done():
	}
	select {
	case <-r.known:
	case <-r.done:
		return e.outcome(ctx, r, in)
	default:
		return orders.Order{}, ended(ctx)
	}
	return e.asStored(ctx, r, in)
}

// outcome answers from a run that has ended.
func (e *Engine) outcome(ctx context.Context, r *run, in *Input) (orders.Order, error) {
	var again *startOver
	switch {
	case errors.As(r.err, &again) && in == nil: // another replica may have admitted one with this id
		return e.readFor(ctx, r.orderID)
	case errors.As(r.err, &again):
		return orders.Order{}, again.answerTo(in)
	case errors.Is(r.err, orders.ErrStopping) && r.no() != 0:
		return e.asStored(ctx, r, in)
	case r.err != nil:
		return orders.Order{}, r.err
	case in != nil:
		if d, err := e.conflicts(ctx, r, in); err != nil || d != nil {
			return orders.Order{}, cmp.Or[error](err, &orders.Conflict{Order: r.order, Differences: d})
		}
	}
	return r.order, nil
}

// asStored answers with the row of an order that this caller does not wait for any more.
func (e *Engine) asStored(ctx context.Context, r *run, in *Input) (orders.Order, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled // the caller has gone
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	if in != nil {
		if err := e.agrees(short, r, in); err != nil {
			return orders.Order{}, err
		}
	}
	return e.readStored(short, r, in)
}

// agrees is nil if what a request brought agrees with what is stored, and else a conflict.
func (e *Engine) agrees(ctx context.Context, r *run, in *Input) error {
	d, err := e.conflicts(ctx, r, in)
	if err != nil || d == nil {
		return err
	}
	order, err := e.readStored(ctx, r, in)
	if err != nil {
		return err
	}
	return &orders.Conflict{Order: order, Differences: d}
}

// conflicts is what differs, once it is sure that the key of the request stands for it. A retry may have brought another payment method: the first request, sent again with
// the first payment method, asks for the same order all the same.
func (e *Engine) conflicts(ctx context.Context, r *run, in *Input) ([]orders.Difference, error) {
	if err := e.keepKey(ctx, r, in); err != nil {
		return nil, err
	}
	d := e.differences(&r.stored, in)
	if len(d) != 1 || d[0].Pointer != "/paymentMethod" {
		return d, nil
	}
	order, err := e.readStored(ctx, r, in)
	if err != nil {
		return nil, err
	}
	first, err := e.storedPaymentMethod(ctx, order.OrderNo, 0)
	if err == nil && first == in.PaymentMethod {
		d = nil
	}
	return d, err
}

// differences compares what a request brought with what is stored: all that says what is bought, and when. It is nil when they
// agree. A field left out agrees with anything. Metadata is not compared.
func (e *Engine) differences(stored *terms, in *Input) []orders.Difference {
	var d []orders.Difference
	note := func(differ bool, pointer, was, sent string) {
		if differ {
			d = append(d, orders.Difference{Pointer: pointer, Stored: was, Sent: sent})
		}
	}
	if stored.Amount.Cmp(in.Amount) != 0 {
		note(true, "/amount", stored.Amount.String(), in.Amount.String())
	}
	note(stored.Item != in.Item, "/item", stored.Item, in.Item)
	note(in.CustomerID != "" && stored.CustomerID != in.CustomerID, "/customerId", stored.CustomerID, in.CustomerID)
	if in.PaymentMethod != "" && stored.PaymentMethod != in.PaymentMethod {
		note(true, "/paymentMethod", "(another)", "(as sent)") // not to be shown
	}
	note(in.Currency != "" && stored.Currency != in.Currency, "/currency", stored.Currency, in.Currency)
	if in.Quantity != 0 && stored.Quantity != in.Quantity {
		note(true, "/quantity", strconv.Itoa(int(stored.Quantity)), strconv.Itoa(int(in.Quantity)))
	}
	if in.Terms == (Terms{}) {
		return d
	}
	if !in.StartAt.IsZero() && !sameTime(in.StartAt, stored.StartAt) {
		note(true, "/startAt", timeText(stored.StartAt), timeText(&in.StartAt))
	}
	passed := stored.Generation > 0 && stored.CompleteBy == nil // a retry may have removed a deadline that had passed
	if !in.CompleteBy.IsZero() && !passed && !sameTime(in.CompleteBy, stored.CompleteBy) {
		note(true, "/completeBy", timeText(stored.CompleteBy), timeText(&in.CompleteBy))
	}
	if was := or(stored.ReservationTTL); in.ReservationTTL != 0 && in.ReservationTTL.Seconds() != was {
		note(true, "/reservationTtl", secondsText(was), secondsText(in.ReservationTTL.Seconds()))
	}
	if key, compared := e.storedConcurrencyKey(stored); compared && in.ConcurrencyKey != "" {
		note(in.ConcurrencyKey != key, "/concurrencyKey", key, in.ConcurrencyKey)
	}
	return d
}

// storedConcurrencyKey is the concurrencyKey that an order was stored with. It is kept only where the policy limits orders by it,
// and else there is nothing to compare.
func (e *Engine) storedConcurrencyKey(stored *terms) (key string, compared bool) {
	if key, kept := strings.CutPrefix(or(stored.ConcurrencyKey), policy.ByKey+":"); kept {
		return key, true
	}
	p, _ := e.policies.byVersion(stored.Policy)
	first := stored.Generation == 0 // a retry may have brought another policy
	return "", first && p != nil && p.Concurrency != nil && p.Concurrency.By == policy.ByKey
}

// sameTime compares a time with one that is stored, which has microseconds.
func sameTime(sent time.Time, stored *time.Time) bool {
	return stored != nil && sent.Truncate(time.Microsecond).Equal(*stored)
}

func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func secondsText(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(seconds, 'f', -1, 64)
}

// Await answers with an order as soon as its seq, and whether it is final, are enough for the caller, or when ctx ends: then with what is
// stored. It only looks: the order goes on, or waits, as it would without. Errors: orders.ErrNotFound, orders.ErrUnavailable,
// or that of ctx if it was canceled.
func (e *Engine) Await(ctx context.Context, orderID string, enough func(seq int32, final bool) bool) (orders.Order, error) {
	order, err := e.Orders.Get(ctx, orderID)
	if err != nil || enough(order.Seq, order.Status.Final()) {
		return order, err
	}
	if o := e.watches.join(order.OrderNo, enough); o != nil {
		select {
		case s, ok := <-o.seen:
			if ok {
				return s.order, s.err
			}
		case <-ctx.Done():
			e.watches.forget(o)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled // the caller has gone
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	return e.Orders.Get(short, orderID)
}

// rejoin returns the run of an order that is known to exist, making one that watches it
// if there is none; nil when the engine is stopping.
func (e *Engine) rejoin(o *orders.Order) *run {
	r, made := e.runs.join(o.OrderID, Input{})
	if made {
		r.order = *o
		r.order.Status, r.order.Seq = fsm.State(""), 0 // to be read
		e.dispatch(goTo(toWatch, r))
	}
	return r
}
