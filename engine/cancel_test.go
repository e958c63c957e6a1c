package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
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
	assert.True(t, err == nil && len(moved) == 1, "hold", orderID, moved, err)
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
			assert.Require(t, err == nil && order.Status == fsm.Canceled, err, order)
			b.sameAsStored(t, order)
			b.undone(t, "held", way)
			said := value[string](t, b.Pool, `SELECT actor || ': ' || reason FROM books.transitions WHERE verb = 'cancel'`)
			assert.Equal(t, said, "ann: changed her mind")
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
			o := order
			assert.Require(t, err == nil && o.Status == state && text(o.StopRequested) == "cancel" && o.Fence == before.Fence &&
				o.DueAt.Equal(*before.DueAt) && *o.Owner == g.owner && o.Seq == before.Seq+1, err, o)
			moved := g.move(t, []orders.Order{before})
			assert.True(t, len(moved) == 0, "its driver moved past the request", moved)
			g.advance(t, fsm.Canceled, "driven")
			b.undone(t, "driven", way)
		})
	}
}

// undone checks that an order was canceled, went this way, and that nothing it did stands.
func (b *bundle) undone(t testing.TB, orderID string, way []string) {
	t.Helper()
	assert.Equal(t, states(t, b.Pool, orderID), way, "went")
	standing := value[string](t, b.Pool, `SELECT format('%s charges, %s reservations, %s reserved, %s on hand',
		(SELECT count(*) FROM books.charges WHERE order_id = $1 AND refunded_at IS NULL),
		(SELECT count(*) FROM books.reservations WHERE order_id = $1 AND released_at IS NULL),
		reserved, on_hand) FROM books.inventory WHERE item = 'widget'`, orderID)
	assert.Equal(t, standing, "0 charges, 0 reservations, 0 reserved, 5 on hand")
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
				allowed := orders.AllowedActions(&refusal.Order)
				assert.True(t, !slices.Contains(allowed, "cancel"), id, "allows", allowed)
			})
		}
	}
	assert.ErrorIs(t, assert.Err(b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "nobody's"})), orders.ErrNotFound)
}

func (b *bundle) cancel(t testing.TB, s engine.Request) orders.Order {
	t.Helper()
	s.Verb = orders.Cancel
	order, err := b.engine.Do(t.Context(), s)
	assert.NoError(t, err, "cancel", s.OrderID)
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
			assert.ErrorIs(t, assert.Err(b.engine.Do(t.Context(), s)), orders.ErrPrecondition, s)
		}
		for _, ifSeq := range []*int32{nil, &seq} {
			order := b.cancel(t, engine.Request{OrderID: "order", IfSeq: ifSeq, DryRun: true})
			assert.True(t, order.Status == fsm.Reserving && order.Hold == nil && text(order.StopRequested) == "cancel" && order.Seq == seq,
				"dry run", order)
		}
	})
	first := b.cancel(t, engine.Request{OrderID: "order", IfSeq: &seq, RequestID: "1"})
	assert.Equal(t, first.Status, fsm.Canceled, first)
	b.writesNothing(t, func() {
		for _, ifSeq := range []*int32{nil, &seq, &first.Seq} {
			assert.Equal(t, asJSON(t, b.cancel(t, engine.Request{OrderID: "order", IfSeq: ifSeq, RequestID: "1"})), asJSON(t, first),
				"first", "again")
		}
		assert.True(t, assert.Err(b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "order", RequestID: "2"})) != nil,
			"canceled twice")
	})
	b.hold(t, fsm.Charging, "another") // the id is that of a request for one order
	isNow(t, b.cancel(t, engine.Request{OrderID: "another", RequestID: "1"}), fsm.Canceled)
	b.undone(t, "order", canceledWay[fsm.Reserving])
}

// An order that was taken over too often is held; the request to stop it must get it
// driven again, not held again.
func TestCancelAfterTooManyTakeOvers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hold(t, fsm.Reserving, "tired")
	b.exec(t, "UPDATE orders SET take_overs = 4 WHERE order_id = 'tired'")
	isNow(t, b.cancel(t, engine.Request{OrderID: "tired"}), fsm.Canceled)
}

func TestCancelAtOnce(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.setStock(t, "widget", 5)
	b.hold(t, fsm.Confirming, "order")
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			order, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "order", RequestID: fmt.Sprint(i % 2)})
			var late *orders.NotApplicable // came when everything was over
			if errors.As(err, &late) {
				order, err = late.Order, nil
			}
			assert.True(t, err == nil && order.Status == fsm.Canceled, err, order)
		})
	}
	callers.Wait()
	// Of two requests the second joins the first, and is known by its id too, unless everything was over.
	asked := verbs(t, b.Pool, "order")
	assert.True(t, slices.Equal(asked, []string{"paused", "cancel"}) || slices.Equal(asked, []string{"paused", "cancel", "cancel"}), asked)
	b.undone(t, "order", canceledWay[fsm.Confirming])
}

