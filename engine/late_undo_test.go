package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// gates holds statements back in the wire, by their names.
type gates map[string]*gate

type gate struct {
	arrived atomic.Int32
	open    chan struct{}
	release func()
}

func newGates(t *testing.T, p *proxy, names ...string) gates {
	t.Helper()
	g := gates{}
	for _, name := range names {
		open := make(chan struct{})
		g[name] = &gate{open: open, release: sync.OnceFunc(func() { close(open) })}
		t.Cleanup(g[name].release)
	}
	p.On(func(statement string) fate {
		if at := g[statement]; at != nil {
			at.arrived.Add(1)
			<-at.open
		}
		return passes
	})
	return g
}

// newDeath has a replica that speaks through a proxy hang for good from the moment it comes to a statement: for everybody
// else it is dead. Once it is released it comes back.
func newDeath(t *testing.T, p *proxy, name string) gates {
	t.Helper()
	open := make(chan struct{})
	at := &gate{open: open, release: sync.OnceFunc(func() { close(open) })}
	t.Cleanup(at.release)
	p.On(func(statement string) fate {
		if statement == name {
			at.arrived.Add(1)
		}
		if at.arrived.Load() > 0 {
			<-at.open
		}
		return passes
	})
	return gates{name: at}
}

func (g gates) wait(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" arrives", func() bool { return g[name].arrived.Load() > 0 })
}

// openToldLate is a shop whose order has failed because a person said so; its charge stands at the endpoint as ch_1, and
// tell has it say so. Everything goes through the proxy.
func openToldLate(t *testing.T) (s *shop, p *proxy, tell func()) {
	t.Helper()
	s = resting(quick, "charge/do: lost")(t)
	asks(settled(fsm.Charge, engine.SettledRefused, ""))(t, s)
	s.until(t, "order", "failed")
	stop(t, s.engine)
	p = newProxy(t, s.URL)
	s.only(startEngine(t, p.URL, s.cfg))
	s.provider.says("charge/do: done")
	return s, p, func() {
		t.Helper()
		reported("ch_1")(t, s)
	}
}

// A driver and a late undo go for one key at one moment. Each has looked up what an undo says before the other has begun.
func TestAVoidAndALateUndoOfOneKeySayTheSame(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *shop, name string) {
		t.Helper()
		s.until(t, "order", "retry") // charged again, and waits for its reservation
		standing("ch_2")(t, s)
		undidBy(name)(t, s)
		s.verified(t)
	}
	t.Run("the late undo begins first", func(t *testing.T) {
		t.Parallel()
		s, p, tell := openToldLate(t)
		g := newGates(t, p, "CallsBegin")
		retry(t, s)
		g.wait(t, "CallsBegin")
		tell()
		undoneLate(t, s)
		g["CallsBegin"].release()
		check(t, s, "ch_1")
	})
	t.Run("the driver begins first", func(t *testing.T) {
		t.Parallel()
		s, p, tell := openToldLate(t)
		g := newGates(t, p, "CallsBegin", "LateUndoBegin")
		retry(t, s)
		g.wait(t, "CallsBegin")
		tell()
		g.wait(t, "LateUndoBegin")
		g["CallsBegin"].release()
		s.until(t, "order", "retry")
		g["LateUndoBegin"].release()
		undoneLate(t, s)
		check(t, s, "")
	})
}

// A replica that dies between the claim of a late undo and its call holds it up for a lease, not for longer.
func TestALateUndoOfAReplicaThatDied(t *testing.T) {
	t.Parallel()
	s, p, tell := openToldLate(t)
	g := newDeath(t, p, "LateUndoBegin")
	tell()
	g.wait(t, "LateUndoBegin")
	s.counts(t, true, `SELECT due_at <= now() + interval '10 s' FROM late_undos`)
	s.exec(t, `UPDATE late_undos SET due_at = now()`) // its lease is over
	other := startEngine(t, s.URL, s.cfg)
	undoneLate(t, s)
	stop(t, other)
	g["LateUndoBegin"].release()
	stop(t, s.engine)
	s.counts(t, 1, `SELECT count(*) FROM step_calls WHERE call < 0`)
	assert.Equal(t, len(s.provider.named("charge")), 1, "undone")
	s.only(startEngine(t, s.URL, s.cfg))
	s.until(t, "order", "failed")
	standing()(t, s)
}

// While it is called, a late undo is nobody else's, and a person who closes it then has the last word.
func TestALateUndoThatHangs(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, engine.Config{RecoveryInterval: often, Lease: time.Second})
	s.use(t, atEndpoint("", "charge"))
	s.provider.says("charge/do: refused", "charge/undo: error")
	_, answer := s.provider.shut(t, "/charge/undo")
	q := settled(fsm.Charge, engine.SettledDone, "")
	q.Settle.Generation = new(int32(0))
	for _, do := range []act{
		admits(), is("failed"), lateUndo,
		comes(true, `SELECT due_at > now() + interval '50 seconds' FROM late_undos`), // the lease outlasts the call
		asks(q), func(*testing.T, *shop) { answer() },
		comes(true, `SELECT finished_at IS NOT NULL FROM step_calls WHERE call = -1`),
		shows(true, `SELECT finished_at IS NOT NULL AND code IS NULL AND detail = 'undone by hand' FROM late_undos`),
	} {
		do(t, s)
	}
}

