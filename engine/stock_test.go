package engine_test

import (
	"fmt"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

func TestOutOfStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 2)
	in := request("large")
	in.Quantity = 3
	order := b.process(t, in)
	b.sameAsStored(t, order)
	if o := order; o.Status != fsm.Failed || text(o.FailureStep) != "reserve" || text(o.FailureCode) != "out_of_stock" ||
		text(o.Outcome) != "failed" || o.FinishedAt == nil {
		t.Errorf("%+v", o)
	}
	if order.ChargedAt == nil || order.RefundedAt == nil || order.ReservedAt != nil || order.ReleasedAt != nil {
		t.Errorf("%+v", order)
	}
	in.OrderID, in.Quantity = "fits", 2
	if order := b.process(t, in); order.Status != fsm.Completed {
		t.Errorf("%+v", order)
	}
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 2, Tracked: true})
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
				switch o := order; {
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
	stock, err := b.engine.Orders.StockOf(t.Context(), "widget")
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
func (b *bundle) stock(t testing.TB, item string, want orders.Stock) {
	t.Helper()
	got, err := b.engine.Orders.StockOf(t.Context(), item)
	if want.Version == 0 { // that of as many sales as there were batches
		want.Version = got.Version
	}
	if err != nil || got != want {
		t.Errorf("%v\nis   %+v\nwant %+v", err, got, want)
	}
}
