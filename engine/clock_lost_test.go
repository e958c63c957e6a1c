package engine_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/dbtest"
)

// A statement that the clock sends when there is something to do, or its answer, is lost: it is done all the same, and once.
func TestClockWithoutItsAnswer(t *testing.T) { //nolint:tparallel // one proxy loses statements for one of them at a time
	t.Parallel()
	s := openBehind(t)
	s.use(t, allAtTheSimulator+`approval: [{items: [dear]}]`)
	s.faults(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve", OrderPrefix: "undone"})
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
	eventually(t, "its time is up", func() bool {
		return value[bool](t, s.Pool, `SELECT complete_by < now() FROM orders WHERE order_id = $1`, in.OrderID)
	})
	due()
	s.until(t, in.OrderID, "canceled")
	if n := value[int](t, s.Pool, `SELECT count(*) FROM books.transitions WHERE order_id = $1 AND verb = 'deadline' AND reason = 'deadline_exceeded'`, in.OrderID); n != 1 {
		t.Errorf("its deadline was kept %d times", n)
	}
}

// undoesLateWithLoss loses what finds a late effect. Who claimed it without hearing of it does not come back for it before
// his lease has ended, which is made to be at once.
func (s *behind) undoesLateWithLoss(t *testing.T, id string, f fate) {
	t.Helper()
	if o := s.process(t, request(id)); o.Status != "failed" {
		t.Fatal(brief(o))
	}
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