// A late undo that goes by nothing is closed by a person, with a verb that is in the history, also of an order that ended.
func TestALateUndoIsClosedByAPerson(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, byCallers)
	s.use(t, eager)
	s.faults(t, "decline@reserve")
	before := s.process(t, request("order"))
	isNow(t, before, fsm.Failed)
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders`)
	settle := func(step fsm.Step, generation int32, outcome string) engine.Request {
		q := asked(orders.StepResult)
		q.RequestID, q.Settle = "ticket", &engine.Settled{Step: step, Generation: &generation, Outcome: outcome}
		return q
	}
	for _, wrong := range []engine.Request{settle(fsm.Reserve, 0, "done"), settle(fsm.Charge, 1, "done"),
		settle(fsm.Confirm, 0, "done")} {
		s.refused(t, wrong, orders.RefusedNoLateUndo)
	}
	s.refused(t, settle(fsm.Charge, 0, engine.SettledNotDone), orders.RefusedState)
	s.refused(t, asked(orders.Retry), orders.RefusedStillUndoing)
	q := settle(fsm.Charge, 0, engine.SettledDone)
	q.DryRun = true
	s.writesNothing(t, func() { s.do(t, q) })
	q.DryRun = false
	o := s.do(t, q)
	isNow(t, o, fsm.Failed)
	assert.Equal(t, o.Seq, before.Seq+1, "seq")
	s.heard(t, "order", orders.StepResult)
	s.writesNothing(t, func() { s.do(t, q) }) // the same request again
	q.RequestID = ""
	s.refused(t, q, orders.RefusedNoLateUndo)
	s.faults(t)
	s.ends(t, s.do(t, asked(orders.Retry)), fsm.Completed)
}

// Who reports a late effect reports it again, until its undoing is written down.
func TestACallbackAboutALateEffectIsNotTakenBeforeItsUndoIsOpen(t *testing.T) {
	t.Parallel()
	s, p, tell := openToldLate(t)
	p.loseOne("LateUndoOpen", loseRequest)
	done := engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ch_1"}}
	assert.ErrorIs(t, assert.Err(s.engine.Answer(t.Context(), s.tokenOf(t, "order"), done)), orders.ErrUnavailable)
	tell()
	undoneLate(t, s)
	s.until(t, "order", "failed")
	standing()(t, s)
}

// What a late callback calls the effect is the only name it is ever known by.
func TestALateEffectIsUndoneByItsName(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T) *shop {
		t.Helper()
		s := resting(quick, "charge/do: lost")(t)
		for _, do := range []act{aDay, asks(settled(fsm.Charge, engine.SettledRefused, "")), is("failed")} {
			do(t, s)
		}
		return s
	}
	play(t, []scene{
		{"though a person has said refused", failed, acts{
			reported("ch_1"), comes(true, finished), is("failed"), standing(), undidBy("ch_1")}},
		{"that is told after an undo was opened without it", failed, acts{reported(""), comes(true, byPerson),
			reported("ch_1"), comes(true, finished), is("failed"), standing(), undidBy("ch_1")}},
		{"and one that was closed by hand is told of again", failed, acts{reported(""), comes(true, byPerson),
			sql(`UPDATE late_undos SET finished_at = now(), detail = 'undone by hand', claims = 9`), reported(""),
			shows(true, `SELECT claims <= 1 FROM late_undos`), comes(true, byPerson), undidBy()}},
	})
}

// The answer to a replica that had lost the order reports a charge, and the database is away just then: nobody else has
// heard of that charge, and it must be undone.
func TestAFencedAnswerIsKeptWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"CallFenced", "LateUndoOpen"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			s := openBehind(t)
			s.use(t, atEndpoint("", "charge"))
			// The first call is answered after the second.
			var calls, lost atomic.Int32
			answer, arrived := make(chan struct{}), make(chan struct{})
			s.provider.meanwhile(func(c received) {
				if c.call == "charge/do" && calls.Add(1) == 1 {
					close(arrived)
					<-answer
					s.provider.says(`charge/do: 200 {"reference":"ch_1"}`)
				}
			})
			s.provider.says("charge/do: refused")
			s.admit(t, request("order"))
			<-arrived
			startEngine(t, s.URL, s.cfg)
			s.exec(t, `UPDATE orders SET due_at = now()`)
			s.until(t, "order", "failed")
			s.proxy.On(func(name string) fate {
				if name == statement && lost.Add(1) <= 3 {
					return loseRequest
				}
				return passes
			})
			close(answer)
			comes(true, `SELECT EXISTS (SELECT FROM late_undos WHERE finished_at IS NOT NULL AND reference = 'ch_1')`)(t, s.shop)
			assert.Equal(t, column[string](t, s.Pool, `SELECT reference FROM step_calls WHERE fenced`), []string{"ch_1"},
				"fenced")
			n := lost.Load()
			assert.True(t, n >= 4, "lost", n, "times")
		})
	}
}
