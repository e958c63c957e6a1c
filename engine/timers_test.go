package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

const shortly = 300 * time.Millisecond

func TestDeadline(t *testing.T) {
	t.Parallel()
	t.Run("before the start cancels an order that waits for a person", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, allAtTheSimulator+`approval: [{items: [widget]}]`)
		in := request("waits")
		in.CompleteBy = time.Now().Add(shortly)
		s.admit(t, in)
		order := s.until(t, "waits", "canceled")
		if failureCode(order) != "deadline_exceeded" || len(s.calls("waits")) > 0 {
			t.Errorf("%s, %q", failureCode(order), s.calls("waits"))
		}
	})
	t.Run("of the policy holds for an order that names none", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, allAtTheSimulator+`
approval: [{items: [widget]}]
completeWithin: 200ms`)
		s.admit(t, request("waits"))
		s.until(t, "waits", "canceled")
	})
}

func TestDeadlineOnTheWay(t *testing.T) {
	t.Parallel()
	t.Run("during a charge in doubt undoes it under its key", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 20ms, cap: 20ms}, breaker: {failures: 1000000}}`)
		s.faults(t, "error")
		in := request("doubt")
		in.CompleteBy = time.Now().Add(time.Hour)
		s.admit(t, in)
		eventually(t, "its charge is in doubt", func() bool { return s.get(t, "doubt").InDoubtSince != nil })
		s.overdue(t, "doubt")
		order := s.process(t, request("doubt"))
		if order.Status != "canceled" || failureCode(order) != "deadline_exceeded" || order.RefundedAt == nil {
			t.Errorf("%s", brief(order))
		}
		s.stands(t, "doubt", "charge voided")
	})
	t.Run("during a call lets it be answered, and undoes it", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, allAtTheSimulator)
		called, open := s.door.shut(t, "/charge")
		in := request("slow")
		in.CompleteBy = time.Now().Add(time.Hour)
		s.admit(t, in)
		eventually(t, "the call is under way", func() bool { return called.Load() == 1 })
		s.overdue(t, "slow")
		eventually(t, "it is asked to stop", func() bool { return s.get(t, "slow").StopRequested != nil })
		open()
		order := s.process(t, request("slow"))
		if order.Status != "canceled" || failureCode(order) != "deadline_exceeded" {
			t.Errorf("%s", brief(order))
		}
		s.called(t, "slow", "charge/do", "charge/undo")
		s.stands(t, "slow", "charge undone")
	})
	t.Run("during an answer that will come later undoes at once", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, allAtTheSimulator)
		s.faults(t, "callback-never@reserve")
		in := request("never")
		in.CompleteBy = time.Now().Add(time.Hour)
		s.admit(t, in)
		s.until(t, "never", "callback")
		s.overdue(t, "never")
		order := s.process(t, request("never"))
		if order.Status != "canceled" || failureCode(order) != "deadline_exceeded" {
			t.Errorf("%s", brief(order))
		}
		s.stands(t, "never", "charge undone", "reserve undone")
	})
	t.Run("before the answer 202 comes does not wait for its callback", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, allAtTheSimulator)
		s.faults(t, "callback-never@charge")
		in := request("never")
		in.CompleteBy = time.Now().Add(time.Millisecond)
		isNow(t, s.process(t, in), "canceled")
	})
}

func TestDeadlineInTheDatabase(t *testing.T) {
	t.Parallel()
	t.Run("before a reservation in the database names itself as the reason", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.setStock(t, "widget", 5)
		unlock := s.lock(t, `SELECT FROM inventory WHERE item = 'widget' FOR UPDATE`)
		in := request("blocked")
		in.CompleteBy = time.Now().Add(time.Hour)
		s.admit(t, in)
		s.until(t, "blocked", "reserving")
		s.overdue(t, "blocked")
		eventually(t, "it is asked to stop", func() bool { return s.get(t, "blocked").StopRequested != nil })
		unlock()
		if order := s.until(t, "blocked", "canceled"); failureCode(order) != "deadline_exceeded" || order.RefundedAt == nil {
			t.Error(brief(order))
		}
	})
	t.Run("after completion changes nothing", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		in := request("done")
		in.CompleteBy = time.Now().Add(time.Hour)
		before := s.process(t, in)
		s.overdue(t, "done")
		s.deadlineKept(t)
		if after := s.get(t, "done"); after.Status != "completed" || after.Seq != before.Seq {
			t.Errorf("%s", brief(after))
		}
	})
}

// deadlineKept returns when somebody has looked for deadlines that are over by now: one of an order that nobody drives
// was kept.
func (s *shop) deadlineKept(t *testing.T) {
	t.Helper()
	in := request("clock")
	in.StartAt, in.CompleteBy = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	s.admit(t, in)
	s.overdue(t, "clock")
	s.until(t, "clock", "canceled")
}

// Nobody is at the address: a confirmation there is certainly not done.
const confirmUnreachable = `
confirm: {executor: http, url: "http://127.0.0.1:1/confirm", retry: {initial: 10ms, cap: 20ms}}`

func TestReservationExpires(t *testing.T) {
	t.Parallel()
	t.Run("when its confirmation can't be sent", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, confirmUnreachable)
		s.setStock(t, "widget", 5)
		in := request("unsold")
		in.ReservationTTL = shortly
		order := s.process(t, in)
		if order.Status != "canceled" || failureCode(order) != "reservation_expired" || order.ReleasedAt == nil || order.RefundedAt == nil {
			t.Errorf("%s", brief(order))
		}
		if order.ReleasedAt.Sub(*order.ReservedAt) < shortly {
			t.Errorf("released after %s", order.ReleasedAt.Sub(*order.ReservedAt))
		}
		assert.Equal(t, value[int64](t, s.Pool, `SELECT reserved FROM inventory`), 0, "units stay reserved")
	})
	t.Run("by the time of the policy", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, confirmUnreachable+"\nreservationTtl: 100ms")
		if order := s.process(t, request("unsold")); failureCode(order) != "reservation_expired" {
			t.Errorf("%s", brief(order))
		}
	})
	t.Run("at its provider too", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `
