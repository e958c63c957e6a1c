package engine_test

import (
	"fmt"
	"sync"
	"testing"

	"pawl/engine"
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
	assert.Equal(t, *failed.FailureCode, "out_of_stock")
	s.called(t, "many")
	s.admit(t, order("both", "widget", 2))
	s.until(t, "both", "completed")
	s.setStock(t, "gone", 0)
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
	const callers, units = 1000, 100
	s := openShop(t, 1, engine.Config{RecoveryInterval: often})
	s.use(t, "charge: {executor: simulator, url: SIM, inFlight: 64}")
	s.faults(t, "slow:20ms@charge")
	s.setStock(t, "widget", units)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if _, err := s.engine.Process(t.Context(), request(fmt.Sprintf("o%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	count := func(where string) int { return value[int](t, s.Pool, `SELECT count(*)::int FROM books.`+where) }
	charged := count(`charges`)
	assert.Equal(t, count(`orders WHERE status = 'completed'`), units)
	assert.Equal(t, count(`orders WHERE status = 'failed' AND failure_code = 'out_of_stock'`), callers-units)
	if t.Logf("%d of %d were charged for %d units", charged, callers, units); charged > callers/2 {
		t.Errorf("%d charges of %d orders for %d units", charged, callers, units)
	}
}
