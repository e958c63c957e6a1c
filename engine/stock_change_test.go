package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// adjustment is one of somebody who says why.
func adjustment(item string, units int64, requestID string) engine.StockChange {
	return engine.StockChange{Item: item, Kind: engine.StockAdjustment, Units: units, Actor: "ann", Reason: "delivery", RequestID: requestID}
}

// TestStockIsNotSetAgainAfterItIsSold: one unit is set and sold, and whoever set it never got the answer. To set it again
// would sell what is not there.
func TestStockIsNotSetAgainAfterItIsSold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var absent int64
	set := engine.StockChange{Item: "widget", Kind: engine.StockSet, Units: 1, IfVersion: &absent, RequestID: "first"}
	for range 2 {
		if _, err := b.engine.ChangeStock(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	if o := b.process(t, request("one")); o.Status != fsm.Completed {
		t.Fatalf("the first order is %s", o.Status)
	}
	b.writesNothing(t, func() {
		if now, err := b.engine.ChangeStock(t.Context(), set); err != nil || now.OnHand != 0 {
			t.Errorf("set again by the same request: %+v, %v", now, err)
		}
		for _, version := range []int64{0, 1} {
			if _, err := b.engine.ChangeStock(t.Context(), setTo("widget", 1, version)); !errors.Is(err, orders.ErrPrecondition) {
				t.Errorf("set again at version %d: %v", version, err)
			}
		}
	})
	if o := b.process(t, request("two")); o.Status != fsm.Failed {
		t.Errorf("the second order is %s: there was one unit", o.Status)
	}
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 1, Tracked: true, Version: 2})
	proveBooks(t, b.Pool)
}

func TestAdjustStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, request("untracked"))
	for i, c := range []struct{ change, onHand int64 }{{10, 10}, {-2, 8}, {-7, 1}, {orders.StockMost - 1, orders.StockMost}, {4 - orders.StockMost, 4}} {
		got, err := b.engine.ChangeStock(t.Context(), adjustment("widget", c.change, fmt.Sprint(i)))
		if err != nil || got.OnHand != c.onHand || !got.Tracked || got.Version != int64(i)+3 {
			t.Errorf("%+d: %+v, %v", c.change, got, err)
		}
	}
	b.hold(t, fsm.Confirming, "holds one")
	b.writesNothing(t, func() {
		var low *orders.StockTooLow
		if _, err := b.engine.ChangeStock(t.Context(), adjustment("widget", -4, "low")); !errors.As(err, &low) || low.Pointer != "/change" {
			t.Errorf("less than is reserved: %v", err)
		}
		if _, err := b.engine.ChangeStock(t.Context(), adjustment("nowhere", -1, "low")); !errors.As(err, &low) {
			t.Errorf("less than nothing: %v", err)
		}
		if _, err := b.engine.ChangeStock(t.Context(), adjustment("widget", orders.StockMost, "high")); !errors.Is(err, orders.ErrStockTooHigh) {
			t.Errorf("more than anybody can count: %v", err)
		}
		if _, err := b.engine.ChangeStock(t.Context(), adjustment("widget", 3, "1")); !errors.Is(err, orders.ErrKeyReused) {
			t.Errorf("the request id of another change: %v", err)
		}
		if got, err := b.engine.ChangeStock(t.Context(), adjustment("widget", -2, "1")); err != nil || got.OnHand != 4 {
			t.Errorf("the same request: %+v, %v", got, err)
		}
	})
	moves, err := b.engine.Orders.StockMovements(t.Context(), "widget", orders.StockSpan{After: 3, Limit: 2})
	if err != nil || len(moves) != 2 || moves[0].Change != -2 || moves[0].OnHand != 8 || moves[0].Actor != "ann" ||
		text(moves[0].Reason) != "delivery" || moves[0].RequestID != "1" || moves[1].Version != 5 {
		t.Errorf("%v %+v", err, moves)
	}
	if _, err := b.engine.Orders.StockMovements(t.Context(), "nowhere", orders.StockSpan{Limit: 9}); !errors.Is(err, orders.ErrNotFound) {
		t.Error(err)
	}
	proveBooks(t, b.Pool)
}

// Of the same request that comes to two replicas at once, many times, one counts, whatever is sold meanwhile.
func TestAdjustStockAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := startEngine(t, b.URL, engine.Config{})
	b.setStock(t, "widget", 100)
	var callers sync.WaitGroup
	for n := range 80 {
		e := []*engine.Engine{b.engine, other}[n%2]
		callers.Go(func() {
			q := adjustment("widget", int64(n/8)+1, fmt.Sprint("delivery ", n/8))
			if n/8 >= 5 {
				q.Item = "new"
			}
			if _, err := e.ChangeStock(t.Context(), q); err != nil {
				t.Error(err)
			}
		})
		callers.Go(func() { b.process(t, request(fmt.Sprint("order ", n))) })
	}
	callers.Wait()
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 100 + 15 - 80, Sold: 80, Tracked: true})
	b.stock(t, "new", orders.Stock{Item: "new", OnHand: 40, Tracked: true, Version: 5})
	proveBooks(t, b.Pool)
}

// TestAdjustStockWhoseAnswerIsLost: it is answered, and done once.
func TestAdjustStockWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	b, p := setupWatchful(t, byCallers)
	for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushRequest, dbtest.HushReply} {
		for _, statement := range []string{"InventoryMove", "StockMovementByRequest"} {
			item := f.String() + " of " + statement
			b.setStock(t, item, 3)
			var sent atomic.Int32
			p.On(func(s string) fate {
				if s == statement && sent.Add(1) == 1 {
					return f
				}
				return passes
			})
			for range 2 {
				stock, err := b.engine.ChangeStock(t.Context(), adjustment(item, 4, "delivery"))
				if err != nil || stock.OnHand != 7 || stock.Version != 2 {
					t.Errorf("%s: %+v, %v", item, stock, err)
				}
			}
			if sent.Load() == 0 {
				t.Errorf("%s: not sent", item)
			}
		}
	}
	p.On(nil)
	proveBooks(t, b.Pool)
}
