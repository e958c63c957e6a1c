package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestChargeOperationsAgainstModel asks two engines for captures, voids and refunds, of which some are refused, are not
// answered, or stay open. It compares every answer, and the provider's books after each, with a model.
func TestChargeOperationsAgainstModel(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	for _, name := range []string{"simulator", "http"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			policy, runs := capturesLater(t, s, name), 0
			dbtest.Check(t, func(rt *rapid.T) {
				runs++
				s.refunded = fmt.Sprint("charge ", runs)
				s.sold(t, policy)
				c := &modelCharge{shop: s, t: t}
				rt.Repeat(map[string]func(*rapid.T){"ask": c.ask, "ask another": c.ask, "ask again": c.askAgain, "calm": c.calm, "": c.check})
				c.calm(rt)
				c.check(rt)
			})
			s.compare(t)
			proveBooks(t, s.Pool)
		})
	}
}

// modelCharge is an authorization of 99.99, and what was asked to be done to it.
type modelCharge struct {
	*shop
	t          *testing.T
	operations []*modelOperation
	requests   int
	faults     []simulator.Rule // of those that stay open
}

type modelOperation struct {
	verb           orders.Verb
	id             string
	asked          *decimal.Decimal
	final          bool
	amount, voided int64 // in cents
	state          string
}

const authorized = 9999

// sum is of the operations of a kind that are in one of the states.
func (c *modelCharge) sum(verb orders.Verb, states ...string) (amount, voided int64) {
	for _, o := range c.operations {
		if o.verb == verb && slices.Contains(states, o.state) {
			amount, voided = amount+o.amount, voided+o.voided
		}
	}
	return amount, voided
}

// left is what can be captured, and what can be refunded.
func (c *modelCharge) left() (capturable, refundable int64) {
	captures, voided := c.sum(orders.Capture, "done", "open")
	voids, _ := c.sum(orders.Void, "done", "open")
	captured, _ := c.sum(orders.Capture, "done")
	refunds, _ := c.sum(orders.Refund, "done", "open")
	return authorized - captures - voided - voids, captured - refunds
}

// ask asks for an operation, at two engines under one request id.
func (c *modelCharge) ask(rt *rapid.T) {
	c.requests++
	o := &modelOperation{id: fmt.Sprint(c.requests)}
	verbs := []orders.Verb{orders.Capture, orders.Capture, orders.Capture, orders.Refund, orders.Refund, orders.Void}
	o.verb = rapid.SampledFrom(verbs).Draw(rt, "verb")
	if o.verb != orders.Void {
		o.amount = rapid.SampledFrom([]int64{0, 1, 1000, 2500, 4000, 9999}).Draw(rt, "amount")
	}
	if o.amount > 0 {
		o.amount = min(o.amount+int64(c.requests), 10000) // the faults go by it
		o.asked = new(decimal.MustNew(o.amount, 2))
	}
	o.final = o.verb == orders.Capture && rapid.IntRange(0, 3).Draw(rt, "final") == 0
	want := c.judge(o)
	fault := rapid.SampledFrom([]string{"", "", "cut-after1", "error-after1", "error1:503", "refuse-connection1", "not-done1",
		"decline1", "error", "error"}).Draw(rt, "fault")
	rule := c.plan(o, fault)
	for range 2 {
		_, err := c.send(o)
		refusal, refused := errors.AsType[*orders.NotApplicable](err)
		if want == "" && err != nil || want != "" && (!refused || refusal.Code != want) {
			rt.Fatalf("%+v: %v, want %q", o, err, want)
		}
	}
	if want != "" {
		return
	}
	c.operations = append(c.operations, o)
	switch fault {
	case "error":
		o.state = "open"
		c.faults = append(c.faults, rule)
	case "decline1":
		o.state = "failed"
	default:
		o.state = "done"
	}
	c.settle()
}

// judge says what an operation comes to, and the code it is refused with.
func (c *modelCharge) judge(o *modelOperation) (code string) {
	left, refundable := c.left()
	code = orders.RefusedCaptureTooLarge
	if o.verb == orders.Refund {
		left, code = refundable, orders.RefusedRefundTooLarge
	}
	if o.asked == nil {
		o.amount = left
	}
	open := slices.ContainsFunc(c.operations, func(o *modelOperation) bool { return o.verb != orders.Refund && o.state == "open" })
	switch {
	case o.amount > left || o.amount <= 0:
		return code
	case (o.final || o.verb == orders.Void) && open:
		return orders.RefusedCaptureOpen
	case o.final:
		o.voided = left - o.amount
	}
	return ""
}

