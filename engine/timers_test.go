package engine_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// dated has the order end by then, or go back.
func dated(by time.Duration) act {
	return admits(func(in *engine.Input) { in.CompleteBy = time.Now().Add(by) })
}

const exceeded = "canceled: deadline_exceeded"

// late has the deadline of the order be over.
var late = sql(`UPDATE orders SET complete_by = now() WHERE order_id = 'order'`)

// looked returns when somebody has looked for deadlines that are over by now: one of an order that nobody drives was kept.
func looked(t *testing.T, s *shop) {
	t.Helper()
	in := request("clock")
	in.StartAt, in.CompleteBy = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	s.admit(t, in)
	s.overdue(t, "clock")
	s.until(t, "clock", "canceled")
}

// stands checks what stands at the simulator.
func stands(want ...string) act {
	return func(t *testing.T, s *shop) { t.Helper(); s.stands(t, "order", want...) }
}

// uncalled checks that the simulator has heard of nothing.
func uncalled(t *testing.T, s *shop) { t.Helper(); s.called(t, "order") }

func TestDeadline(t *testing.T) {
	t.Parallel()
	const approval, hour = "approval: [{items: [widget]}]\n", time.Hour
	const doubts = `charge: {executor: simulator, url: SIM, retry: {initial: 20ms, cap: 20ms}, breaker: {failures: 1000000}}`
	inDoubt, refunded := comes(true, `SELECT in_doubt_since IS NOT NULL FROM orders`), shows(true,
		`SELECT refunded_at IS NOT NULL FROM full_orders`)
	duringACall := func(t *testing.T, s *shop) {
		t.Helper()
		called, open := s.door.shut(t, "/charge")
		dated(hour)(t, s)
		eventually(t, "the call is under way", func() bool { return called.Load() == 1 })
		late(t, s)
		eventually(t, "it is asked to stop", func() bool { return s.get(t, "order").StopRequested != nil })
		open()
	}
	behindALock := func(t *testing.T, s *shop) {
		t.Helper()
		s.setStock(t, "widget", 5)
		unlock := s.lock(t, `SELECT FROM inventory WHERE item = 'widget' FOR UPDATE`)
		dated(hour)(t, s)
		s.until(t, "order", "reserving")
		late(t, s)
		eventually(t, "it is asked to stop", func() bool { return s.get(t, "order").StopRequested != nil })
		unlock()
	}
	play(t, []scene{
		{"before the start cancels an order that waits for a person", with(allAtTheSimulator + approval), acts{
			dated(300 * time.Millisecond), is(exceeded), uncalled}},
		{"of the policy holds for an order that names none", with(allAtTheSimulator + approval + "completeWithin: 200ms"),
			acts{admits(), is(exceeded)}},
		{"during a charge in doubt undoes it under its key", with(doubts), acts{
			fails("error"), dated(hour), inDoubt, late, processes(exceeded),
			refunded, stands("charge voided")}},
		{"during a call lets it be answered, and undoes it", with(allAtTheSimulator), acts{
			duringACall, processes(exceeded), stands("charge undone"),
			func(t *testing.T, s *shop) { t.Helper(); s.called(t, "order", "charge/do", "charge/undo") }}},
		{"during an answer that will come later undoes at once", with(allAtTheSimulator), acts{
			fails("callback-never@reserve"), dated(hour),
			is("callback"), late, processes(exceeded), stands("charge undone", "reserve undone")}},
		{"before the answer 202 comes does not wait for its callback", with(allAtTheSimulator), acts{
			fails("callback-never@charge"),
			dated(time.Millisecond), is(exceeded)}},
		{"before a reservation in the database names itself as the reason", with("{}"), acts{
			behindALock, is(exceeded), refunded}},
		{"after completion changes nothing", with("{}"), acts{dated(hour), is("completed"), late, looked, is("completed"),
			shows(4, `SELECT seq FROM orders WHERE order_id = 'order'`)}},
	})
}

