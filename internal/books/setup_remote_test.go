package books_test

import (
	"time"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/provider"
)

// admitRemote begins an order whose steps are done by a provider.
func (s *shop) admitRemote(id, item string) {
	s.Helper()
	s.admit(id, item)
	s.sql("UPDATE orders SET policy = 1 WHERE order_id = '" + id + "'")
}

func (s *shop) set(id string) ledger.Batch {
	o := s.order(id)
	return ledger.Batch{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq}
}

// call begins a call: its answer is still to come.
func (s *shop) call(id string) {
	s.Helper()
	o := s.order(id)
	operation := provider.Do
	if o.Status.Undoing() {
		operation = provider.Undo
	}
	begun, err := s.q.CallsBegin(s.ctx, db.CallsBeginParams{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence,
		Seq: o.Seq, Step: string(stepOf[o.Status]), Operation: string(operation), LeaseSeconds: 60})
	s.must(err)
	if len(begun) != 1 {
		s.Fatalf("order %q: no call begins in %s", id, o.Status)
	}
}

var stepOf = map[fsm.State]fsm.Step{
	fsm.Charging: fsm.Charge, fsm.Refunding: fsm.Charge, fsm.Reserving: fsm.Reserve, fsm.Releasing: fsm.Reserve, fsm.Confirming: fsm.Confirm,
}

// answer takes an order out of its state. Charges only authorize.
func (s *shop) answer(id string, verdict fsm.Outcome, consumes bool) {
	s.Helper()
	set := s.set(id)
	a := ledger.Results{Batch: set, Outcome: verdict, Step: stepOf[set.Expected], Executor: "simulator", Consumes: consumes,
		Of: map[int64]ledger.Answer{set.OrderNos[0]: {Reference: "ref", Code: "card_declined"}}}
	if set.Expected == fsm.Charging {
		a.Capture = "on_confirm"
	}
	moved, err := ledger.SaveResults(s.ctx, s.q, a)
	s.must(err)
	if len(moved) != 1 {
		s.Fatalf("order %q did not leave %s", id, set.Expected)
	}
}

// done calls and is answered, for all the states given.
func (s *shop) done(id string, states ...fsm.State) {
	s.Helper()
	for _, state := range states {
		if at := s.order(id).Status; at != state {
			s.Fatalf("order %q is %s, not %s", id, at, state)
		}
		s.call(id)
		s.answer(id, fsm.Done, false)
	}
}

// tell stores an answer that came without a call, as a callback does.
func (s *shop) tell(id string, of fsm.Step) {
	s.Helper()
	s.sql("INSERT INTO step_answers (order_no, generation, step, source, outcome) SELECT order_no, generation, '" +
		string(of) + "', 'callback', 'done' FROM orders WHERE order_id = '" + id + "'")
}

// fillRemote makes orders that a provider has to do with, named after what became of them.
func (s *shop) fillRemote() {
	s.Helper()
	for _, id := range []string{"sold", "refused", "stopped", "in doubt", "waiting", "told", "voiding", "late"} {
		s.admitRemote(id, "boat")
	}
	s.done("sold", fsm.Charging, fsm.Reserving, fsm.Confirming)

	s.done("refused", fsm.Charging, fsm.Reserving)
	s.call("refused")
	s.answer("refused", fsm.Refused, false)
	s.done("refused", fsm.Releasing, fsm.Refunding)

	s.call("stopped")
	s.stop("stopped")
	s.answer("stopped", fsm.Stopped, false)
	s.done("stopped", fsm.Refunding)

	s.call("in doubt")

	s.done("waiting", fsm.Charging)
	s.call("waiting")
	waiting := s.set("waiting")
	_, err := ledger.Suspend(s.ctx, s.q, ledger.Suspensions{Batch: waiting,
		Of: map[int64]ledger.Suspension{waiting.OrderNos[0]: {Hold: "callback", Delay: time.Hour, Outcome: "waiting"}}})
	s.must(err)

	s.call("told")
	s.sql("UPDATE step_calls SET finished_at = now(), outcome = 'waiting' WHERE" + of("told"))
	s.tell("told", fsm.Charge)
	s.answer("told", fsm.Done, true)

	s.done("voiding", fsm.Charging)
	s.call("voiding")
	s.stop("voiding")
	s.answer("voiding", fsm.Stopped, false)

	s.call("late")
	s.answer("late", fsm.Refused, false)
	s.sql("INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders WHERE order_id = 'late'")
}
