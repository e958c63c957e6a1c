package engine_test

import (
	"fmt"

	"pawl/engine"
	"pawl/fsm"
)

// model is the service as it should be, without a database, without time, and with one order moving at a time.
type model struct {
	orders map[string]*modelOrder
	stock  map[string]*modelStock
}

type modelOrder struct {
	input   engine.Input
	status  fsm.State
	outcome fsm.State
	driven  bool // by a replica that does no more, under a lease that has not ended
	watched bool // some engine has waited for it, and may take it over when the lease ends

	charged, refunded, reserved, released, outOfStock, stopped bool
}

type modelStock struct {
	onHand, reserved, sold, version int64
	tracked                         bool
}

func (m *model) admit(in engine.Input) *modelOrder {
	o := &modelOrder{input: in, status: fsm.Charging}
	m.orders[in.OrderID] = o
	return o
}

// finish takes an order to its end.
func (m *model) finish(o *modelOrder) {
	for !o.status.Final() {
		m.step(o)
	}
}

// advance takes an order forward to a state, or to where it is turned back.
func (m *model) advance(o *modelOrder, to fsm.State) {
	for o.status != to && !o.status.Undoing() {
		m.step(o)
	}
}

func (m *model) step(o *modelOrder) {
	quantity := int64(o.input.Quantity)
	switch o.status {
	case fsm.Charging:
		if o.stopped {
			o.status = fsm.Canceled
			return
		}
		o.charged, o.status = true, fsm.Reserving
	case fsm.Reserving:
		o.status = m.reserve(o, quantity)
	case fsm.Confirming:
		if o.stopped {
			o.status, o.outcome = fsm.Releasing, fsm.Canceled
			return
		}
		s := m.stock[o.input.Item]
		s.reserved -= quantity
		s.sold += quantity
		s.version++
		if s.tracked {
			s.onHand -= quantity
		}
		o.status = fsm.Completed
	case fsm.Releasing:
		m.stock[o.input.Item].reserved -= quantity
		o.released, o.status = true, fsm.Refunding
	case fsm.Refunding:
		o.refunded, o.status = true, o.outcome
	default:
		panic("no move leads out of " + string(o.status))
	}
}

func (m *model) reserve(o *modelOrder, quantity int64) fsm.State {
	s := m.stock[o.input.Item]
	switch {
	case o.stopped:
		o.outcome = fsm.Canceled
		return fsm.Refunding
	case s != nil && s.tracked && s.onHand-s.reserved < quantity:
		o.outcome, o.outOfStock = fsm.Failed, true
		return fsm.Refunding
	case s == nil:
		s = &modelStock{version: 1}
		m.stock[o.input.Item] = s
	}
	s.reserved += quantity
	o.reserved = true
	return fsm.Confirming
}

// cancel asks an order to stop and says whether that applies.
func (m *model) cancel(o *modelOrder) bool {
	switch {
	case o.status.Final():
		return false
	case o.stopped:
		return true // waits with whoever asked first
	case o.status.Undoing():
		return false
	}
	o.stopped = true
	if !o.driven {
		m.finish(o)
	}
	return true
}

// setStock says what comes of it: set, changed (another version) or too low.
func (m *model) setStock(item string, onHand int64, ifVersion *int64) string {
	s := m.stock[item]
	switch {
	case s == nil && ifVersion == nil:
		m.stock[item] = &modelStock{onHand: onHand, version: 1, tracked: true}
	case s == nil || ifVersion != nil && *ifVersion != s.version:
		return "changed"
	case s.reserved > onHand:
		return "too low"
	default:
		s.onHand, s.tracked, s.version = onHand, true, s.version+1
	}
	return "set"
}

// adjustStock says what comes of it: adjusted or too low.
func (m *model) adjustStock(item string, change int64) string {
	s := m.stock[item]
	switch {
	case s == nil && change < 0, s != nil && s.onHand+change < s.reserved:
		return "too low"
	case s == nil:
		m.stock[item] = &modelStock{onHand: change, version: 1, tracked: true}
	default:
		s.onHand, s.tracked, s.version = s.onHand+change, true, s.version+1
	}
	return "adjusted"
}

// String is what a caller is told of the order.
func (o *modelOrder) String() string {
	word := func(is bool, word string) string {
		if is {
			return word
		}
		return "none"
	}
	return fmt.Sprintf("%s charged %v refunded %v reserved %v released %v failure %s stop %s", o.status, o.charged, o.refunded,
		o.reserved, o.released, word(o.outOfStock, "out_of_stock"), word(o.stopped, "cancel"))
}

// booked is what the books say of the order.
func (o *modelOrder) booked() string {
	amount, quantity := map[bool]string{true: o.input.Amount.String(), false: "0"}, map[bool]int32{true: o.input.Quantity}
	return fmt.Sprintf("%s charged %s refunded %s reserved %d released %d", o.status, amount[o.charged], amount[o.refunded],
		quantity[o.reserved], quantity[o.released])
}
