package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

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
			if err != nil || order.Status != fsm.Canceled {
				t.Errorf("%v %+v", err, order)
			}
		})
	}
	callers.Wait()
	// Of two requests the second joins the first, and is known by its id too, unless everything was over.
	asked := verbs(t, b.Pool, "order")
	if !slices.Equal(asked, []string{"paused", "cancel"}) && !slices.Equal(asked, []string{"paused", "cancel", "cancel"}) {
		t.Errorf("%q", asked)
	}
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
	if ended[fsm.Completed]+ended[fsm.Canceled] != 8*rounds || seldom() {
		t.Errorf("%v", ended)
	}
	t.Logf("%v", ended)
	standing := column[string](t, b.Pool, `SELECT o.order_id || ' ' || o.status FROM books.orders AS o
		LEFT JOIN books.charges AS c ON c.order_id = o.order_id AND c.refunded_at IS NULL
		LEFT JOIN books.reservations AS r ON r.order_id = o.order_id AND r.released_at IS NULL
		WHERE (o.status = 'completed') <> (c.order_id IS NOT NULL) OR (o.status = 'completed') <> (r.order_id IS NOT NULL)
		OR o.status = 'completed' AND o.stop_requested IS NOT NULL`)
	if len(standing) > 0 {
		t.Errorf("%q", standing)
	}
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
	if late != nil && canceled.Status != fsm.Completed || late == nil && canceled.Status != fsm.Canceled {
		t.Errorf("%s: cancel says %v, %s", r.orderID, err, canceled.Status)
	}
	a := <-processed
	if a.err != nil || a.order.Status != canceled.Status {
		t.Errorf("%s: process says %v %s, cancel says %v %s", r.orderID, a.err, a.order.Status, err, canceled.Status)
	}
	return canceled.Status
}
