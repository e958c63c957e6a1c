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

// Process takes an order through its steps, and returns it when it is final or waits for a person. If ctx ends first,
// it returns the stored order, which continues. An existing order is not started again: all its callers wait for the
// same run. Errors: *orders.Conflict, *orders.Forgotten for a repetition with the input of an order that was forgotten,
// orders.ErrKeyReused, orders.ErrOverloaded, orders.ErrStopping,
// orders.ErrUnavailable, that of ctx if it was canceled, or orders.ErrNotFound if the key belongs to this request and
// its order was removed.
//
// Callers share what is returned, and must not change it. It is a pointer because thousands may wait here, and the order
// would stand on the stack of each of them several times.
func (e *Engine) Process(ctx context.Context, in Input) (*orders.Order, error) {
	return anew(ctx, func() (*orders.Order, error) { return e.process(ctx, &in) })
}

func (e *Engine) process(ctx context.Context, in *Input) (*orders.Order, error) {
	r, made, err := e.enter(ctx, in)
	if err != nil {
		return nil, err
	}
	stored := r.isStored
	if made { // the order has this request's input, unless it was stored before
		stored = r.wasStored
	}
	select {
	case <-stored:
		if err := e.checkInput(ctx, r, in); err != nil {
			return nil, err
		}
	case <-r.done:
	case <-ctx.Done():
	}
	return e.await(ctx, r, in)
}

// Admit is like Process, but returns as soon as the order is stored.
func (e *Engine) Admit(ctx context.Context, in Input) (*orders.Order, error) {
	return anew(ctx, func() (*orders.Order, error) { return e.admitAsync(ctx, &in) })
}

func (e *Engine) admitAsync(ctx context.Context, in *Input) (*orders.Order, error) {
	r, _, err := e.enter(ctx, in)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.isStored:
		if err := e.checkInput(ctx, r, in); err != nil {
			return nil, err
		}
		return e.readStored(ctx, r, in)
	case <-r.done:
		return e.outcome(ctx, r, in)
	case <-ctx.Done():
		return nil, waitError(ctx)
	}
}

// enter joins the run of the order, or makes one and queues it for admission.
func (e *Engine) enter(ctx context.Context, in *Input) (r *run, made bool, err error) {
	if e.stopping.Load() {
		return nil, false, orders.ErrStopping
	}
	if e.overloaded(in) && !e.runs.has(in.OrderID) {
		r, err = e.enterKnown(ctx, in.OrderID)
		return r, false, err
	}
	if e.schemaHealth.still.Load() && !e.runs.has(in.OrderID) {
		return nil, false, errSchemaMismatch
	}
	if version, p := e.policies.active(); version != nil && p == nil {
		return nil, false, orders.ErrUnavailable // the active policy has not been read
	}
	r, made = e.runs.join(in.OrderID, *in)
	if r == nil {
		return nil, false, orders.ErrStopping
	}
	if made {
		e.admits.Add(r)
	}
	return r, made, nil
}

