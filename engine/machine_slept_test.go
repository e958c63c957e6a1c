package engine_test

import (
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// A machine sleeps for a day, wakes up, and its clock has not heard of it yet: what it is about to send is a day older than
// it thinks. The statement that begins the call knows.
func TestAMachineThatSlept(t *testing.T) {
	t.Parallel()
	hourly := engine.Config{RecoveryInterval: time.Hour} // the database's time is not heard by the way
	t.Run("does not charge by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeperWith(t, k, hourly)
		s.aDayPasses(t, k)
		s.engine.Sleeps(26 * time.Hour)
		s.verb(t, orders.Retry, nil)
		s.until(t, "one", "attention")
		k.says(func(k *keeper) {
			if len(k.keys) > 0 {
				t.Errorf("a key was sent that had been forgotten: %v", k.keys)
			}
		})
		if reason := *s.get(t, "one").HoldReason; reason[:len(orders.RefusedUnknown)] != orders.RefusedUnknown {
			t.Error(reason)
		}
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
		s.until(t, "one", "failed")
	})
	t.Run("does not undo by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true, dead: true}
		s := openKeeperWith(t, k, hourly)
		s.verb(t, orders.Cancel, nil)
		eventually(t, "its undo was not answered", func() bool {
			o := s.get(t, "one")
			return o.Status == fsm.Refunding && o.Hold != nil
		})
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { k.dead = false })
		s.engine.Sleeps(26 * time.Hour)
		s.verb(t, orders.Retry, nil)
		s.heldForgotten(t, k, fsm.Canceled)
	})
	t.Run("does not undo a late effect by a forgotten key", func(t *testing.T) {
		t.Parallel()
		k := &keeper{mute: true}
		s := openKeeperWith(t, k, hourly)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		s.aDayPasses(t, k)
		k.says(func(k *keeper) { clear(k.undos) })
		s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
		s.engine.Sleeps(26 * time.Hour)
		s.engine.UndoLate()
		if !value[bool](t, s.Pool, `SELECT coalesce(code = 'outcome_unknown' AND finished_at IS NULL, false) FROM late_undos`) {
			t.Error("it does not say that a person must")
		}
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
}