func TestReservationExpires(t *testing.T) {
	t.Parallel()
	// Nobody is at the address: a confirmation there is certainly not done.
	const confirm = "confirm: {executor: http, url: 'http://127.0.0.1:1/confirm', retry: {initial: 10ms, cap: 20ms}}\n"
	const remote, expired = "charge: {executor: simulator, url: SIM}\nreserve: {executor: simulator, url: SIM}\n", "canceled: reservation_expired"
	play(t, []scene{
		{"when its confirmation can't be sent", with(confirm), acts{
			func(t *testing.T, s *shop) { t.Helper(); s.setStock(t, "widget", 5) },
			admits(func(in *engine.Input) { in.ReservationTTL = 300 * time.Millisecond }), is(expired),
			shows(true, `SELECT refunded_at IS NOT NULL AND released_at - reserved_at >= interval '300 ms' FROM full_orders`),
			shows(0, `SELECT reserved FROM inventory`)}},
		{"by the time of the policy", with(confirm + "reservationTtl: 100ms"), acts{processes(expired)}},
		{"at its provider too", with(remote + confirm + "reservationTtl: 100ms"),
			acts{processes(expired), stands("charge undone", "reserve undone")}},
	})
}

// Once a confirmation may have had its effect, neither clock stops the order.
func TestConfirmationInDoubtIsNotStopped(t *testing.T) {
	t.Parallel()
	triedOn := func(t *testing.T, s *shop) {
		t.Helper()
		tried := len(s.calls("order"))
		eventually(t, "it is tried on", func() bool { return len(s.calls("order")) > tried })
	}
	play(t, []scene{{"by its deadline or its reservation",
		with(everyStep(", retry: {initial: 10ms, cap: 20ms, maxRetries: 999}, breaker: {failures: 1000000}")), acts{
			fails("error@confirm"), admits(func(in *engine.Input) {
				in.CompleteBy,
					in.ReservationTTL = time.Now().Add(time.Hour), time.Hour
			}),
			comes(true, `SELECT status = 'confirming' AND in_doubt_since IS NOT NULL FROM orders`),
			sql(`UPDATE orders SET reserved_until = now()`), late, looked, triedOn, fails(), processes("completed"),
			shows(true, `SELECT finished_at > complete_by FROM orders WHERE order_id = 'order'`),
			shows(0, `SELECT count(*) FROM books.transitions WHERE order_id = 'order' AND verb = 'deadline'`),
			stands("charge live", "reserve live", "confirm live")}}})
}

// A thousand orders past their deadline whose undoing waits (for a person, for a provider that is
// down) are found first each time: no other deadline is ever kept.
func TestDeadlineBehindAThousandThatAreBeingUndone(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.exec(t, `SET session_replication_role = replica; INSERT INTO orders (order_id, status, hold, outcome, stop_requested, complete_by, currency, item, amount, seq, generation)
		SELECT 'stuck ' || i, 'refunding', 'attention', 'canceled', 'deadline', now() - interval '1 hour', 'USD', 'x', 1, 1, 0
		FROM generate_series(1, 1000) AS i; SET session_replication_role = origin`)
	s.use(t, allAtTheSimulator+`approval: [{items: [widget]}]`)
	in := request("late")
	in.CompleteBy = time.Now().Add(50 * time.Millisecond)
	s.admit(t, in)
	s.until(t, "late", "canceled")
	s.exec(t, `SET session_replication_role = replica; DELETE FROM orders WHERE order_id LIKE 'stuck %'; SET session_replication_role = origin`)
}