// enterKnown lets requests for stored orders pass while new orders are rejected as overloaded: reading an order costs
// little compared with processing one.
func (e *Engine) enterKnown(ctx context.Context, orderID string) (*run, error) {
	select {
	case e.knownReads <- struct{}{}:
		defer func() { <-e.knownReads }()
	default:
		e.Stats.Overloaded.Add(1)
		return nil, orders.ErrOverloaded
	}
	order, err := e.Orders.GetDurable(ctx, orderID)
	if errors.Is(err, orders.ErrNotFound) || errors.Is(err, orders.ErrForgotten) {
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

// knownReadsMost is the maximum number of these reads at a time, because orders in progress need connections, too.
const knownReadsMost = 4

// await waits for the end of the run, and continues to wait while the order is on a hold that may end before ctx
// does. in is nil if there is no input to compare.
func (e *Engine) await(ctx context.Context, r *run, in *Input) (*orders.Order, error) {
	for {
		order, err := e.awaitRun(ctx, r, in)
		if err != nil || ctx.Err() != nil || e.stopping.Load() || !resumesWithin(ctx, order, e.now()) {
			return order, err
		}
		if r = e.rejoin(order); r == nil {
			return order, nil
		}
	}
}

// resumesWithin reports whether an order may end before ctx does: a replica drives it again, or its hold ends in
// time. A callback may come at any moment. Orders that wait for a person don't count, nor those that wait for the
// customer, who must see the action first.
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

func (e *Engine) awaitRun(ctx context.Context, r *run, in *Input) (*orders.Order, error) {
	r.waiters.Add(1)
	defer r.waiters.Add(-1)
	select {
	case <-r.done:
		return e.outcome(ctx, r, in)
	case <-ctx.Done():
	}
	select {
	case <-r.isStored:
	case <-r.done:
		return e.outcome(ctx, r, in)
	default:
		return nil, waitError(ctx)
	}
	return e.asStored(ctx, r, in)
}

// outcome returns what a run has ended with.
func (e *Engine) outcome(ctx context.Context, r *run, in *Input) (*orders.Order, error) {
	var again *startOver
	switch {
	case errors.As(r.err, &again) && in == nil: // another replica may have admitted an order with this id
		return e.readAgain(ctx, r.orderID)
	case errors.As(r.err, &again):
		return nil, again.answerTo(in)
	case errors.Is(r.err, orders.ErrStopping) && r.no() != 0:
		return e.asStored(ctx, r, in)
	case errors.Is(r.err, orders.ErrForgotten) && in != nil:
		return nil, e.forgotten(ctx, in)
	case r.err != nil:
		return nil, r.err
	case in != nil:
		if d, err := e.conflicts(ctx, r, in); err != nil || d != nil {
			return nil, cmp.Or(err, conflict(&r.order, d))
		}
	}
	return &r.order, nil
}

// The next two are not inlined because thousands of callers wait for an outcome, and the order would be on the stack of
// each.
//
//go:noinline
func (e *core) readAgain(ctx context.Context, orderID string) (*orders.Order, error) {
	order, err := e.readFor(ctx, orderID)
	return &order, err
}

//go:noinline
func conflict(o *orders.Order, d []orders.Difference) error {
	return &orders.Conflict{Order: *o, Differences: d}
}

// asStored returns the stored order to a caller whose time is up.
func (e *Engine) asStored(ctx context.Context, r *run, in *Input) (*orders.Order, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Canceled // the caller has gone
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	if in != nil {
		if err := e.checkInput(short, r, in); err != nil {
			return nil, err
		}
	}
	return e.readStored(short, r, in)
}

// checkInput returns *orders.Conflict if the input differs from the stored order.
func (e *Engine) checkInput(ctx context.Context, r *run, in *Input) error {
	d, err := e.conflicts(ctx, r, in)
	if err != nil || d == nil {
		return err
	}
	order, err := e.readStored(ctx, r, in)
	if err != nil {
		return err
	}
	return conflict(order, d)
}

// conflicts stores the key of the request for this order, and returns how its input differs. If a retry has replaced
// the payment method, the first request still matches with the first one.
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

// differences compares a request with the stored order: the fields that say what is bought, and when. Metadata is not
// compared, and a field that was left out matches anything, as does one that was erased with its customer.
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
	if stored.Lines != nil || in.Lines != "" {
		d = append(d, orders.LineDifferences(linesOf(stored.Item, stored.Quantity, stored.Lines), linesOf(in.Item, in.Quantity, []byte(in.Lines)), in.Lines == "")...)
	} else {
		note(stored.Item != in.Item, "/item", stored.Item, in.Item)
	}
	erased := orders.Pseudonym(stored.CustomerID)
	note(in.CustomerID != "" && stored.CustomerID != in.CustomerID && !erased, "/customerId", stored.CustomerID, in.CustomerID)
	if in.PaymentMethod != "" && stored.PaymentMethod != in.PaymentMethod && !erased {
		note(true, "/paymentMethod", "(another)", "(as sent)") // must not be shown
	}
	note(in.Currency != "" && stored.Currency != in.Currency, "/currency", stored.Currency, in.Currency)
	if in.Quantity != 0 && stored.Quantity != in.Quantity && stored.Lines == nil && in.Lines == "" {
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

// linesOf are the lines of an order, or its item as a line.
func linesOf(item string, quantity int32, lines []byte) []orders.Line {
	if len(lines) == 0 {
		return []orders.Line{{Item: item, Quantity: quantity}}
	}
	return orders.ParseLines(lines)
}

// storedConcurrencyKey is the concurrencyKey of the request that made the order. It is stored only if the policy
// limits orders by it; otherwise compared is false.
func (e *Engine) storedConcurrencyKey(stored *terms) (key string, compared bool) {
	if key, kept := strings.CutPrefix(or(stored.ConcurrencyKey), policy.ByKey+":"); kept {
		return key, !orders.Pseudonym(key)
	}
	p, _ := e.policies.byVersion(stored.Policy)
	first := stored.Generation == 0 // a retry may have changed the policy
	return "", first && p != nil && p.Concurrency != nil && p.Concurrency.By == policy.ByKey
}

// sameTime compares a time with a stored one, which has microseconds.
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

// Await returns an order when enough is true of its seq and of whether it is final. If ctx ends first, it returns the
// stored order. It does nothing to the order. Errors: orders.ErrNotFound, orders.ErrUnavailable, or that of ctx if it
// was canceled.
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

// rejoin returns the run of an order that exists. If it has none, it makes one that watches the order. It is nil if
// the engine is stopping.
func (e *Engine) rejoin(o *orders.Order) *run {
	r, made := e.runs.join(o.OrderID, Input{})
	if made {
		r.order = *o
		r.order.Status, r.order.Seq = fsm.State(""), 0 // to be read
		e.dispatch(goTo(toWatch, r))
	}
	return r
}
