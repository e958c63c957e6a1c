package engine_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"pawl/internal/orders"
	"pawl/test/assert"
)

// TestOrders shows where orders go whose steps the database does, and what its books then have of charges, refunds and
// reservations.
func TestOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "rare", 1)
	for _, c := range []struct{ orderID, item, went, stands string }{
		{"charged, reserved and confirmed", "widget", "charging reserving confirming completed", "1 0 1"},
		{"the last one", "rare", "charging reserving confirming completed", "1 0 1"},
		{"out of stock, and refunded", "rare", "charging reserving refunding failed", "1 1 0"},
	} {
		in := request(c.orderID)
		in.Item = c.item
		o := b.process(t, in)
		b.writesNothing(t, func() { b.sameAsStored(t, b.process(t, in)) }) // asked again, nothing happens again
		went := strings.Join(states(t, b.Pool, c.orderID), " ")
		assert.True(t, went == c.went && strings.HasSuffix(went, " "+string(o.Status)), c.orderID, "went", went, "told", o.Status)
		stands := value[string](t, b.Pool, `SELECT concat_ws(' ', (SELECT count(*) FROM books.charges WHERE order_id = $1),
			(SELECT count(*) FROM books.refunds WHERE order_id = $1), (SELECT count(*) FROM books.reservations WHERE order_id = $1))`, c.orderID)
		assert.Equal(t, stands, c.stands, c.orderID, "charges, refunds and reservations are")
	}
	proveBooks(t, b.Pool)
}

// TestOrderAtAProvider shows how an order ends, and what then stands at the provider that does its steps, whatever goes
// wrong on the way.
func TestOrderAtAProvider(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, strings.ReplaceAll(eager, "timeout: 1m", "timeout: 2s")) // some are never answered
	tests := []struct {
		name   string
		faults string // in the simulator's short form
		want   string
	}{
		{"everything goes well", "", "completed: " + allStands},
		{"the charge is declined", "decline@charge", "failed: " + noneStands},
		{"the reservation is refused", "decline@reserve", "failed: " + noneStands},
		{"the confirmation is refused", "decline@confirm", "failed: " + noneStands},
		{"the charge fails twice", "error2@charge", "completed: " + allStands},
		{"the reservation is not answered, before its effect", "timeout-before2@reserve", "completed: " + allStands},
		{"the reservation is not answered, after its effect", "timeout-after2@reserve", "completed: " + allStands},
		{"the answer of the confirmation is cut off", "cut-after2@confirm", "completed: " + allStands},
		{"the connection is refused", "refuse-connection2@charge", "completed: " + allStands},
		{"nothing was done, twice", "not-done2@charge", "completed: " + allStands},
		{"the undo of the charge fails twice", "decline@reserve error2@charge/undo", "failed: " + noneStands},
		{"the undo of the charge is not answered", "decline@confirm timeout-after1@charge/undo", "failed: " + noneStands},
	}
	var faults []string
	for i, test := range tests {
		for _, fault := range strings.Fields(test.faults) {
			faults = append(faults, fmt.Sprintf("%s,order=%d.", fault, i))
		}
	}
	s.faults(t, faults...)
	var callers sync.WaitGroup
	for i, test := range tests {
		callers.Go(func() {
			id := fmt.Sprintf("%d.", i)
			o, err := insist(func() (orders.Order, error) { return deref(s.engine.Process(t.Context(), request(id))) })
			ends := string(o.Status) + ": " + s.standing(id)
			assert.True(t, err == nil && ends == test.want, test.name, ends, "want", test.want, err, s.sim.Books(id))
		})
	}
	callers.Wait()
	s.settled(t)
}
