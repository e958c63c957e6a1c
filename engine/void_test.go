package engine_test

import (
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// sent opens a shop whose order was sent to an endpoint that refuses to undo a charge by a name it never gave.
func sent(answers ...string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := with(atEndpoint(halfAnHour, "charge", "reserve"))(t)
		s.provider.says("charge/undo: strict")
		s.provider.says(answers...)
		s.admit(t, request("order"))
		return s
	}
}

// charges checks how many charges were called for since the last reset.
func charges(want int) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		assert.Equal(t, len(s.provider.made("charge/do")), want, "charges sent")
	}
}

// What a person has undone because the endpoint would not is not asked of it again.
func TestRetryAfterAnUndoByHand(t *testing.T) {
	t.Parallel()
	ticket := settled(fsm.Charge, engine.SettledDone, "ticket-7")
	redriven := acts{is("failed"), reset, says("charge/do: done", "reserve/do: done"), retry, is("completed"), charges(1),
		undidBy()}
	play(t, []scene{
		{"of the order", sent("charge/do: error", "reserve/do: refused"), append(acts{is("retry"), asks(ticket),
			is("refunding attention: undo_refused: unknown_reference"), asks(settled(fsm.Charge, engine.SettledDone,
				""))}, redriven...)},
		{"of a late effect", sent("charge/do: error", "reserve/do: refused"), append(acts{is("retry"),
			asks(settled(fsm.Charge, engine.SettledRefused, "")), is("failed"), reported("ticket-7"),
			comes(true, `SELECT coalesce(bool_or(code = 'unknown_reference'), false) FROM late_undos`),
			sql(`UPDATE late_undos SET finished_at = now(), code = NULL, detail = 'undone by hand'`)}, redriven...)},
	})
}

// resultsRefused checks that nobody can say what became of a step that was not called for.
func resultsRefused(code string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		for _, outcome := range []string{engine.SettledDone, engine.SettledRefused, engine.SettledNotDone} {
			s.refused(t, settled(fsm.Charge, outcome, ""), code)
		}
	}
}

// An order that is held because an old key is not to die has not called for its step: nobody can say what became of it.
func TestVoidRefused(t *testing.T) {
	t.Parallel()
	open := sent("charge/do: unnamed", "reserve/do: refused; done", "reserve/undo: refused nothing_reserved")
	const held = "charging attention: void_refused: nothing_reserved"
	refused := acts{is("failed"), reset, retry, is(held)}
	hangs := func(t *testing.T, s *shop) {
		t.Helper()
		called, answer := s.provider.shut(t, "/reserve/undo")
		retry(t, s)
		eventually(t, "the old key is being undone", func() bool { return called.Load() > 0 })
		cancel(t, s)
		answer()
	}
	play(t, []scene{
		{"takes no result of the step", open, append(refused, resultsRefused(orders.RefusedState), allows("cancel", "retry"),
			shows(true, `SELECT in_doubt_since IS NULL FROM orders`), charges(0))},
		{"is sent again by retry, which charges once it is answered", open, append(refused, retry, is(held), charges(0),
			says("reserve/undo: done"), retry, is("completed"), charges(1))},
		{"holds no order that was canceled meanwhile", open, acts{is("failed"), hangs, is("canceled"), charges(1)}},
		{"is left by cancel, a day later too", open, append(refused, aDay, cancel, is("canceled"), charges(0))},
	})
}

// allows checks what an order may be asked for.
func allows(want ...string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		o := s.get(t, "order")
		assert.Equal(t, orders.AllowedActions(&o), want)
	}
}

// An order of the next generation whose old key is not answered for: its charge was never called for, whatever is asked.
func TestAVoidSaysNothingAboutTheCharge(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) *shop {
		t.Helper()
		s := sent("charge/do: refused", "charge/undo: error")(t)
		s.until(t, "order", "failed")
		retry(t, s)
		held := s.until(t, "order", "retry")
		if held.InDoubtSince != nil || held.Generation != 1 {
			t.Errorf("generation %d, in doubt since %v", held.Generation, held.InDoubtSince)
		}
		return s
	}
	ledger := asked(orders.Retry)
	ledger.ActivePolicy = true
	play(t, []scene{
		{"canceled it was not charged, and the void goes on", open, acts{cancel, is("canceled"),
			shows(0, `SELECT (SELECT count(*) FROM charges) + (SELECT count(*) FROM refunds)`), says("charge/undo: done"), undoneLate,
			shows(true, `SELECT EXISTS (SELECT FROM late_undos WHERE step = 'charge' AND generation = 0)`),
			shows(0, `SELECT count(*) FROM step_calls WHERE generation > 0`), proven}},
		{"nobody can say what became of it", open, acts{resultsRefused(orders.RefusedNotCalled)}},
		{"the ledger does not charge it before the old key is dead", open, acts{
			uses("{}"), refuses(ledger, orders.RefusedPolicySwitch)}},
	})
}

