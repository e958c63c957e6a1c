package engine_test

import (
	"slices"
	"testing"
	"time"

	"pawl/internal/simulator"
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
		s.faults(t, simulator.Rule{Fault: simulator.Error})
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
		s.faults(t, simulator.Rule{Fault: simulator.CallbackNever, Step: "reserve"})
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
		s.faults(t, simulator.Rule{Fault: simulator.CallbackNever, Step: "charge"})
		in := request("never")
		in.CompleteBy = time.Now().Add(time.Millisecond)
		if order := s.process(t, in); order.Status != "canceled" {
			t.Errorf("%s", brief(order))
		}
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
		if left := value[int64](t, s.Pool, `SELECT reserved FROM inventory`); left != 0 {
			t.Errorf("%d units stay reserved", left)
		}
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
	s.faults(t, simulator.Rule{Fault: simulator.Error, Step: "confirm"})
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
