package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

const halfAnHour = ", retry: {initial: 30m, cap: 30m}"

// atRest opens a shop whose order rests: in charging if its charge was not answered, else before its reservation.
func resting(cfg engine.Config, answers ...string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := openShop(t, 1, cfg)
		s.use(t, atEndpoint(halfAnHour, "charge", "reserve"))
		s.provider.says("reserve/do: not done")
		s.provider.says(answers...)
		s.admit(t, request("order"))
		s.until(t, "order", "retry")
		return s
	}
}

// aDay passes: everything is 26 hours older, and the endpoint forgets its keys.
func aDay(t *testing.T, s *shop) {
	t.Helper()
	s.exec(t, `UPDATE orders SET in_doubt_since = in_doubt_since - interval '26 hours'`)
	s.exec(t, `UPDATE step_calls SET started_at = started_at - interval '26 hours', finished_at = finished_at - interval '26 hours'`)
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	clear(s.provider.keys)
}

// reset forgets what the endpoint was called for.
func reset(_ *testing.T, s *shop) { s.provider.reset() }

// sleeps does to the machine what a day of sleep does, once the engine has heard the last reply, which has the time.
func sleeps(t *testing.T, s *shop) {
	t.Helper()
	assert.Eventually(t, "no order is in memory", func() bool { return s.engine.InFlight() == 0 })
	s.engine.Sleeps(26 * time.Hour)
}

// reported is a callback that says that the charge is done.
func reported(reference string) act {
	return func(t *testing.T, s *shop) { t.Helper(); s.tell(t, s.tokenOf(t, "order"), "done", reference) }
}

// erased erases the customer of the order, who had no id until now.
func erased(t *testing.T, s *shop) {
	t.Helper()
	for _, do := range []act{sql(`ALTER TABLE orders DISABLE TRIGGER orders_guard_terms`), sql(`UPDATE orders SET customer_id = 'anna'`),
		sql(`ALTER TABLE orders ENABLE TRIGGER orders_guard_terms`)} {
		do(t, s)
	}
	assert.NoError(t, assert.Err(s.engine.EraseCustomer(t.Context(), engine.Erasure{CustomerID: "anna", Reason: "asked", RequestID: "r"})))
}