// plan has the provider do something to an operation, and the same as before to those that are open.
func (c *modelCharge) plan(o *modelOperation, fault string) (rule simulator.Rule) {
	rules := slices.Clone(c.faults)
	if fault != "" {
		var err error
		rule, err = simulator.ParseRule(fault + "@charge/" + string(o.verb))
		assert.NoError(c.t, err)
		rule.Amount = decimal.MustNew(o.amount, 2).String()
		rules = append(rules, rule)
	}
	assert.NoError(c.t, c.sim.SetFaults(rules...))
	return rule
}

// send sends the request until it is answered. The engines write to the order meanwhile.
func (c *modelCharge) send(o *modelOperation) (order orders.Order, err error) {
	for err = orders.ErrUnavailable; errors.Is(err, orders.ErrUnavailable); {
		order, err = c.anyone().Do(c.t.Context(), engine.Request{Verb: o.verb, OrderID: c.refunded, Reason: "test", RequestID: o.id, Async: true,
			ChargeOperation: &engine.ChargeOperation{Amount: o.asked, Final: o.final}})
	}
	return order, err
}

// settle waits until only what the provider does not do is open.
func (c *modelCharge) settle() {
	want := ""
	for i, o := range c.operations {
		want += fmt.Sprintf("%s %d %s, ", o.verb, i+1, o.state)
	}
	eventually(c.t, want, func() bool {
		c.exec(c.t, `UPDATE charge_operations SET due_at = now() WHERE due_at > now() AND code IS NOT NULL
			AND NOT EXISTS (SELECT FROM step_calls AS c WHERE c.order_no = charge_operations.order_no AND c.finished_at IS NULL)`)
		got := ""
		o := c.get(c.t, c.refunded)
		for _, f := range orders.ChargeOperations(&o) {
			state := f.State
			if !f.Settled() {
				state = "open"
			}
			got += fmt.Sprintf("%s %d %s, ", f.Kind, f.Number, state)
		}
		return got == want
	})
}

// askAgain repeats an earlier request, which is done already, and asks for something else under its id.
func (c *modelCharge) askAgain(rt *rapid.T) {
	if len(c.operations) == 0 {
		rt.Skip("nothing was asked for")
	}
	o := *rapid.SampledFrom(c.operations).Draw(rt, "again")
	order, err := c.send(&o)
	if err != nil || len(orders.ChargeOperations(&order)) != len(c.operations) {
		rt.Fatalf("%+v again: %v, %+v", o, err, orders.ChargeOperations(&order))
	}
	o.verb = map[orders.Verb]orders.Verb{orders.Capture: orders.Refund, orders.Refund: orders.Void, orders.Void: orders.Capture}[o.verb]
	if _, err := c.send(&o); !errors.Is(err, orders.ErrKeyReused) {
		rt.Fatalf("%+v under a known id: %v", o, err)
	}
}

// calm ends the faults: what is open is done.
func (c *modelCharge) calm(rt *rapid.T) {
	c.faults = nil
	assert.NoError(c.t, c.sim.SetFaults())
	for _, o := range c.operations {
		if o.state == "open" {
			o.state = "done"
		}
	}
	c.settle()
}

// check compares the sums of the order and of the provider with the model.
func (c *modelCharge) check(rt *rapid.T) {
	captured, voided := c.sum(orders.Capture, "done")
	voids, _ := c.sum(orders.Void, "done")
	refunded, _ := c.sum(orders.Refund, "done")
	capturable, refundable := c.left()
	money := func(cents int64) string { return decimal.MustNew(cents, 2).String() }
	want := fmt.Sprintf("captured %s, voided %s, refunded %s", money(captured), money(voided+voids), money(refunded))
	o := c.get(c.t, c.refunded)
	sum := orders.Totals(&o)
	ours := fmt.Sprintf("captured %s, voided %s, refunded %s", sum.Captured, sum.Voided, sum.Refunded)
	if got := c.provided(); ours != want || got != want {
		rt.Fatalf("the order has %s, the provider %s, want %s", ours, got, want)
	}
	if orders.Capturable(&o).Cmp(decimal.MustNew(capturable, 2)) != 0 || orders.Refundable(&o).Cmp(decimal.MustNew(refundable, 2)) != 0 {
		rt.Fatalf("%s and %s are left, want %d and %d cents", orders.Capturable(&o), orders.Refundable(&o), capturable, refundable)
	}
}

// provided are the sums of the provider.
func (c *modelCharge) provided() string {
	var captured, voided, refunded decimal.Decimal
	for _, e := range c.sim.Books(c.refunded) {
		switch {
		case e.State != simulator.Live:
		case e.Effects != 1:
			return fmt.Sprintf("done %d times: %+v", e.Effects, e)
		case e.Step == "charge":
			captured, voided = e.Captured, e.Voided
		case e.Step == "refund":
			sum, err := refunded.Add(decimal.MustParse(e.Amount))
			assert.NoError(c.t, err)
			refunded = sum
		}
	}
	return fmt.Sprintf("captured %s, voided %s, refunded %s", captured.Pad(2), voided.Pad(2), refunded.Pad(2))
}