charge: {executor: simulator, url: SIM}
reserve: {executor: simulator, url: SIM}
`+confirmUnreachable+"\nreservationTtl: 100ms")
		s.process(t, request("unsold"))
		s.stands(t, "unsold", "charge undone", "reserve undone")
	})
}

// Once a confirmation may have had its effect, neither clock stops the order.
func TestConfirmationInDoubtIsNotStopped(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	s.use(t, `
charge: {executor: simulator, url: SIM}
reserve: {executor: simulator, url: SIM}
confirm: {executor: simulator, url: SIM, retry: {initial: 10ms, cap: 20ms, maxRetries: 999}, breaker: {failures: 1000000}}`)
	s.faults(t, "error@confirm")
	in := request("pivot")
	in.CompleteBy, in.ReservationTTL = time.Now().Add(time.Hour), time.Hour
	s.admit(t, in)
	eventually(t, "its confirmation is in doubt", func() bool {
		o := s.get(t, "pivot")
		return o.Status == "confirming" && o.InDoubtSince != nil
	})
	s.exec(t, `UPDATE orders SET reserved_until = now() WHERE order_id = 'pivot'`)
	s.overdue(t, "pivot")
	s.deadlineKept(t)
	tried := len(s.calls("pivot"))
	eventually(t, "it is tried on", func() bool { return len(s.calls("pivot")) > tried })
	s.faults(t)
	order := s.process(t, request("pivot"))
	if order.Status != "completed" || !order.FinishedAt.After(*order.CompleteBy) {
		t.Errorf("%s", brief(order))
	}
	if seen := verbs(t, s.Pool, "pivot"); slices.Contains(seen, "deadline") {
		t.Errorf("history %q", seen)
	}
	s.stands(t, "pivot", "charge live", "reserve live", "confirm live")
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
	if sum := s.sim.Summary(); !sum.OK() {
		t.Errorf("at the provider: %+v", sum)
	}
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
