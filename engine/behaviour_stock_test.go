package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
)

func TestOutOfStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 2)
	in := request("large")
	in.Quantity = 3
	order := b.process(t, in)
	b.sameAsStored(t, order)
	if o := order.Order; o.Status != fsm.Failed || text(o.FailureStep) != "reserve" || text(o.FailureCode) != "out_of_stock" ||
		text(o.Outcome) != "failed" || o.FinishedAt == nil {
		t.Errorf("%+v", o)
	}
	if order.ChargedAt == nil || order.RefundedAt == nil || order.ReservedAt != nil || order.ReleasedAt != nil {
		t.Errorf("%+v", order)
	}
	if got := states(t, b.Pool, "large"); !slices.Equal(got, []string{"charging", "reserving", "refunding", "failed"}) {
		t.Errorf("went %q", got)
	}
	b.writesNothing(t, func() {
		if again := b.process(t, in); asJSON(t, again) != asJSON(t, order) {
			t.Errorf("first %s\nagain %s", asJSON(t, order), asJSON(t, again))
		}
	})
	if n := value[int](t, b.Pool, `SELECT count(*) FROM books.refunds`); n != 1 {
		t.Errorf("%d refunds", n)
	}
	in.OrderID, in.Quantity = "fits", 2
	if order := b.process(t, in); order.Order.Status != fsm.Completed {
		t.Errorf("%+v", order.Order)
	}
	b.stock(t, "widget", engine.Stock{Item: "widget", OnHand: 0, Reserved: 0, Tracked: true, Version: 1})
	proveBooks(t, b.Pool)
}