// A replica that dies in the undo of an old key leaves nothing in doubt that would count as a try: the take-overs count.
func TestAVoidThatKillsItsDriverIsHeld(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	g := newGhost(database.Pool)
	g.admit(t, time.Minute, "one")
	for calls := 0; ; calls++ {
		o := g.stored(t, "one")[0]
		if o.Hold != nil {
			if calls != 4 || o.InDoubtSince != nil {
				t.Errorf("held after %d calls, in doubt since %v", calls, o.InDoubtSince)
			}
			return
		}
		rows, err := g.query.CallsBegin(t.Context(), db.CallsBeginParams{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq,
			Step: "charge", Operation: "undo", UndoReferences: []string{""}, Generation: new(int32(0)), CallSeconds: 1, LeaseSeconds: 1})
		if err != nil || len(rows) != 1 {
			t.Fatalf("%v, begun: %v", err, rows)
		}
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), `UPDATE orders SET due_at = now()`)))
		g.claim(t, "one")
	}
}

// What was in doubt for 22 hours is in doubt for 22 hours when it is undone, too: the provider forgets the key 24 hours
// after the first call, and says of an unknown key that nothing stands.
func TestStopKeepsTheAgeOfADoubt(t *testing.T) {
	t.Parallel()
	s := with(`charge: {executor: simulator, url: SIM` + halfAnHour + `}`)(t)
	for _, do := range []act{
		fails("cut-after", "hang@charge/undo"), admits(), is("retry"),
		sql(`UPDATE orders SET in_doubt_since = in_doubt_since - interval '22 hours'`), cancel,
		comes(true, `SELECT status = 'refunding' AND in_doubt_since IS NOT NULL FROM orders`),
		shows(true, `SELECT now() - in_doubt_since >= interval '22 hours' FROM orders`), // or the undo would be sent for 45 hours
	} {
		do(t, s)
	}
	if o := s.get(t, "order"); o.ChargeInDoubt == nil || !*o.ChargeInDoubt {
		t.Error("the charge is shown as one that was made")
	}
	s.faults(t)
}

// retry begins a new window of tries; that an earlier call is in doubt does not change by it.
func TestNotDoneByCallbackLeavesTheFirstCallInDoubt(t *testing.T) {
	t.Parallel()
	open := with(`charge: {executor: simulator, url: SIM` + halfAnHour + `}`)
	for name, again := range map[string]act{"without a retry by a person": due, "after a retry by a person": retry} {
		play(t, []scene{{name, open, acts{
			fails("error1", "callback-never"), admits(), is("retry"), // the answer to the first call says nothing: it may still have an effect
			again, is("callback"), answered("not_done"), comes(true, used),
			// Else a cancel would end the order without an undo, and the first call may still arrive.
			shows(true, `SELECT in_doubt_since IS NOT NULL FROM orders`),
		}}})
	}
}

// answered is a callback about the charge.
func answered(outcome string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		r, err := s.engine.Answer(t.Context(), s.tokenOf(t, "order"), engine.CallbackResult{Outcome: outcome})
		if err != nil || !r.Accepted {
			t.Fatalf("%s: %+v, %v", outcome, r, err)
		}
	}
}

// Somebody asked to stop during the last try: there is no next one to wait for, and nobody to ask.
func TestCancelDuringTheLastTryUndoesTheStep(t *testing.T) {
	t.Parallel()
	s := with(impatient)(t)
	s.faults(t, "cut-after1")
	called, open := s.door.shut(t, "/charge")
	s.admit(t, request("order"))
	eventually(t, "it is called for", func() bool { return called.Load() == 1 })
	cancel(t, s)
	open()
	var o orders.Order
	eventually(t, "it is at rest", func() bool { o = s.get(t, "order"); return o.Hold != nil || o.Status.Final() })
	isNow(t, o, fsm.Canceled)
}

const undoCalled = `SELECT EXISTS (SELECT FROM step_calls WHERE operation = 'undo' AND step = 'charge') OR EXISTS (SELECT FROM late_undos)`

// A provider that first says not done, and then done, before we had the time for the first.
func TestDoneAfterANotDoneThatWasNotUsedYet(t *testing.T) {
	t.Parallel()
	play(t, []scene{{"is used, and undone", with(everyStep(", retry: {initial: 30s, cap: 30s}")), acts{
		fails("callback-never"), admits(), is("callback"), pause, is("paused"), answered("not_done"), answered("done"), resume,
		comes(true, used), cancel, is("canceled"), shows(true, undoCalled)}}})
}

// A step that a callback reports as done while the call is answered with a refusal stands, or is undone.
func TestDoneByCallbackBeforeARefusalIsUndone(t *testing.T) {
	t.Parallel()
	s := with(`charge: {executor: simulator, url: SIM}`)(t)
	s.faults(t, "decline")
	_, open := s.door.shut(t, "/charge")
	s.admit(t, request("order"))
	answered("done")(t, s)
	open()
	if s.process(t, request("order")).Status != fsm.Completed {
		comes(true, undoCalled)(t, s)
	}
}
