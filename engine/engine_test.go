package engine_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
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
		if went := strings.Join(states(t, b.Pool, c.orderID), " "); went != c.went || !strings.HasSuffix(went, " "+string(o.Status)) {
			t.Errorf("%s: went %s, told %s", c.orderID, went, o.Status)
		}
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
	p := newProvider(t)
	const all, none = "charge 1 reserve 1 confirm 1", "charge 0 reserve 0 confirm 0"
	tests := []struct {
		name   string
		rules  []simulator.Rule
		status fsm.State
		stands string
	}{
		{"everything goes well", nil, fsm.Completed, all},
		{"the charge is declined", rules("charge", simulator.Decline), fsm.Failed, none},
		{"the reservation is refused", rules("reserve", simulator.Decline), fsm.Failed, none},
		{"the confirmation is refused", rules("confirm", simulator.Decline), fsm.Failed, none},
		{"the charge fails twice", twice("charge", simulator.Error), fsm.Completed, all},
		{"the reservation is not answered, before its effect", twice("reserve", simulator.TimeoutBefore), fsm.Completed, all},
		{"the reservation is not answered, after its effect", twice("reserve", simulator.TimeoutAfter), fsm.Completed, all},
		{"the answer of the confirmation is cut off", twice("confirm", simulator.CutAfter), fsm.Completed, all},
		{"the connection is refused", twice("charge", simulator.RefuseConnection), fsm.Completed, all},
		{"nothing was done, twice", twice("charge", simulator.NotDone), fsm.Completed, all},
		{"the undo of the charge fails twice", append(rules("reserve", simulator.Decline),
			simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo", Times: 2}), fsm.Failed, none},
		{"the undo of the charge is not answered", append(rules("confirm", simulator.Decline),
			simulator.Rule{Fault: simulator.TimeoutAfter, Step: "charge", Operation: "undo", Times: 1}), fsm.Failed, none},
	}
	var faults []simulator.Rule
	for _, test := range tests {
		for _, rule := range test.rules {
			rule.OrderPrefix = test.name + "."
			faults = append(faults, rule)
		}
	}
	p.fail(t, faults...)
	b := remote(t, engine.Config{RecoveryInterval: often}, p.within(2*time.Second, "")) // some are never answered
	var callers sync.WaitGroup
	for _, test := range tests {
		callers.Go(func() {
			o, err := insist(func() (orders.Order, error) { return b.engine.Process(t.Context(), request(test.name+".")) })
			if err != nil || o.Status != test.status {
				t.Errorf("%s: ended %s, want %s: %v, %v", test.name, o.Status, test.status, o, err)
			}
			assert.Equal(t, p.standing(test.name+"."), test.stands, test.name, "at the provider", p.Books(test.name+"."))
		})
	}
	callers.Wait()
	if sum := p.Summary(); !sum.OK() {
		t.Errorf("something happened twice: %+v", sum)
	}
	b.settled(t)
}

func rules(step string, fault simulator.Fault) []simulator.Rule {
	return []simulator.Rule{{Fault: fault, Step: step}}
}

func twice(step string, fault simulator.Fault) []simulator.Rule {
	return []simulator.Rule{{Fault: fault, Step: step, Times: 2}}
}
