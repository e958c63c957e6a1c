package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
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

// sleeps does to the machine what a day of sleep does.
func sleeps(_ *testing.T, s *shop) { s.engine.Sleeps(26 * time.Hour) }

// reported is a callback that says that the charge is done.
func reported(reference string) act {
	return func(t *testing.T, s *shop) { t.Helper(); s.tell(t, s.tokenOf(t, "order"), "done", reference) }
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
		{"of what has a name goes by it", resting(quick), acts{
			says("reserve/do: refused"), due, is("failed"),
			sql(`UPDATE step_calls SET operation = 'lookup' WHERE operation = 'undo'`), // as if none had been sent
			aDay, reset, func(_ *testing.T, s *shop) { s.provider.live["ch_1"] = true },
			lateUndo, comes(true, finished), is("failed"), standing()}},
		{"says the same on every call", resting(quick, "charge/do: lost", "charge/undo: error"), acts{
			cancel, is(unanswered), says("charge/undo: done"), cancel, is("canceled"), reported("ch_1"), comes(true,
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
