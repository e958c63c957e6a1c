package engine

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/fsm"
)

// Stop is a request to stop an order, from a person or a program.
type Stop struct {
	OrderID   string
	Actor     string // who asks; kept in the history
	Reason    string
	RequestID string // a request that comes again with the same id is answered, not done again
	IfSeq     *int32 // only if the order is still at this seq
	DryRun    bool   // say what would be, and do nothing
}

const cancelVerb = "cancel"

// AllowedActions lists the verbs that apply to the order as it is.
func AllowedActions(o *Order) []string {
	if stoppable(o) {
		return []string{cancelVerb}
	}
	return []string{}
}

// stoppable: going forward, and nobody has asked yet; or held on the way, whichever way.
func stoppable(o *Order) bool {
	s := o.Order.Status
	return !s.Final() && (o.Order.Hold != nil || !s.Undoing() && o.Order.StopRequested == nil)
}

// Cancel asks that the order be stopped and waits, like Process, for what comes of it:
// the step under way is recorded, then everything done is undone. A request that was
// seen before, or finds the order already being canceled, waits with the first. Errors:
// ErrNotFound, *NotApplicable, ErrPrecondition, ErrStopping, ErrUnavailable.
func (e *Engine) Cancel(ctx context.Context, s Stop) (Order, error) {
	if e.stopping.Load() {
		return Order{}, ErrStopping
	}
	order, err := e.Get(ctx, s.OrderID)
	if err != nil {
		return Order{}, err
	}
	if s.DryRun {
		return order, refuses(&order, s)
	}
	seen, err := e.seen(ctx, &order, s.RequestID)
	if err != nil {
		return Order{}, err
	}
	if !seen {
		if err := e.stop(ctx, s); err != nil {
			return Order{}, err
		}
	}
	return e.awaitStored(ctx, &order)
}

// stop writes the request. What its statement did not say, or left undone, is read back.
func (e *Engine) stop(ctx context.Context, s Stop) error {
	detached, cancel := e.statement()
	defer cancel()
	rows, err := e.query.OrderStop(detached, db.OrderStopParams{
		Kind: cancelVerb, OrderID: s.OrderID, IfSeq: s.IfSeq,
		Actor: optional(s.Actor), Reason: optional(s.Reason), RequestID: optional(s.RequestID),
	})
	if err == nil && len(rows) == 1 {
		return nil
	}
	if err != nil && db.FaultOf(err) == db.Bad {
		return unavailable("stop order", err)
	}
	order, getErr := e.Get(context.WithoutCancel(ctx), s.OrderID)
	if getErr != nil {
		return getErr
	}
	if underway := order.Order.StopRequested; underway != nil && *underway == cancelVerb && !order.Order.Status.Final() {
		return nil
	}
	if err != nil {
		return unavailable("stop order", err)
	}
	if refusal := refuses(&order, s); refusal != nil {
		return refusal
	}
	return ErrUnavailable // it changed between the two statements
}

func refuses(o *Order, s Stop) error {
	switch {
	case s.IfSeq != nil && *s.IfSeq != o.Order.Seq:
		return ErrPrecondition
	case !stoppable(o):
		return &NotApplicable{Verb: cancelVerb, Order: *o}
	}
	return nil
}

// seen reports whether a request with this id was done to the order before.
func (e *Engine) seen(ctx context.Context, o *Order, requestID string) (bool, error) {
	if requestID == "" {
		return false, nil
	}
	_, err := e.query.TransitionByRequest(ctx, db.TransitionByRequestParams{OrderNo: o.Order.OrderNo, RequestID: requestID})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, unavailable("read history", err)
}

// awaitStored waits for the end of an order that is known to exist: with the run that
// drives it here, or by watching it.
func (e *Engine) awaitStored(ctx context.Context, o *Order) (Order, error) {
	r := e.rejoin(o)
	if r == nil {
		return e.Get(ctx, o.Order.OrderID)
	}
	return e.await(ctx, r, nil)
}

// rejoin returns the run of an order that is known to exist, making one that watches it
// if there is none; nil when the engine is stopping.
func (e *Engine) rejoin(o *Order) *run {
	r, made := e.runs.join(o.Order.OrderID, Input{})
	if made {
		r.order = *o
		r.order.Order.Status, r.order.Order.Seq = fsm.State(""), 0 // to be read
		e.watch([]*run{r})
	}
	return r
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
