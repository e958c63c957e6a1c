package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// hold stores an order of request that waits in a state for somebody.
func (b *bundle) hold(t testing.TB, state fsm.State, orderID string) {
	t.Helper()
	if state == fsm.Pending {
		b.exec(t, `WITH waiting AS (
			INSERT INTO orders (order_id, status, hold, hold_reason, currency, item, amount)
			VALUES ($1, 'pending', 'approval', 'large', 'USD', 'widget', 99.99) RETURNING order_no, seq, fence)
			INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, seq, 'pending', fence FROM waiting`, orderID)
		return
	}
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, orderID)
	g.advance(t, state, orderID)
	o := g.stored(t, orderID)[0]
	moved, err := g.query.OrdersHold(t.Context(), db.OrdersHoldParams{
		OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Hold: "paused", HoldReason: "by a test"})
	if err != nil || len(moved) != 1 {
		t.Fatalf("hold %q: %v %v", orderID, moved, err)
	}
}

// canceledWay is the way of an order that is canceled from a state.
var canceledWay = map[fsm.State][]string{
	fsm.Pending:    {"pending", "canceled"},
	fsm.Charging:   {"charging", "canceled"},
	fsm.Reserving:  {"charging", "reserving", "refunding", "canceled"},
	fsm.Confirming: {"charging", "reserving", "confirming", "releasing", "refunding", "canceled"},
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for state, way := range canceledWay {
		t.Run(fmt.Sprintf("an order that is held while %s", state), func(t *testing.T) {
			t.Parallel()
			b := setupWith(t, byCallers)
			b.setStock(t, "widget", 5)
			b.hold(t, state, "held")
			order, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "held", Actor: "ann", Reason: "changed her mind"})
			if err != nil || order.Status != fsm.Canceled {
				t.Fatalf("%v %+v", err, order)
			}
			b.sameAsStored(t, order)
			b.undone(t, "held", way)
			said := value[string](t, b.Pool, `SELECT actor || ': ' || reason FROM books.transitions WHERE verb = 'cancel'`)
			if said != "ann: changed her mind" {
				t.Error(said)
			}
		})
		if state == fsm.Pending {
			continue // nobody drives an order that waits to start
		}
		t.Run(fmt.Sprintf("an order that another replica drives, %s", state), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.setStock(t, "widget", 5)
			g := newGhost(b.Pool)
			g.admit(t, time.Minute, "driven")
			g.advance(t, state, "driven")
			before := g.stored(t, "driven")[0]
			order, err := inVain(t, func(ctx context.Context) (orders.Order, error) {
				return b.engine.Do(ctx, engine.Request{Verb: orders.Cancel, OrderID: "driven"})
			})
			if o := order; err != nil || o.Status != state || text(o.StopRequested) != "cancel" || o.Fence != before.Fence ||
				!o.DueAt.Equal(*before.DueAt) || *o.Owner != g.owner || o.Seq != before.Seq+1 {
				t.Fatalf("%v %+v", err, o)
			}
			if moved := g.move(t, []orders.Order{before}); len(moved) > 0 {
				t.Errorf("its driver moved past the request: %+v", moved)
			}
			g.advance(t, fsm.Canceled, "driven")
			b.undone(t, "driven", way)
		})
	}
}

// undone checks that an order was canceled, went this way, and that nothing it did stands.
func (b *bundle) undone(t testing.TB, orderID string, way []string) {
	t.Helper()
	if got := states(t, b.Pool, orderID); !slices.Equal(got, way) {
		t.Errorf("went %q, want %q", got, way)
	}
	standing := value[string](t, b.Pool, `SELECT format('%s charges, %s reservations, %s reserved, %s on hand',
		(SELECT count(*) FROM books.charges WHERE order_id = $1 AND refunded_at IS NULL),
		(SELECT count(*) FROM books.reservations WHERE order_id = $1 AND released_at IS NULL),
		reserved, on_hand) FROM books.inventory WHERE item = 'widget'`, orderID)
	if standing != "0 charges, 0 reservations, 0 reserved, 5 on hand" {
		t.Error(standing)
	}
	proveBooks(t, b.Pool)
}

