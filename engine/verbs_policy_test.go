package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// deaf is a policy whose provider can't be asked what became of a key.
func (p *simulated) deaf() string {
	return fmt.Sprintf(`
charge:
  executor: http
  url: %s/charge
  undoUrl: %s/charge/undo
  timeout: 1m
  retry: {initial: 1ms, cap: 5ms, maxRetries: 0, budget: 1ms}
`, p.url, p.url)
}

func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	forgotten := func(t *testing.T) (*bundle, *simulated) {
		t.Helper()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b := remote(t, engine.Config{}, p.deaf())
		b.process(t, request("order"))
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '23 hours'`)
		return b, p
	}
	t.Run("are not sent again by a retry", func(t *testing.T) {
		t.Parallel()
		b, _ := forgotten(t)
		b.refused(t, asked(orders.Retry), orders.RefusedUnknown)
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '22 hours'`)
		q := asked(orders.Retry)
		q.DryRun = true
		b.do(t, q)
	})
	t.Run("are not sent again by a resumption", func(t *testing.T) {
		t.Parallel()
		b, _ := forgotten(t)
		b.exec(t, `UPDATE orders SET hold = 'paused'`)
		b.refused(t, asked(orders.Resume), orders.RefusedUnknown)
		q := asked(orders.StepResult)
		q.Settle = &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledDone}
		b.do(t, q)
		if o := b.do(t, asked(orders.Resume)); o.Status != fsm.Completed {
			t.Errorf("%s, held %s", o.Status, text(o.Hold))
		}
	})
	t.Run("are asked after where that is possible", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '3 days'`)
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
	})
}

func TestRetryUnderTheActivePolicy(t *testing.T) {
	t.Parallel()
	active := asked(orders.Retry)
	active.ActivePolicy = true
	t.Run("goes on with it", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		b := remote(t, engine.Config{}, "reserve:\n  executor: http\n  url: http://127.0.0.1:1/reserve\n  undoUrl: http://127.0.0.1:1/undo\n"+
			"  retry: {initial: 30m, cap: 30m, maxRetries: 0, budget: 1ms, nonRetryable: [connect]}\n"+p.deaf())
		if _, err := b.engine.Admit(t.Context(), request("order")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it waits", func() bool {
			o, err := b.engine.Orders.Get(t.Context(), "order")
			return err == nil && o.Status == fsm.Reserving && slices.Contains([]string{"retry", "attention"}, text(o.Hold))
		})
		version := b.activate(t, p.deaf())
		if o := b.do(t, active); o.Status != fsm.Completed || *o.Policy != version {
			t.Errorf("%s under policy %d, held %s", o.Status, *o.Policy, text(o.Hold))
		}
	})
	t.Run("asks after a forgotten key, where the other could not", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
		b := remote(t, engine.Config{}, p.deaf())
		b.process(t, request("order"))
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '3 days', hold_reason = 'outcome_unknown: so it says'`)
		b.refused(t, asked(orders.Retry), orders.RefusedUnknown)
		b.refused(t, active, orders.RefusedUnknown) // it is the same policy
		b.activate(t, strings.Replace(p.deaf(), "  timeout", "  lookupUrl: "+p.url+"/lookup\n  timeout", 1))
		if o := b.do(t, active); o.Status != fsm.Completed {
			t.Errorf("%s, held %s (%s)", o.Status, text(o.Hold), text(o.HoldReason))
		}
	})
	t.Run("is refused while a step could not be undone under it", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "reserve"})
		b.activate(t, newProvider(t).impatient(time.Minute))
		b.refused(t, active, orders.RefusedPolicySwitch)
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
	})
	t.Run("of a failed order is refused where its keys would stay alive", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		p.fail(t, simulator.Rule{Fault: simulator.Decline, Step: "charge"})
		b := remote(t, engine.Config{}, p.quick(""))
		b.process(t, request("order"))
		b.activate(t, "reservationTtl: 1h\n")
		b.refused(t, active, orders.RefusedPolicySwitch)
	})
}