func TestNeverOversold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.replica(t, engine.Config{})
	b.setStock(t, "widget", 50)
	var mu sync.Mutex
	var sold, smallest int32 = 0, 100 // units sold, and the smallest order that was refused
	var callers sync.WaitGroup
	for caller := range 64 {
		callers.Go(func() {
			for n := range 3 {
				in := request(fmt.Sprintf("%d/%d", caller, n))
				in.Quantity = int32(1 + (caller+n)%5)
				order, err := []*engine.Engine{b.engine, other}[caller%2].Process(t.Context(), in)
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				switch o := order.Order; {
				case o.Status == fsm.Completed:
					sold += o.Quantity
				case o.Status == fsm.Failed && text(o.FailureCode) == "out_of_stock":
					smallest = min(smallest, o.Quantity)
				default:
					t.Errorf("%+v", o)
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	stock, err := b.engine.StockOf(t.Context(), "widget")
	if err != nil || stock.OnHand != int64(50-sold) || stock.Reserved != 0 {
		t.Errorf("sold %d, left %+v, %v", sold, stock, err)
	}
	if stock.OnHand >= int64(smallest) {
		t.Errorf("%d are left, and an order for %d was refused", stock.OnHand, smallest)
	}
	units := value[int32](t, b.Pool, `SELECT sum(quantity)::integer FROM books.reservations WHERE state = 'sold'`)
	if units != sold {
		t.Errorf("%d units sold in the books, callers were told %d", units, sold)
	}
	proveBooks(t, b.Pool)
}

// stock checks what is known of an item.
func (b *bundle) stock(t testing.TB, item string, want engine.Stock) {
	t.Helper()
	if got, err := b.engine.StockOf(t.Context(), item); err != nil || got != want {
		t.Errorf("%v\nis   %+v\nwant %+v", err, got, want)
	}
}

func TestSetStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.engine.StockOf(t.Context(), "widget"); !errors.Is(err, engine.ErrNotFound) {
		t.Error(err)
	}
	version := func(v int64) *int64 { return &v }
	set := func(onHand int64, ifVersion *int64) (engine.Stock, error) {
		return b.engine.SetStock(t.Context(), "widget", onHand, ifVersion)
	}
	b.writesNothing(t, func() {
		if _, err := set(5, version(1)); !errors.Is(err, engine.ErrPrecondition) {
			t.Errorf("a version of an item that is not there: %v", err)
		}
	})
	b.process(t, request("untracked"))
	b.stock(t, "widget", engine.Stock{Item: "widget", Version: 1})
	for _, c := range []struct {
		onHand    int64
		ifVersion *int64
		version   int64
	}{{5, nil, 2}, {7, version(2), 3}, {7, version(3), 4}, {0, nil, 5}, {9, version(5), 6}, {1 << 40, nil, 7}} {
		want := engine.Stock{Item: "widget", OnHand: c.onHand, Tracked: true, Version: c.version}
		if got, err := set(c.onHand, c.ifVersion); err != nil || got != want {
			t.Errorf("%v\nis   %+v\nwant %+v", err, got, want)
		}
		b.stock(t, "widget", want)
	}
	b.writesNothing(t, func() {
		for _, stale := range []int64{0, 1, 6, 8} {
			if _, err := set(3, version(stale)); !errors.Is(err, engine.ErrPrecondition) {
				t.Errorf("version %d: %v", stale, err)
			}
		}
		if _, err := set(-1, nil); err == nil || db.FaultOf(err) != db.Bad || errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("less than nothing: %v", err)
		}
	})
}

func TestSetStockTooLow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hold(t, fsm.Confirming, "one")
	b.hold(t, fsm.Confirming, "two")
	b.writesNothing(t, func() {
		for _, ifVersion := range []int64{0, 1} {
			_, err := b.engine.SetStock(t.Context(), "widget", 1, &ifVersion)
			var low *engine.StockTooLow
			if ifVersion == 0 {
				if !errors.Is(err, engine.ErrPrecondition) {
					t.Error(err)
				}
			} else if !errors.As(err, &low) || low.Item.Reserved != 2 || low.Item.Tracked {
				t.Errorf("%v %+v", err, low)
			}
		}
	})
	b.setStock(t, "widget", 2)
	b.stock(t, "widget", engine.Stock{Item: "widget", OnHand: 2, Reserved: 2, Tracked: true, Version: 2})
	if order := b.process(t, request("three")); order.Order.Status != fsm.Failed {
		t.Errorf("all is reserved, and it is %s", order.Order.Status)
	}
	b.cancel(t, engine.Stop{OrderID: "one"})
	b.stock(t, "widget", engine.Stock{Item: "widget", OnHand: 2, Reserved: 1, Tracked: true, Version: 2})
	if order := b.process(t, request("four")); order.Order.Status != fsm.Completed {
		t.Errorf("one was released, and it is %s", order.Order.Status)
	}
	b.stock(t, "widget", engine.Stock{Item: "widget", OnHand: 1, Reserved: 1, Tracked: true, Version: 2})
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
				seen, err := b.engine.StockOf(t.Context(), "widget")
				if err != nil {
					t.Error(err)
					return
				}
				_, err = b.engine.SetStock(t.Context(), "widget", seen.OnHand+1, &seen.Version)
				switch {
				case err == nil:
					set++
				case !errors.Is(err, engine.ErrPrecondition):
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	b.stock(t, "widget", engine.Stock{Item: "widget", OnHand: 80, Tracked: true, Version: 81})
}

func TestStockList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	names := []string{"B", "a", "b", "b b", "c", "é", "日本", "👩"}
	for i, name := range names {
		b.setStock(t, name, int64(i))
	}
	for limit := range int32(10) {
		var got []string
		for after, page := "", []engine.Stock(nil); limit > 0; after = page[len(page)-1].Item {
			var err error
			page, err = b.engine.StockList(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, stock := range page {
				if stock.OnHand != int64(slices.Index(names, stock.Item)) || !stock.Tracked {
					t.Errorf("%+v", stock)
				}
				got = append(got, stock.Item)
			}
			if len(page) < int(limit) {
				break
			}
		}
		if limit > 0 && !slices.Equal(got, names) {
			t.Errorf("%d at a time: %q", limit, got)
		}
	}
}
