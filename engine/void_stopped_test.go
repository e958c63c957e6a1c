package engine_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// An order of the next generation whose old key is not answered for: its charge was never called for, whatever is asked.
func TestAVoidSaysNothingAboutTheCharge(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) (s *shop, answers *atomic.Bool) {
		t.Helper()
		answers = &atomic.Bool{}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !strings.HasSuffix(r.URL.Path, "/undo"):
				w.WriteHeader(http.StatusPaymentRequired)
			case !answers.Load():
				w.WriteHeader(http.StatusInternalServerError)
			}
		}))
		t.Cleanup(server.Close)
		s = openShop(t, 1, quick)
		s.use(t, strings.ReplaceAll(`charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", retry: {initial: 30m, cap: 30m}}`, "URL", server.URL))
		s.admit(t, request("one"))
		s.until(t, "one", "failed")
		s.verb(t, orders.Retry, nil)
		held := s.until(t, "one", "retry")
		if held.InDoubtSince != nil || held.Generation != 1 {
			t.Errorf("generation %d, in doubt since %v", held.Generation, held.InDoubtSince)
		}
		return s, answers
	}
	t.Run("canceled it was not charged, and the void goes on", func(t *testing.T) {
		t.Parallel()
		s, answers := open(t)
		s.verb(t, orders.Cancel, nil)
		s.until(t, "one", "canceled")
		for _, table := range []string{"charges", "refunds"} {
			if n := value[int](t, s.Pool, `SELECT count(*) FROM `+table); n != 0 {
				t.Errorf("%d %s", n, table)
			}
		}
		answers.Store(true)
		eventually(t, "the old key is undone", func() bool {
			s.exec(t, `UPDATE late_undos SET due_at = now() WHERE finished_at IS NULL AND code IS NOT NULL`)
			return value[bool](t, s.Pool, `SELECT EXISTS (SELECT FROM books.late_undos WHERE order_id = 'one' AND step = 'charge' AND generation = 0
				AND finished_at IS NOT NULL)`)
		})
		if keys := column[string](t, s.Pool, `SELECT DISTINCT format('%s of generation %s', operation, generation) FROM step_calls WHERE generation > 0`); len(keys) > 0 {
			t.Errorf("called: %q", keys)
		}
		s.verified(t)
	})
	t.Run("nobody can say what became of it", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t)
		for _, outcome := range []string{engine.SettledDone, engine.SettledRefused, engine.SettledNotDone} {
			s.refused(t, engine.Request{Verb: orders.StepResult, OrderID: "one", Actor: "t",
				Settle: &engine.Settled{Step: fsm.Charge, Outcome: outcome}}, orders.RefusedNotCalled)
		}
	})
	t.Run("the ledger does not charge it before the old key is dead", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t)
		s.use(t, "{}")
		s.refused(t, engine.Request{Verb: orders.Retry, OrderID: "one", Actor: "t", ActivePolicy: true}, orders.RefusedPolicySwitch)
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
		if _, err := database.Pool.Exec(t.Context(), `UPDATE orders SET due_at = now()`); err != nil {
			t.Fatal(err)
		}
		g.claim(t, "one")
	}
}
