package engine_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/simulator"
)

// To find a payment intent by a key that Stripe has forgotten is to make another one, and to cancel that.
func TestAnOldUndoAtStripe(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"goes by the payment intent": true, "makes no other one where that is not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stock := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
			t.Cleanup(stock.Close)
			s, b := openShop(t, 1, quick), openBank(t, "succeeded")
			s.useStripe(t, b, fmt.Sprintf("}\nreserve: {executor: http, url: %q, undoUrl: %q, retry: {initial: 30m, cap: 30m}}", stock.URL, stock.URL+"/undo"))
			s.admit(t, paid("one"))
			s.until(t, "one", "retry")
			s.aDayPasses(t, &keeper{})
			ends := "canceled"
			if !known {
				s.exec(t, `UPDATE charges SET reference = NULL`)
				s.exec(t, `UPDATE step_calls SET reference = NULL`)
				ends = "attention"
			}
			s.verb(t, orders.Cancel, nil)
			s.until(t, "one", ends)
			b.mu.Lock()
			defer b.mu.Unlock()
			if n := len(slices.DeleteFunc(slices.Clone(b.requests), func(r string) bool { return r != "POST " })); n != 1 {
				t.Errorf("%d payment intents are asked for: %s", n, strings.Join(b.requests, ", "))
			}
		})
	}
}

func TestAnOldLateUndo(t *testing.T) {
	t.Parallel()
	t.Run("that goes by a forgotten key is not sent, and says so", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeper(t, k)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { clear(k.undos) })
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		eventually(t, "it says that a person must", func() bool {
			return value[bool](t, s.Pool, `SELECT coalesce(code = 'outcome_unknown' AND detail <> '' AND finished_at IS NULL, false) FROM books.late_undos`)
		})
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
	t.Run("of what has a name goes by it", func(t *testing.T) {
		t.Parallel()
		k := &keeper{}
		s := openKeeper(t, k)
		k.says(func(k *keeper) { k.full = true })
		s.exec(t, `UPDATE orders SET due_at = now()`)
		s.until(t, "one", "failed")
		s.exec(t, `UPDATE step_calls SET operation = 'lookup' WHERE operation = 'undo'`) // as if none had been sent
		s.aDayPasses(t, k)
		k.says(func(k *keeper) {
			clear(k.undos)
			k.live["ch_1"] = true
		})
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		eventually(t, "it is undone", func() bool {
			return value[bool](t, s.Pool, `SELECT finished_at IS NOT NULL FROM late_undos`)
		})
		s.undone(t, k, fsm.Failed)
	})
	t.Run("says the same on every call", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true, dead: true}
		s := openKeeper(t, k)
		token := s.tokenOf(t, "one")
		s.verb(t, orders.Cancel, nil)
		eventually(t, "its undo was not answered", func() bool {
			o := s.get(t, "one")
			return o.Status == fsm.Refunding && o.Hold != nil
		})
		k.says(func(k *keeper) { k.dead = false })
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ch_1"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is undone again", func() bool {
			return value[bool](t, s.Pool, `SELECT EXISTS (SELECT FROM late_undos WHERE finished_at IS NOT NULL)`)
		})
		s.undone(t, k, fsm.Canceled)
	})
}

// A policy can't make a provider remember for longer what it was sent under another one.
func TestRetryUnderAPolicyWithALongerRetention(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.fail(t, simulator.Rule{Fault: simulator.CutAfter, Step: "charge"})
	b := remote(t, engine.Config{}, p.deaf())
	b.process(t, request("order"))
	active := asked(orders.Retry)
	active.ActivePolicy = true
	b.activate(t, strings.Replace(p.deaf(), "  timeout", "  keyRetention: 72h\n  timeout", 1))
	b.refused(t, active, orders.RefusedPolicySwitch)
	b.activate(t, strings.Replace(p.deaf(), "  timeout", "  keyRetention: 23h\n  timeout", 1))
	active.DryRun = true
	b.do(t, active)
}
