package faults

import (
	"testing"

	"pawl/internal/simulator"
)

// stripeCells are those of a charge by Stripe: for each of its requests what may go wrong with it, and how orders end. The
// other steps have cells of their own, but for a capture.
func stripeCells(executor string) (all []cell) {
	undo := "refund" // of money that was taken
	if executor == stripeLater {
		undo = "cancel" // of money that is on hold
		all = append(all, stripeDoing("confirm", "capture")...)
	}
	all = append(all, stripeDoing("charge", "confirm")...)
	asks := executor == stripeNow || repeated() // the requests that are the same whenever the money is taken
	for _, rule := range undoing {              // an intent that is made is no effect: what goes wrong with it is what goes wrong with an undo
		ends := "completed"
		switch rule.Fault {
		case simulator.Decline, simulator.Error, simulator.ErrorAfter: // with this key there will never be one
			ends = "failed"
		default:
		}
		if asks {
			all = append(all, newCell("charge", "create", rule, ends))
		}
	}
	for _, rule := range undoing {
		if rule.Fault != simulator.Decline {
			all = append(all, newCell("charge", undo, rule, "failed").refusedAt("reserve"))
		}
		if asks && rule.Fault != simulator.Decline && rule.Fault != simulator.Slow { // nobody hears of the charge, and then of its state
			c := newCell("charge", "read", rule, "completed")
			c.rules = append(c.rules, simulator.Rule{Fault: simulator.TimeoutAfter, Times: 1, Step: "charge", Operation: "confirm", OrderPrefix: c.name})
			all = append(all, c)
		}
	}
	never := map[string]string{"refund": "held: undo_refused", "cancel": "held: retries_exhausted"}[undo] // what can't be canceled may be charged yet
	return append(all, newCell("charge", undo, simulator.Rule{Fault: simulator.Decline}, never).refusedAt("reserve"))
}

func stripeDoing(step, request string) (all []cell) {
	for _, rule := range doing {
		all = append(all, newCell(step, request, rule, "completed"))
	}
	for _, rule := range refusing {
		all = append(all, newCell(step, request, rule, "failed"))
	}
	return append(all,
		newCell(step, request, simulator.Rule{Fault: simulator.Error}, "held: retries_exhausted"),
		newCell(step, request, simulator.Rule{Fault: simulator.Error, Status: 503, Delay: 1}, "held: retries_exhausted"))
}

// refusedAt has the orders of a cell refused at a step, so that what was done before it is undone.
func (c cell) refusedAt(step string) cell {
	c.rules = append(c.rules, simulator.Rule{Fault: simulator.Decline, Step: step, OrderPrefix: c.name})
	return c
}

// TestMatrixOfStripe is TestMatrixOfFaults for charges by Stripe's API.
func TestMatrixOfStripe(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("replicas that take the money at once", matrixOfFaults(stripeNow, several()))
	t.Run("a replica that captures it at the end", matrixOfFaults(stripeLater, 1))
	if repeated() {
		t.Run("a replica that takes the money at once", matrixOfFaults(stripeNow, 1))
		t.Run("replicas that capture it at the end", matrixOfFaults(stripeLater, several()))
	}
}

// TestMatrixOfKillsAtStripe is TestMatrixOfKills for charges by Stripe's API.
func TestMatrixOfKillsAtStripe(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("a lone replica, and one that comes after it", func(t *testing.T) {
		t.Parallel()
		matrixOfKills(t, stripeLater, 0)
	})
	t.Run("one of several", func(t *testing.T) {
		t.Parallel()
		matrixOfKills(t, stripeNow, several()-1)
	})
}

// TestStripeThatBreaksTheContract charges an order whose payment intent was canceled. Nothing that the service does can
// keep it from that; the comparison of the books names the order.
func TestStripeThatBreaksTheContract(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, stripeNow, callLimit)
	s.faults(simulator.Rule{Fault: simulator.LateAfterVoid, Step: "charge", Delay: longest, OrderPrefix: "late"})
	s.open(1)
	s.order("good")
	s.order("late")
	s.lateCharge()
}
