package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// basket asks for lines at 99.99 in all.
func basket(orderID string, lines ...orders.Line) engine.Input {
	in := engine.Input{OrderID: orderID, Amount: decimal.MustParse("99.99")}
	for _, l := range lines {
		if l.Kind == "" {
			in.Quantity += l.Quantity
		}
	}
	in.Lines = orders.FormatLines(lines)
	return in
}

func units(item string, quantity int32) orders.Line {
	return orders.Line{Item: item, Quantity: quantity}
}

// verifies is pawl verify.
func (b *bundle) verifies(t *testing.T) {
	t.Helper()
	report, err := books.Verify(t.Context(), openPool(t, b.URL), books.Options{})
	assert.True(t, err == nil && report.OK(), report, err)
}

func TestOrderWithLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "cup", 5)
	in := basket("basket", units("tea", 2), units("cup", 1), units("tea", 1), orders.Line{Item: "by air", Quantity: 1, Kind: orders.LineShipping})
	order := b.process(t, in)
	b.sameAsStored(t, order)
	isNow(t, order, fsm.Completed)
	assert.True(t, string(order.Lines) == in.Lines && order.Item == "" && order.Quantity == 4, order)
	b.stock(t, "cup", orders.Stock{Item: "cup", OnHand: 4, Sold: 1, Tracked: true})
	b.stock(t, "tea", orders.Stock{Item: "tea", Sold: 3})

	isNow(t, b.process(t, basket("short", units("tea", 1), units("cup", 5))), fsm.Failed)
	b.stock(t, "tea", orders.Stock{Item: "tea", Sold: 3})
	for item, want := range map[string][]string{"cup": {"short", "basket"}, "tea": {"short", "basket"}, "by air": nil} {
		page, _, err := b.engine.Orders.List(t.Context(), orders.Filter{Item: item, Limit: 10})
		assert.NoError(t, err)
		var found []string
		for _, o := range page {
			found = append(found, o.OrderID)
		}
		assert.Equal(t, found, want, "orders for", item)
	}
	proveBooks(t, b.Pool)
	b.verifies(t)
}

func differ(pointer, stored, sent string) orders.Difference {
	return orders.Difference{Pointer: pointer, Stored: stored, Sent: sent}
}

func TestLinesThatDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	five := decimal.MustParse("5.00")
	b.process(t, basket("basket", units("tea", 2), orders.Line{Item: "cup", Quantity: 1, Amount: &five}))
	b.process(t, request("widget"))
	for _, c := range []struct {
		in   engine.Input
		want []orders.Difference
	}{
		{basket("basket", units("tea", 2), units("cup", 1)), nil},
		{basket("basket", units("tea", 3), units("mug", 1)), []orders.Difference{differ("/lines/0/quantity", "2", "3"), differ("/lines/1/item", "cup", "mug")}},
		{basket("basket", units("tea", 2)), []orders.Difference{differ("/lines/1", `[{"item":"cup","quantity":1,"amount":"5.00"}]`, "")}},
		{basket("basket", units("tea", 2), units("cup", 1), units("mug", 1)), []orders.Difference{differ("/lines/2", "", `[{"item":"mug","quantity":1}]`)}},
		{basket("basket", units("tea", 2), orders.Line{Item: "cup", Quantity: 1, Kind: "fee"}), []orders.Difference{differ("/lines/1/kind", "item", "fee")}},
		{engine.Input{OrderID: "basket", Amount: decimal.MustParse("99.99"), Item: "tea"}, []orders.Difference{differ("/lines/1", `[{"item":"cup","quantity":1,"amount":"5.00"}]`, "")}},
		{basket("widget", units("widget", 1), units("cup", 1)), []orders.Difference{differ("/lines/1", "", `[{"item":"cup","quantity":1}]`)}},
	} {
		_, err := b.engine.Process(t.Context(), c.in)
		var differences []orders.Difference
		if conflict, ok := errors.AsType[*orders.Conflict](err); ok {
			differences = conflict.Differences
		} else {
			assert.NoError(t, err)
		}
		assert.Equal(t, differences, c.want, c.in.Lines)
	}
}

