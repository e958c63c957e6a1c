package engine_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

func TestApproval(t *testing.T) {
	t.Parallel()
	const large = "approval:\n  - {amountOver: 50, currency: USD, timeout: 1h}\n"
	waiting := func(t *testing.T) *bundle {
		t.Helper()
		b := remote(t, engine.Config{}, large)
		if o := b.process(t, request("order")); text(o.Hold) != "approval" || o.Status != fsm.Pending {
			t.Fatalf("%s, held %s", o.Status, text(o.Hold))
		}
		return b
	}
	t.Run("approve lets the order start", func(t *testing.T) {
		t.Parallel()
		b := waiting(t)
		if o := b.do(t, asked(orders.Approve)); o.Status != fsm.Completed || o.ApprovedAt == nil {
			t.Errorf("%+v", o)
		}
		b.verified(t)
	})
	t.Run("reject cancels it", func(t *testing.T) {
		t.Parallel()
		b := waiting(t)
		o := b.do(t, asked(orders.Reject))
		if o.Status != fsm.Canceled || text(o.FailureCode) != "rejected" {
			t.Errorf("%+v", o)
		}
		b.verified(t)
	})
	t.Run("another approves where the policy wants it", func(t *testing.T) {
		t.Parallel()
		b := remote(t, engine.Config{}, "approval:\n  - {approver: another}\n")
		in := request("order")
		in.SubmittedBy = "token:shop"
		b.process(t, in)
		if reason := value[string](t, b.Pool, `SELECT hold_reason FROM books.orders`); !strings.HasPrefix(reason, "another_approver: ") {
			t.Errorf("held with %q, which does not tell who can't approve it", reason)
		}
		own, other := asked(orders.Approve), asked(orders.Approve)
		own.Actor, other.Actor = "token:shop", "token:maria"
		b.refused(t, own, orders.RefusedOwnOrder)
		if o := b.do(t, other); o.Status != fsm.Completed {
			t.Errorf("%+v", o)
		}
	})
	t.Run("a pause is no way around it", func(t *testing.T) {
		t.Parallel()
		b := waiting(t)
		b.do(t, asked(orders.Pause))
		b.refused(t, asked(orders.Approve), orders.RefusedState)
		if o := b.do(t, asked(orders.Resume)); text(o.Hold) != "approval" {
			t.Errorf("%s, held %s", o.Status, text(o.Hold))
		}
		if o := b.do(t, asked(orders.Approve)); o.Status != fsm.Completed {
			t.Errorf("%+v", o)
		}
	})
	t.Run("of many at once one decides", func(t *testing.T) {
		t.Parallel()
		b := waiting(t)
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				_, err := b.engine.Do(t.Context(), asked([]orders.Verb{orders.Approve, orders.Reject}[i%2]))
				var refusal *orders.NotApplicable
				if err != nil && !errors.As(err, &refusal) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.transitions WHERE verb IN ('approve', 'reject')`); n != 1 {
			t.Errorf("%d decisions", n)
		}
	})
}

// settled is what somebody says became of a step.
func settled(of fsm.Step, outcome string) engine.Request {
	q := asked(orders.StepResult)
	q.Settle = &engine.Settled{Step: of, Outcome: outcome, Code: "seen", Detail: "in the books of the provider", Reference: "r"}
	return q
}

func TestStepResult(t *testing.T) {
	t.Parallel()
	t.Run("done goes on without a call", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.CutAfter, Step: "reserve"})
		b.ends(t, b.do(t, settled(fsm.Reserve, engine.SettledDone)), p, fsm.Completed)
		if reference := value[string](t, b.Pool, `SELECT reference FROM books.reservations`); reference != "r" {
			t.Error(reference)
		}
	})
	t.Run("refused undoes what was done before", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "reserve"})
		o := b.do(t, settled(fsm.Reserve, engine.SettledRefused))
		b.ends(t, o, p, fsm.Failed)
		if text(o.FailureCode) != "seen" || text(o.FailureStep) != "reserve" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("not_done ends the doubt, so that a cancellation undoes nothing", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "charge"})
		if o := b.do(t, settled(fsm.Charge, engine.SettledNotDone)); o.InDoubtSince != nil || text(o.Hold) != "attention" {
			t.Errorf("held %s, in doubt since %v", text(o.Hold), o.InDoubtSince)
		}
		p.fail(t)
		b.ends(t, b.do(t, asked(orders.Cancel)), p, fsm.Canceled)
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges`); n != 0 {
			t.Errorf("%d charges", n)
		}
	})
	t.Run("without a code has one", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "charge"})
		q := settled(fsm.Charge, engine.SettledRefused)
		q.Settle.Code = ""
		o := b.do(t, q)
		b.ends(t, o, p, fsm.Failed)
		if text(o.FailureCode) != "step_result" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("of another step says so", func(t *testing.T) {
		t.Parallel()
		b, _ := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "charge"})
		b.refused(t, settled(fsm.Reserve, engine.SettledDone), orders.RefusedOtherStep)
	})
	t.Run("while the step is being done is busy", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t)
		called, open := p.door.shut(t, "/charge")
		b := remote(t, engine.Config{}, p.quick(""))
		answers := ask(t, b.engine, request("order"))
		eventually(t, "a call is under way", func() bool { return called.Load() == 1 })
		var refusal *orders.NotApplicable
		if _, err := b.engine.Do(t.Context(), settled(fsm.Charge, engine.SettledDone)); !errors.As(err, &refusal) || refusal.Code != orders.RefusedBusy {
			t.Error(err)
		}
		open()
		b.ends(t, (<-answers).order, p, fsm.Completed)
	})
}

func TestStepResultOfAnUndo(t *testing.T) {
	t.Parallel()
	t.Run("settles an undo that nobody else can, because its key may be forgotten", func(t *testing.T) {
		t.Parallel()
		b, p := stuck(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve"},
			simulator.Rule{Fault: simulator.CutAfter, Step: "charge", Operation: "undo"})
		b.exec(t, `UPDATE orders SET in_doubt_since = now() - interval '2 days'`)
		b.exec(t, `UPDATE step_calls SET undo_reference = NULL`) // it goes by the key
		b.refused(t, asked(orders.Retry), orders.RefusedUnknown)
		o := b.do(t, settled(fsm.Charge, engine.SettledDone))
		b.ends(t, o, p, fsm.Failed)
		if text(o.FailureCode) != "card_declined" || value[string](t, b.Pool, `SELECT reference FROM books.refunds`) != "r" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("done of an undo goes on with the undoing", func(t *testing.T) {
		t.Parallel()
		b, _ := stuck(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve"}, simulator.Rule{Fault: simulator.Decline, Step: "charge", Operation: "undo"})
		if o := b.do(t, settled(fsm.Charge, engine.SettledDone)); o.Status != fsm.Failed {
			t.Errorf("%s, held %s (%s)", o.Status, text(o.Hold), text(o.HoldReason))
		}
		b.verified(t)
	})
}