// One late effect at a provider that does not answer keeps deadlines of all orders waiting.
func TestDeadlineWhileALateEffectIsUndone(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, engine.Config{RecoveryInterval: often})
	s.use(t, strings.Replace(allAtTheSimulator, "url: SIM", "url: SIM, timeout: 10m", 1)) // longer than anybody looks
	s.faults(t, "decline@reserve,order=old")
	for _, id := range []string{"old 1", "old 2", "old 3"} {
		s.process(t, request(id))
	}
	s.faults(t, "hang@charge/undo")
	s.use(t, allAtTheSimulator+`approval: [{items: [widget]}]`)
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
	eventually(t, "a late effect is being undone", func() bool { return value[int](t, s.Pool, `SELECT max(claims) FROM late_undos`) > 0 })
	in := request("late")
	in.CompleteBy = time.Now().Add(50 * time.Millisecond)
	s.admit(t, in)
	s.until(t, "late", "canceled") // while the undo hangs, for as long as its time-out
	s.faults(t)
}

// A statement that the clock sends when there is something to do, or its answer, is lost: it is done all the same, and once.
func TestClockWithoutItsAnswer(t *testing.T) { //nolint:tparallel // one proxy loses statements for one of them at a time
	t.Parallel()
	s := openBehind(t)
	s.use(t, allAtTheSimulator+`approval: [{items: [dear]}]`)
	s.faults(t, "decline@reserve,order=undone")
	for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushReply} { //nolint:paralleltest // as above
		t.Run(fmt.Sprintf("a deadline, %v", f), func(t *testing.T) { s.expiresWithLoss(t, fmt.Sprintf("late, %v", f), f) })
		t.Run(fmt.Sprintf("a late effect, %v", f), func(t *testing.T) { s.undoesLateWithLoss(t, fmt.Sprintf("undone, %v", f), f) })
	}
	s.proxy.On(nil)
	sum := s.sim.Summary()
	assert.True(t, sum.OK(), "at the provider", sum)
	proveBooks(t, s.Pool)
}

// loses keeps a statement from the server until due is called. Then the next one of it has a fate, and the others pass.
func (s *behind) loses(t *testing.T, statement string, f fate) (due func()) {
	t.Helper()
	var is, lost atomic.Bool
	s.proxy.On(func(sent string) fate {
		switch {
		case sent != statement || lost.Load():
			return passes
		case !is.Load():
			return loseRequest
		case lost.Swap(true):
			return passes
		}
		return f
	})
	return func() {
		is.Store(true)
		eventually(t, statement+" is lost", lost.Load)
	}
}

// expiresWithLoss loses what stops an order whose time is up.
func (s *behind) expiresWithLoss(t *testing.T, id string, f fate) {
	t.Helper()
	due := s.loses(t, "OrdersExpired", f)
	in := withItem("dear", requests(id, 1))[0]
	in.CompleteBy = time.Now().Add(50 * time.Millisecond)
	s.admit(t, in)
	eventually(t, "its time is up", s.answers(t, true,
		`SELECT complete_by < now() FROM orders WHERE order_id = $1`, in.OrderID))
	due()
	s.until(t, in.OrderID, "canceled")
	s.counts(t, 1,
		`SELECT count(*) FROM books.transitions WHERE order_id = $1 AND verb = 'deadline' AND reason = 'deadline_exceeded'`, in.OrderID)
}

// undoesLateWithLoss loses what finds a late effect. Who claimed it without hearing of it does not come back for it before
// his lease has ended, which is made to be at once.
func (s *behind) undoesLateWithLoss(t *testing.T, id string, f fate) {
	t.Helper()
	isNow(t, s.process(t, request(id)), "failed")
	due := s.loses(t, "LateUndosClaim", f)
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders WHERE order_id = $1`, id)
	due()
	eventually(t, "it is undone", func() bool {
		s.exec(t, `UPDATE late_undos SET due_at = now() WHERE finished_at IS NULL AND due_at > now() + interval '30 minutes'`)
		return value[bool](t, s.Pool, `SELECT finished_at IS NOT NULL FROM books.late_undos WHERE order_id = $1`, id)
	})
	if calls := value[string](t, s.Pool, `SELECT string_agg(concat_ws(' ', call, operation, outcome), ', ') FROM books.step_calls WHERE order_id = $1 AND call < 0`, id); calls != "-1 undo done" {
		t.Errorf("its calls: %s", calls)
	}
}
