package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// TestSoldOutIsNotCharged: an order whose item is sold out fails before the provider charges it. Other orders are charged:
// of untracked items, after more was put on the shelf, and those whose stock another system has.
func TestSoldOutIsNotCharged(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	s.use(t, atEndpoint("", "charge"))
	s.setStock(t, "widget", 2)
	order := func(id, item string, quantity int32) engine.Input {
		in := request(id)
		in.Item, in.Quantity = item, quantity
		return in
	}
	s.admit(t, order("many", "widget", 3))
	failed := s.until(t, "many", "failed")
	assert.Equal(t, *failed.FailureCode+", "+*failed.FailureDetail, "out_of_stock, an item was sold out before the charge: widget")
	s.called(t, "many")
	s.admit(t, order("both", "widget", 2))
	s.until(t, "both", "completed")
	s.setStock(t, "gone", 0)
	s.setStock(t, "cup", 3)
	s.admit(t, basket("basket", units("cup", 1), units("gone", 1)))
	s.admit(t, basket("repeated", units("cup", 2), units("lamp", 1), units("cup", 2)))
	s.admit(t, basket("served", units("cup", 2), units("lamp", 5), units("cup", 1)))
	s.until(t, "served", "completed")
	for _, short := range []string{"basket", "repeated"} {
		assert.Equal(t, *s.until(t, short, "failed").FailureCode, "out_of_stock")
		s.called(t, short)
	}
	s.admit(t, order("one", "gone", 1))
	s.until(t, "one", "failed")
	s.called(t, "one")
	s.admit(t, order("untracked", "lamp", 5))
	s.until(t, "untracked", "completed")
	s.setStock(t, "widget", 3)
	try := 0
	eventually(t, "it is served when there is more", func() bool { // what was seen is good for a moment
		try++
		o, err := s.engine.Do(t.Context(), engine.Request{OrderID: "many", Verb: "retry", RequestID: fmt.Sprint(try)})
		assert.NoError(t, err)
		return o.Status == "completed"
	})
}

// TestFewAreChargedInVain: of many callers for a few units, most are refused before they are charged. Exactly those few
// are served.
func TestFewAreChargedInVain(t *testing.T) {
	t.Parallel()
	s, charged := rush(t, []string{"widget"}, 100, request)
	assert.Equal(t, s.count(t, `orders WHERE status = 'completed'`), 100)
	assert.Equal(t, s.count(t, `orders WHERE status = 'failed' AND failure_code = 'out_of_stock'`), rushCallers-100)
	assert.True(t, charged <= rushCallers/2, charged, "charges of", rushCallers, "orders for 100 units")
}

// TestFewBasketsAreChargedInVain: the same for baskets of 1 to 5 of 20 scarce items.
func TestFewBasketsAreChargedInVain(t *testing.T) {
	t.Parallel()
	items := make([]string, 20)
	for i := range items {
		items[i] = fmt.Sprintf("item-%d", i)
	}
	s, charged := rush(t, items, 20, func(orderID string) engine.Input {
		var lines []orders.Line
		for _, i := range rand.Perm(len(items))[:1+rand.IntN(5)] {
			lines = append(lines, units(items[i], 1))
		}
		return basket(orderID, lines...)
	})
	completed := s.count(t, `orders WHERE status = 'completed'`)
	assert.Equal(t, s.count(t, `orders WHERE status = 'failed' AND failure_code = 'out_of_stock'`), rushCallers-completed)
	t.Logf("%d of them were completed", completed)
	assert.True(t, charged-completed <= rushCallers/2, charged, "charges of", rushCallers, "orders, of which", completed, "were completed")
}

const rushCallers = 1000

// rush has many callers ask for a few units of each item, and returns how many of them were charged.
func rush(t *testing.T, items []string, stock int64, in func(orderID string) engine.Input) (s *shop, charged int) {
	t.Helper()
	s = openShop(t, 1, engine.Config{RecoveryInterval: often})
	s.use(t, "charge: {executor: simulator, url: SIM, inFlight: 64}")
	s.faults(t, "slow:20ms@charge")
	for _, item := range items {
		s.setStock(t, item, stock)
	}
	var all sync.WaitGroup
	for i := range rushCallers {
		all.Go(func() {
			assert.Succeeds(t, assert.Err(s.engine.Process(t.Context(), in(fmt.Sprintf("o%d", i)))))
		})
	}
	all.Wait()
	charged = s.count(t, `charges`)
	t.Logf("%d of %d were charged for %d units each of %d items", charged, rushCallers, stock, len(items))
	return s, charged
}

func (b *bundle) count(t *testing.T, where string) int {
	t.Helper()
	return value[int](t, b.Pool, `SELECT count(*)::int FROM books.`+where)
}