// lateUndo opens the undo of the charge of an order that is over.
var lateUndo = sql(`INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)

// forgotten checks that the order waits on its way back and says why, with its charge standing. What was undone by hand then
// ends it.
func forgotten(ends fsm.State) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		for _, do := range []act{
			is("refunding attention: " + orders.RefusedUnknown), standing("ch_1"), refuses(asked(orders.Retry),
				orders.RefusedUnknown),
			asks(settled(fsm.Charge, engine.SettledDone, "")), is(string(ends)),
		} {
			do(t, s)
		}
	}
}

const (
	unanswered = "refunding retry" // its undo was sent and not answered
	used       = `SELECT bool_and(consumed_at IS NOT NULL) FROM step_answers`
	byPerson   = `SELECT coalesce(bool_or(code = 'outcome_unknown' AND detail <> '' AND finished_at IS NULL), false) FROM late_undos`
	finished   = `SELECT coalesce(bool_and(finished_at IS NOT NULL AND code IS NULL), false) FROM late_undos`
)

// What an endpoint forgot is a success to undo: the charge stands, and the books say refunded.
func TestAnOldUndoDoesNotGoByAForgottenKey(t *testing.T) {
	t.Parallel()
	unnamed, lost := resting(quick, "charge/do: unnamed"), resting(quick, "charge/do: lost")
	dead := resting(quick, "charge/do: lost", "charge/undo: error")
	play(t, []scene{
		{"of an order that was paused for a day", unnamed, acts{pause, aDay, cancel, forgotten(fsm.Canceled)}},
		{"of an order whose reservation is refused a day later", unnamed, acts{
			aDay, says("reserve/do: refused"), due, forgotten(fsm.Failed)}},
		{"of a canceled order that a person says was charged", lost, acts{
			aDay, cancel, is("attention"), asks(settled(fsm.Charge, engine.SettledDone, "")), forgotten(fsm.Canceled)}},
		{"that a person says was not done", dead, acts{
			cancel, is(unanswered), aDay, says("charge/undo: done"), due, is("attention"), staysInDoubt, due, forgotten(fsm.Canceled)}},
		{"that is paused: it does not resume", resting(quick, "charge/do: unnamed", "charge/undo: error",
			"reserve/do: refused"), acts{
			is(unanswered), pause, is("paused"), sql(`UPDATE orders SET in_doubt_since = NULL`), // only the charge is old
			aDay, refuses(asked(orders.Resume), orders.RefusedUnknown)}},
	})
}

// staysInDoubt has a person say that the undo was not done: it is in doubt as long as before.
func staysInDoubt(t *testing.T, s *shop) {
	t.Helper()
	const inDoubt = `SELECT coalesce(in_doubt_since::text, 'not in doubt') FROM orders`
	since := value[string](t, s.Pool, inDoubt)
	asks(settled(fsm.Charge, engine.SettledNotDone, ""))(t, s)
	comes(true, used)(t, s)
	shows(since, inDoubt)(t, s)
}

// What has a name at the endpoint is taken back by it, however long the key is forgotten.
func TestAnOldUndoGoesByReference(t *testing.T) {
	t.Parallel()
	play(t, []scene{
		{"that the charge was answered with", resting(quick), acts{
			pause, aDay, cancel, is("canceled"), standing(), undidBy("ch_1")}},
		{"that a person gave", resting(quick, "charge/do: lost"), acts{aDay, cancel, is("attention"),
			asks(settled(fsm.Charge, engine.SettledDone, "ch_1")), is("canceled"), standing()}},
		{"after a day of undos that were not answered", resting(quick, "charge/undo: error"), acts{cancel, is(unanswered), aDay,
			says("charge/undo: done"), due, is("canceled"), standing()}},
		// An endpoint compares bodies: an undo that began without a name goes on without one, though it has become known.
		{"that it began with", resting(quick, "charge/do: lost", "charge/undo: error"), acts{
			cancel, is(unanswered), reported("ch_1"),
			says("charge/undo: done"), due, is("canceled"), standing(), undidBy("")}},
	})
}

// To find a payment intent by a key that Stripe has forgotten is to make another one, and to cancel that.
func TestAnOldUndoAtStripe(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"goes by the payment intent": true, "makes no other one where that is not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := openShop(t, 1, quick), openBank(t, "succeeded")
			s.useStripe(t, b, "}\n"+atEndpoint(halfAnHour, "reserve"))
			s.provider.says("reserve/do: not done", "reserve/undo: not done")
			s.admit(t, paid("order"))
			s.until(t, "order", "retry")
			aDay(t, s)
			ends := "canceled"
			if !known {
				s.exec(t, `UPDATE charges SET reference = NULL`)
				s.exec(t, `UPDATE step_calls SET reference = NULL`)
				ends = "attention"
			}
			cancel(t, s)
			s.until(t, "order", ends)
			b.mu.Lock()
			defer b.mu.Unlock()
			assert.Equal(t, strings.Count(fmt.Sprintf("%q", b.requests), `"POST "`), 1, "payment intents are asked for",
				b.requests)
		})
	}
}

func TestAnOldLateUndo(t *testing.T) {
	t.Parallel()
	play(t, []scene{
		{"that goes by a forgotten key is not sent, and says so", resting(quick, "charge/do: lost"), acts{
			cancel, is("canceled"), aDay, reset, lateUndo, comes(true, byPerson), undidBy()}},
		{"that was sent before the customer was erased is not sent with a pseudonym", resting(quick, "charge/do: lost"), acts{
			cancel, is("canceled"), erased, reset, reported("ch_1"), comes(true, byPerson), undidBy()}},
		{"of what has a name goes by it", resting(quick), acts{
			says("reserve/do: refused"), due, is("failed"),
			sql(`UPDATE step_calls SET operation = 'lookup' WHERE operation = 'undo'`), // as if none had been sent
			aDay, reset, func(_ *testing.T, s *shop) { s.provider.live["ch_1"] = true },
			lateUndo, comes(true, finished), is("failed"), standing()}},
		{"says the same on every call", resting(quick, "charge/do: lost", "charge/undo: error"), acts{
			cancel, is(unanswered), says("charge/undo: done"), retry, is("canceled"), reported("ch_1"), comes(true,
				finished), standing()}},
	})
}

// A machine sleeps for a day, wakes up, and its clock has not heard of it yet: what it is about to send is a day older than
// it thinks. The statement that begins the call knows.
func TestAMachineThatSlept(t *testing.T) {
	t.Parallel()
	lost := resting(byCallers, "charge/do: lost") // the database's time is not heard by the way
	play(t, []scene{
		{"does not charge by a forgotten key", lost, acts{
			aDay, reset, sleeps, retry, is("charging attention: " + orders.RefusedUnknown),
			func(t *testing.T, s *shop) { t.Helper(); assert.Equal(t, len(s.provider.made("charge/do")), 0, "sent") },
			asks(settled(fsm.Charge, engine.SettledRefused, "")), is("failed")}},
		{"does not undo by a forgotten key", resting(byCallers, "charge/do: lost", "charge/undo: error"), acts{
			cancel, is(unanswered), aDay, says("charge/undo: done"), sleeps, retry, forgotten(fsm.Canceled)}},
		{"does not undo a late effect by a forgotten key", lost, acts{cancel, is("canceled"), aDay, reset, lateUndo, sleeps,
			func(_ *testing.T, s *shop) { s.engine.UndoLate() }, shows(true, byPerson), undidBy()}},
	})
}

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
			is("refunding attention: undo_refused: unknown_reference"), asks(settled(fsm.Charge, engine.SettledRefused, "")),
			is("refunding attention: undo_refused: step_result: seen"), asks(settled(fsm.Charge, engine.SettledDone,
				"rf_7")), is("failed"), shows(1, `SELECT count(*) FROM full_orders WHERE undo_reference = 'rf_7'`)}, redriven...)},
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
		assert.True(t, held.InDoubtSince == nil && held.Generation == 1,
			"generation", held.Generation, "in doubt since", held.InDoubtSince)
		return s
	}
	ledger := asked(orders.Retry)
	ledger.ActivePolicy = true
	play(t, []scene{
		{"canceled it was not charged, and the void goes on", open, acts{cancel, is("canceled"),
			shows(0, `SELECT (SELECT count(*) FROM charges) + (SELECT count(*) FROM charge_operations)`), says("charge/undo: done"), undoneLate,
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
			assert.True(t, calls == 4 && o.InDoubtSince == nil, "held after", calls, "calls, in doubt since", o.InDoubtSince)
			return
		}
		rows, err := g.query.CallsBegin(t.Context(), db.CallsBeginParams{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq,
			Step: "charge", Operation: "undo", UndoReferences: []string{""}, Generation: new(int32(0)), CallSeconds: 1, LeaseSeconds: 1})
		assert.Require(t, err == nil && len(rows) == 1, err, "begun", rows)
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
	o := s.get(t, "order")
	assert.True(t, o.ChargeInDoubt != nil && *o.ChargeInDoubt, "the charge is shown as one that was made")
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
		assert.True(t, err == nil && r.Accepted, outcome, r, err)
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