func TestCancelDoesNotApply(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.setStock(t, "none", 0)
	b.process(t, request("completed"))
	b.process(t, withItem("none", []engine.Input{request("failed")})[0])
	b.hold(t, fsm.Charging, "canceled")
	b.cancel(t, engine.Request{OrderID: "canceled"})
	g := newGhost(b.Pool)
	b.setStock(t, "widget", 0)
	g.admit(t, time.Minute, "refunding") // out of stock
	g.advance(t, fsm.Refunding, "refunding")
	for _, id := range []string{"completed", "failed", "canceled", "refunding"} {
		for name, s := range map[string]engine.Request{
			"":                   {OrderID: id},
			" with a request id": {OrderID: id, RequestID: "1"},
			" as a dry run":      {OrderID: id, DryRun: true},
		} {
			b.writesNothing(t, func() {
				s.Verb = orders.Cancel
				_, err := b.engine.Do(t.Context(), s)
				var refusal *orders.NotApplicable
				if !errors.As(err, &refusal) || string(refusal.Order.Status) != id || refusal.Verb != "cancel" {
					t.Errorf("cancel what is %s%s: %v", id, name, err)
					return
				}
				if allowed := orders.AllowedActions(&refusal.Order); slices.Contains(allowed, "cancel") {
					t.Errorf("%s allows %q", id, allowed)
				}
			})
		}
	}
	if _, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "nobody's"}); !errors.Is(err, orders.ErrNotFound) {
		t.Error(err)
	}
}

func (b *bundle) cancel(t testing.TB, s engine.Request) orders.Order {
	t.Helper()
	s.Verb = orders.Cancel
	order, err := b.engine.Do(t.Context(), s)
	if err != nil {
		t.Fatalf("cancel %q: %v", s.OrderID, err)
	}
	return order
}

func TestCancelConditions(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.setStock(t, "widget", 5)
	b.hold(t, fsm.Reserving, "order")
	seq := newGhost(b.Pool).stored(t, "order")[0].Seq
	stale := seq - 1
	b.writesNothing(t, func() {
		for _, s := range []engine.Request{
			{OrderID: "order", IfSeq: &stale},
			{OrderID: "order", IfSeq: &stale, RequestID: "1"},
			{OrderID: "order", IfSeq: &stale, DryRun: true},
		} {
			s.Verb = orders.Cancel
			if _, err := b.engine.Do(t.Context(), s); !errors.Is(err, orders.ErrPrecondition) {
				t.Errorf("%+v: %v", s, err)
			}
		}
		for _, ifSeq := range []*int32{nil, &seq} {
			order := b.cancel(t, engine.Request{OrderID: "order", IfSeq: ifSeq, DryRun: true})
			if order.Status != fsm.Reserving || order.Hold != nil || text(order.StopRequested) != "cancel" || order.Seq != seq {
				t.Errorf("dry run: %+v", order)
			}
		}
	})
	first := b.cancel(t, engine.Request{OrderID: "order", IfSeq: &seq, RequestID: "1"})
	if first.Status != fsm.Canceled {
		t.Errorf("%+v", first)
	}
	b.writesNothing(t, func() {
		for _, ifSeq := range []*int32{nil, &seq, &first.Seq} {
			if again := b.cancel(t, engine.Request{OrderID: "order", IfSeq: ifSeq, RequestID: "1"}); asJSON(t, again) != asJSON(t, first) {
				t.Errorf("first %s\nagain %s", asJSON(t, first), asJSON(t, again))
			}
		}
		if _, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "order", RequestID: "2"}); err == nil {
			t.Error("canceled twice")
		}
	})
	b.hold(t, fsm.Charging, "another") // the id is that of a request for one order
	if order := b.cancel(t, engine.Request{OrderID: "another", RequestID: "1"}); order.Status != fsm.Canceled {
		t.Errorf("%+v", order)
	}
	b.undone(t, "order", canceledWay[fsm.Reserving])
}

// An order that was taken over too often is held; the request to stop it must get it
// driven again, not held again.
func TestCancelAfterTooManyTakeOvers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hold(t, fsm.Reserving, "tired")
	b.exec(t, "UPDATE orders SET take_overs = 4 WHERE order_id = 'tired'")
	if o := b.cancel(t, engine.Request{OrderID: "tired"}); o.Status != fsm.Canceled {
		t.Errorf("status %s, hold %v", o.Status, o.Hold)
	}
}