// TestScarceBaskets has many callers fill baskets with few items, in any order, at two replicas. Nothing comes back, so an
// order that was refused must want more of an item than is left in the end.
func TestScarceBaskets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.replica(t, engine.Config{})
	const items, callers, each = 20, 64, 8
	for n := range items {
		b.setStock(t, fmt.Sprint("item ", n), 30)
	}
	answers := make(chan answer, callers*each)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for n := range each {
				id := fmt.Sprintf("%d/%d", caller, n)
				var lines []orders.Line
				for _, i := range rand.Perm(items)[:1+rand.IntN(8)] {
					lines = append(lines, units(fmt.Sprint("item ", i), 1+rand.Int32N(3)))
				}
				in := basket(id, lines...)
				if len(lines) == 1 && n%2 == 0 {
					in = request(id)
					in.Item, in.Quantity = lines[0].Item, lines[0].Quantity
				}
				e := []*engine.Engine{b.engine, other}[caller%2]
				order, err := insist(func() (orders.Order, error) { return deref(e.Process(t.Context(), in)) })
				answers <- answer{id, order, err}
			}
		})
	}
	wg.Wait()
	close(answers)
	left := map[string]int64{}
	for n := range items {
		stock, err := b.engine.Orders.StockOf(t.Context(), fmt.Sprint("item ", n))
		assert.NoError(t, err)
		assert.Equal(t, stock.Reserved, 0, stock.Item, "reserved")
		left[stock.Item] = stock.OnHand
	}
	outcomes := map[string]int{}
	for a := range answers {
		assert.NoError(t, a.err, a.orderID)
		outcomes[string(a.order.Status)+text(a.order.FailureCode)]++
		lines := orders.ParseLines(a.order.Lines)
		if lines == nil {
			lines = []orders.Line{units(a.order.Item, a.order.Quantity)}
		}
		short := slices.ContainsFunc(lines, func(l orders.Line) bool { return left[l.Item] < int64(l.Quantity) })
		assert.True(t, a.order.Status != fsm.Failed || short, a.orderID, "was refused", a.order.Lines, "and there is enough of all of it")
	}
	assert.True(t, len(outcomes) == 2 && outcomes["completednone"] != 0 && outcomes["failedout_of_stock"] != 0, "outcomes", outcomes)
	assert.Equal(t, value[int](t, b.Pool, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`), 0, "deadlocks")
	proveBooks(t, b.Pool)
	b.verifies(t)
}

// TestBasketsBesideALockedItem has a stock row stay locked: baskets without the item go on, and those with it afterwards.
func TestBasketsBesideALockedItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, item := range []string{"locked", "free", "other"} {
		b.setStock(t, item, 100)
	}
	unlock := b.lock(t, `SELECT FROM inventory WHERE item = 'locked' FOR UPDATE`)
	var with, without []engine.Input
	for n := range 10 {
		with = append(with, basket(fmt.Sprint("with ", n), units("free", 1), units("locked", 1)))
		without = append(without, basket(fmt.Sprint("without ", n), units("other", 1), units("free", 1)))
	}
	waiting := ask(t, b.engine, slices.Concat(with, withItem("locked", requests("single", 10)))...)
	b.completes(t, ask(t, b.engine, without...), len(without))
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE ended_as = 'completed' AND order_id NOT LIKE 'without%'`), 0, "orders of the locked item")
	unlock()
	b.completes(t, waiting, 20)
	proveBooks(t, b.Pool)
	b.verifies(t)
}

// TestLinesThatComeBack stops and fails orders with lines after their reservation.
func TestLinesThatComeBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "cup", 5)
	b.setStock(t, "tea", 0)
	isNow(t, b.process(t, basket("short", units("cup", 1), units("tea", 1))), fsm.Failed)
	b.setStock(t, "tea", 1)
	b.do(t, engine.Request{Verb: orders.Retry, OrderID: "short", Actor: "ann", RequestID: "again"})
	order, err := b.engine.Orders.Get(t.Context(), "short")
	assert.NoError(t, err)
	isNow(t, order, fsm.Completed)
	assert.Contains(t, string(order.Lines), `"tea"`, order.Lines)
	b.stock(t, "cup", orders.Stock{Item: "cup", OnHand: 4, Sold: 1, Tracked: true})
	b.verifies(t)
}

// TestLinesAtAProvider has a provider do some of the steps, or all. One of its items is declined at the end.
func TestLinesAtAProvider(t *testing.T) {
	t.Parallel()
	for policy, reserved := range map[string]string{
		"charge: {executor: simulator, url: SIM}":  "ledger",
		"confirm: {executor: simulator, url: SIM}": "ledger",
		"reserve: {executor: simulator, url: SIM}": "simulator",
		"{charge: {executor: simulator, url: SIM}, reserve: {executor: simulator, url: SIM}, confirm: {executor: simulator, url: SIM}}": "simulator",
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.setStock(t, "cup", 5)
			s.use(t, policy)
			in := basket("basket", units("tea", 2), units("cup", 1))
			isNow(t, s.process(t, in), fsm.Completed)
			rows := value[string](t, s.Pool, `SELECT string_agg(concat_ws(' ', line, item, quantity, executor, state), ', ' ORDER BY line) FROM books.reservations`)
			assert.Equal(t, rows, fmt.Sprintf("1 cup 1 %s sold, 2 tea 2 %[1]s sold", reserved))
			page, _, err := s.engine.Orders.List(t.Context(), orders.Filter{Item: "cup", Limit: 10})
			assert.True(t, err == nil && len(page) == 1, len(page), "orders for the cup", err)
			for _, e := range s.sim.Books("basket") {
				assert.True(t, e.Item == "" && len(e.Lines) == 2 && e.Lines[0].Item == "tea", "sent", e.Subject)
			}
			if strings.Contains(policy, "confirm") {
				isNow(t, s.process(t, basket("declined", units("cup", 1), units("decline@confirm", 1))), fsm.Failed)
				released := value[int](t, s.Pool, `SELECT count(*) FROM books.reservations WHERE order_id = 'declined' AND state = 'released'`)
				assert.Equal(t, released, 2, "items released")
			}
			s.verifies(t)
		})
	}
}