// A cancel that meets a running order ends in one of two ways, and both sides are told the same one.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.replica(t, engine.Config{})
	ended := map[fsm.State]int{}
	rounds, looks := 0, 2
	seldom := func() bool { return ended[fsm.Completed] == 0 || ended[fsm.Canceled] == 0 }
	for began := time.Now(); rounds < times(15, 50) || seldom() && time.Since(began) < patience; rounds++ {
		if ended[fsm.Completed] == 0 {
			looks = min(looks*2, 100) // on a busy machine orders take long
		}
		var mu sync.Mutex
		var races sync.WaitGroup
		for i := range 8 {
			races.Go(func() {
				status := racing{b.engine, []*engine.Engine{b.engine, other}[i%2], fmt.Sprintf("race %d/%d", rounds, i), i * looks}.run(t)
				mu.Lock()
				defer mu.Unlock()
				ended[status]++
			})
		}
		races.Wait()
	}
	assert.True(t, ended[fsm.Completed]+ended[fsm.Canceled] == 8*rounds && !seldom(), ended)
	t.Logf("%v", ended)
	standing := column[string](t, b.Pool, `SELECT o.order_id || ' ' || o.status FROM books.orders AS o
		LEFT JOIN books.charges AS c ON c.order_id = o.order_id AND c.refunded_at IS NULL
		LEFT JOIN books.reservations AS r ON r.order_id = o.order_id AND r.released_at IS NULL
		WHERE (o.status = 'completed') <> (c.order_id IS NOT NULL) OR (o.status = 'completed') <> (r.order_id IS NOT NULL)
		OR o.status = 'completed' AND o.stop_requested IS NOT NULL`)
	assert.True(t, len(standing) == 0, standing)
	proveBooks(t, b.Pool)
}

// racing is an order that one engine drives and one cancels.
type racing struct {
	driver, canceler *engine.Engine
	orderID          string
	looks            int
}

// run processes the order and cancels it, from the first moment it can be or after some looks at it.
func (r racing) run(t testing.TB) fsm.State {
	t.Helper()
	processed := ask(t, r.driver, request(r.orderID))
	canceled, err := orders.Order{}, orders.ErrNotFound
	for range r.looks {
		_, _ = r.canceler.Orders.Get(t.Context(), r.orderID)
	}
	for errors.Is(err, orders.ErrNotFound) {
		canceled, err = r.canceler.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: r.orderID})
	}
	var late *orders.NotApplicable
	if errors.As(err, &late) {
		canceled = late.Order
	} else if err != nil {
		t.Errorf("%s: %v", r.orderID, err)
	}
	assert.True(t, (late == nil || canceled.Status == fsm.Completed) && (late != nil || canceled.Status == fsm.Canceled),
		r.orderID, "cancel says", err, canceled.Status)
	a := <-processed
	assert.True(t, a.err == nil && a.order.Status == canceled.Status,
		r.orderID, "process says", a.err, a.order.Status, "cancel says", err, canceled.Status)
	return canceled.Status
}

func TestPause(t *testing.T) {
	t.Parallel()
	t.Run("during a call records its answer and holds before the next step", func(t *testing.T) {
		t.Parallel()
		s := with(eager)(t)
		called, open := s.door.shut(t, "/charge")
		answers := ask(t, s.engine, request("order"))
		eventually(t, "a call is under way", func() bool { return called.Load() == 1 })
		paused := make(chan orders.Order, 1)
		go func() {
			order, err := s.engine.Do(t.Context(), asked(orders.Pause))
			assert.Succeeds(t, err)
			paused <- order
		}()
		eventually(t, "the pause is asked for", s.answers(t, 1, `SELECT count(*) FROM orders WHERE stop_requested = 'pause'`))
		open()
		o := <-paused
		assert.True(t, o.Status == fsm.Reserving && text(o.Hold) == "paused" && o.StopRequested == nil, brief(o))
		a := <-answers
		assert.True(t, a.err == nil && text(a.order.Hold) == "paused", a.err, "held", text(a.order.Hold))
		s.ends(t, s.do(t, asked(orders.Resume)), fsm.Completed)
	})
	t.Run("of an order that another replica drives can be taken back", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "order")
		q := asked(orders.Pause)
		q.Async = true
		o := b.do(t, q)
		assert.True(t, text(o.StopRequested) == "pause" && o.Hold == nil, o)
		q.Verb = orders.Resume
		if o := b.do(t, q); o.StopRequested != nil || *o.Owner != g.owner {
			t.Errorf("%+v", o)
		}
		g.advance(t, fsm.Completed, "order")
		b.verified(t)
	})
	answer := settled(fsm.Charge, engine.SettledDone, "ch_7")
	later := func(in *engine.Input) {
		in.StartAt, in.CompleteBy = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	}
	play(t, []scene{
		{"keeps an answer that comes meanwhile for the resumption", with(eager), acts{
			fails("callback-never@charge"), admits(), is("callback"),
			pause, does(answer, "charging paused"), refuses(answer, orders.RefusedAnswered),
			ends(asked(orders.Resume), fsm.Completed), shows(1, `SELECT count(*) FROM books.step_calls WHERE step = 'charge'`)}},
		{"does not stop the time of a deadline", with("{}"), acts{admits(later), pause, is("pending paused"),
			sql(`UPDATE orders SET complete_by = now()`), is("canceled")}},
		{"of a scheduled order ends in the wait for its time", with("{}"), acts{
			admits(later), pause, is("paused"), resume, is("scheduled"),
			shows(true, `SELECT due_at = start_at FROM orders`)}},
	})
}
