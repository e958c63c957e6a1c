package engine_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

func TestSetStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.engine.Orders.StockOf(t.Context(), "widget"); !errors.Is(err, orders.ErrNotFound) {
		t.Error(err)
	}
	set := func(onHand, version int64) (orders.Stock, error) {
		return b.engine.ChangeStock(t.Context(), setTo("widget", onHand, version))
	}
	b.writesNothing(t, func() {
		if _, err := set(5, 1); !errors.Is(err, orders.ErrPrecondition) {
			t.Errorf("a version of an item that is not there: %v", err)
		}
	})
	b.process(t, request("untracked"))
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 1, Version: 2})
	for i, onHand := range []int64{5, 7, 7, 0, 9, 1 << 39} {
		version := int64(i) + 2
		want := orders.Stock{Item: "widget", OnHand: onHand, Sold: 1, Tracked: true, Version: version + 1}
		if got, err := set(onHand, version); err != nil || got != want {
			t.Errorf("%v\nis   %+v\nwant %+v", err, got, want)
		}
		b.stock(t, "widget", want)
	}
	b.writesNothing(t, func() {
		for _, stale := range []int64{0, 1, 7, 9} {
			if _, err := set(3, stale); !errors.Is(err, orders.ErrPrecondition) {
				t.Errorf("version %d: %v", stale, err)
			}
		}
	})
	proveBooks(t, b.Pool)
}

func TestSetStockTooLow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hold(t, fsm.Confirming, "one")
	b.hold(t, fsm.Confirming, "two")
	b.writesNothing(t, func() {
		if _, err := b.engine.ChangeStock(t.Context(), setTo("widget", 1, 0)); !errors.Is(err, orders.ErrPrecondition) {
			t.Error(err)
		}
		var low *orders.StockTooLow
		if _, err := b.engine.ChangeStock(t.Context(), setTo("widget", 1, 1)); !errors.As(err, &low) || low.Item.Reserved != 2 || low.Item.Tracked {
			t.Errorf("%v %+v", err, low)
		}
	})
	b.setStock(t, "widget", 2)
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 2, Reserved: 2, Tracked: true, Version: 2})
	if order := b.process(t, request("three")); order.Status != fsm.Failed {
		t.Errorf("all is reserved, and it is %s", order.Status)
	}
	b.cancel(t, engine.Request{OrderID: "one"})
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 2, Reserved: 1, Tracked: true, Version: 2})
	if order := b.process(t, request("four")); order.Status != fsm.Completed {
		t.Errorf("one was released, and it is %s", order.Status)
	}
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 1, Reserved: 1, Sold: 1, Tracked: true, Version: 3})
	proveBooks(t, b.Pool)
}

// One of those who set the stock at once with the version they saw wins; no setting is lost.
func TestSetStockAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 0)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for set := 0; set < 10; {
				seen, err := b.engine.Orders.StockOf(t.Context(), "widget")
				if err != nil {
					t.Error(err)
					return
				}
				_, err = b.engine.ChangeStock(t.Context(), setTo("widget", seen.OnHand+1, seen.Version))
				switch {
				case err == nil:
					set++
				case !errors.Is(err, orders.ErrPrecondition):
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 80, Tracked: true, Version: 81})
}

// Of those who set the stock at once, each only if the item is not there, one makes it.
func TestSetStockOfNewItemsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, item := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		var callers sync.WaitGroup
		var made atomic.Int32
		for onHand := range int64(4) {
			callers.Go(func() {
				switch _, err := b.engine.ChangeStock(t.Context(), setTo(item, onHand, 0)); {
				case err == nil:
					made.Add(1)
				case !errors.Is(err, orders.ErrPrecondition):
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if got, err := b.engine.Orders.StockOf(t.Context(), item); err != nil || made.Load() != 1 || got.Version != 1 {
			t.Errorf("made %d times: %+v, %v", made.Load(), got, err)
		}
	}
}

func TestStockList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	names := []string{"B", "a", "b", "b b", "c", "é", "日本", "👩"}
	for i, name := range names {
		b.setStock(t, name, int64(i))
	}
	for limit := int32(1); limit < 10; limit++ {
		if got := b.allItems(t, limit); !slices.Equal(got, names) {
			t.Errorf("%d at a time: %q", limit, got)
		}
	}
	page, err := b.engine.Orders.StockList(t.Context(), "b", 2)
	want := []orders.Stock{{Item: "b b", OnHand: 3, Tracked: true, Version: 1}, {Item: "c", OnHand: 4, Tracked: true, Version: 1}}
	if err != nil || !slices.Equal(page, want) {
		t.Errorf("%v\nis   %+v\nwant %+v", err, page, want)
	}
}

// allItems walks along the list.
func (b *bundle) allItems(t testing.TB, limit int32) (items []string) {
	t.Helper()
	for after := ""; ; after = items[len(items)-1] {
		page, err := b.engine.Orders.StockList(t.Context(), after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, stock := range page {
			items = append(items, stock.Item)
		}
		if len(page) < int(limit) {
			return items
		}
	}
}
