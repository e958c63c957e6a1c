package engine_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
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

// openToldLate is a keeper whose order "one" has failed because a person said so; its charge stands there as ch_1, and
// tell has it say so. Everything goes through the proxy.
func openToldLate(t *testing.T) (s *shop, k *keeper, p *proxy, tell func()) {
	t.Helper()
	k = &keeper{mute: true}
	s = openKeeper(t, k)
	token := s.tokenOf(t, "one")
	s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
	s.until(t, "one", "failed")
	stop(t, s.engine)
	p = newProxy(t, s.URL)
	s.only(startEngine(t, p.URL, s.cfg))
	k.says(func(k *keeper) { k.mute = false })
	return s, k, p, func() {
		t.Helper()
		s.reports(t, token, "ch_1")
	}
}

func (s *shop) lateUndosDone(t *testing.T) {
	t.Helper()
	eventually(t, "it is undone late", func() bool {
		s.exec(t, `UPDATE late_undos SET due_at = now() WHERE code IS NOT NULL`)
		return value[bool](t, s.Pool, `SELECT coalesce(bool_and(finished_at IS NOT NULL), false) FROM late_undos`)
	})
}

// A driver and a late undo go for one key at one moment. Each has looked up what an undo says before the other has begun.
func TestAVoidAndALateUndoOfOneKeySayTheSame(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *shop, k *keeper, name string) {
		t.Helper()
		s.until(t, "one", "retry") // charged again, and waits for its reservation
		k.says(func(k *keeper) {
			if len(k.faults) > 0 || len(k.live) != 1 || k.live["ch_1"] {
				t.Errorf("charged: %v; %q", k.live, k.faults)
			}
		})
		assert.Equal(t, k.named(), []string{name}, "named", name)
		s.verified(t)
	}
	t.Run("the late undo begins first", func(t *testing.T) {
		t.Parallel()
		s, k, p, tell := openToldLate(t)
		g := newGates(t, p, "CallsBegin")
		s.verb(t, orders.Retry, nil)
		g.wait(t, "CallsBegin")
		tell()
		s.lateUndosDone(t)
		g["CallsBegin"].release()
		check(t, s, k, "ch_1")
	})
	t.Run("the driver begins first", func(t *testing.T) {
		t.Parallel()
		s, k, p, tell := openToldLate(t)
		g := newGates(t, p, "CallsBegin", "LateUndoBegin")
		s.verb(t, orders.Retry, nil)
		g.wait(t, "CallsBegin")
		tell()
		g.wait(t, "LateUndoBegin")
		g["CallsBegin"].release()
		s.until(t, "one", "retry")
		g["LateUndoBegin"].release()
		s.lateUndosDone(t)
		check(t, s, k, "")
	})
}

// A replica that dies between the claim of a late undo and its call holds it up for a lease, not for longer.
func TestALateUndoOfAReplicaThatDied(t *testing.T) {
	t.Parallel()
	s, k, p, tell := openToldLate(t)
	g := newDeath(t, p, "LateUndoBegin")
	tell()
	g.wait(t, "LateUndoBegin")
	if left := value[float64](t, s.Pool, `SELECT extract(epoch FROM due_at - now())::float8 FROM late_undos`); left > 10 {
		t.Errorf("claimed for %.0f more seconds", left)
	}
	s.exec(t, `UPDATE late_undos SET due_at = now()`) // its lease is over
	other := startEngine(t, s.URL, s.cfg)
	s.lateUndosDone(t)
	stop(t, other)
	g["LateUndoBegin"].release()
	stop(t, s.engine)
	if calls := value[int](t, s.Pool, `SELECT count(*) FROM step_calls WHERE call < 0`); calls != 1 || len(k.named()) != 1 {
		t.Errorf("%d calls, undone %q", calls, k.named())
	}
	s.only(startEngine(t, s.URL, s.cfg))
	s.undone(t, k, fsm.Failed)
}

// While it is called, a late undo is nobody else's, and a person who closes it then has the last word.
func TestALateUndoThatHangs(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/undo") {
			<-hang
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusPaymentRequired)
	}))
	t.Cleanup(server.Close)
	s := openShop(t, 2, engine.Config{RecoveryInterval: often, Lease: time.Second})
	s.use(t, strings.ReplaceAll(`charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", timeout: 60s}`, "URL", server.URL))
	s.admit(t, request("one"))
	s.until(t, "one", "failed")
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
	eventually(t, "it is called for, and the lease outlasts the call", s.answers(t, true,
		`SELECT due_at > now() + interval '50 seconds' FROM late_undos`))
	q := engine.Request{Verb: orders.StepResult, OrderID: "one", Actor: "ann", Reason: "seen to it",
		Settle: &engine.Settled{Step: fsm.Charge, Generation: new(int32(0)), Outcome: engine.SettledDone}}
	s.do(t, q)
	close(hang)
	eventually(t, "the call is answered", s.answers(t, true, `SELECT finished_at IS NOT NULL FROM step_calls WHERE call = -1`))
	if !value[bool](t, s.Pool, `SELECT finished_at IS NOT NULL AND code IS NULL AND detail = 'undone by hand' FROM late_undos`) {
		t.Error("it is open again")
	}
}

// A late undo that goes by nothing is closed by a person, with a verb that is in the history, also of an order that ended.
func TestALateUndoIsClosedByAPerson(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	b := remote(t, byCallers, p.quick(""))
	p.fail(t, rules("reserve", "decline")...)
	b.process(t, request("order"))
	before, err := b.engine.Orders.Get(t.Context(), "order")
	if err != nil || before.Status != fsm.Failed {
		t.Fatalf("%v, %s", err, before.Status)
	}
	b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders`)
	q := asked(orders.StepResult)
	q.RequestID = "ticket"
	settle := func(step fsm.Step, generation int32, outcome string) *engine.Settled {
		return &engine.Settled{Step: step, Generation: &generation, Outcome: outcome}
	}
	for _, wrong := range []*engine.Settled{settle(fsm.Reserve, 0, "done"), settle(fsm.Charge, 1, "done"), settle(fsm.Confirm, 0, "done")} {
		q.Settle = wrong
		b.refused(t, q, orders.RefusedNoLateUndo)
	}
	q.Settle = settle(fsm.Charge, 0, engine.SettledNotDone)
	b.refused(t, q, orders.RefusedState)
	b.refused(t, asked(orders.Retry), orders.RefusedStillUndoing)
	q.Settle = settle(fsm.Charge, 0, engine.SettledDone)
	q.DryRun = true
	b.writesNothing(t, func() { b.do(t, q) })
	q.DryRun = false
	o := b.do(t, q)
	if o.Seq != before.Seq+1 || o.Status != fsm.Failed {
		t.Errorf("%s, seq %d after %d", o.Status, o.Seq, before.Seq)
	}
	b.heard(t, "order", orders.StepResult)
	b.writesNothing(t, func() { b.do(t, q) }) // the same request again
	q.RequestID = ""
	b.refused(t, q, orders.RefusedNoLateUndo)
	p.fail(t)
	b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
}

// Who reports a late effect reports it again, until its undoing is written down.
func TestACallbackAboutALateEffectIsNotTakenBeforeItsUndoIsOpen(t *testing.T) {
	t.Parallel()
	s, k, p, tell := openToldLate(t)
	token := s.tokenOf(t, "one")
	p.loseOne("LateUndoOpen", loseRequest)
	if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ch_1"}}); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("answered %v", err)
	}
	tell()
	s.lateUndosDone(t)
	s.undone(t, k, fsm.Failed)
}

// What a late callback calls the effect is the only name it is ever known by.
func TestALateEffectIsUndoneByItsName(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T) (s *shop, k *keeper, tell func(reference string)) {
		t.Helper()
		k = &keeper{mute: true}
		s = openKeeper(t, k)
		token := s.tokenOf(t, "one")
		s.aDayPasses(t, k)
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
		s.until(t, "one", "failed")
		return s, k, func(reference string) {
			t.Helper()
			s.reports(t, token, reference)
		}
	}
	finished := func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, "it is undone", s.answers(t, true,
			`SELECT coalesce(bool_and(finished_at IS NOT NULL AND code IS NULL), false) FROM late_undos`))
	}
	byPerson := func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, "it says that a person must", s.answers(t, true,
			`SELECT coalesce(bool_or(code = 'outcome_unknown'), false) FROM late_undos`))
	}
	named := func(t *testing.T, k *keeper) {
		t.Helper()
		assert.Equal(t, k.named(), []string{"ch_1"}, "named")
	}
	t.Run("though a person has said refused", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("ch_1")
		finished(t, s)
		s.undone(t, k, fsm.Failed)
		named(t, k)
	})
	t.Run("that is told after an undo was opened without it", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("")
		byPerson(t, s)
		tell("ch_1")
		finished(t, s)
		s.undone(t, k, fsm.Failed)
		named(t, k)
	})
	t.Run("and one that was closed by hand is told of again", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("")
		byPerson(t, s)
		s.exec(t, `UPDATE late_undos SET finished_at = now(), detail = 'undone by hand', claims = 9`)
		tell("")
		if claims := value[int](t, s.Pool, `SELECT claims FROM late_undos`); claims > 1 {
			t.Errorf("opened again after %d claims", claims)
		}
		byPerson(t, s)
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
}

// The answer to a replica that had lost the order reports a charge, and the database is away just then: nobody else has
// heard of that charge, and it must be undone.
func TestAFencedAnswerIsKeptWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"CallFenced", "LateUndoOpen"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			var calls, lost atomic.Int32
			hang := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/undo"): // done
				case calls.Add(1) == 1:
					<-hang
					_, _ = w.Write([]byte(`{"reference":"ch_1"}`))
				default:
					w.WriteHeader(http.StatusPaymentRequired)
				}
			}))
			t.Cleanup(server.Close)
			s := openBehind(t)
			s.use(t, strings.ReplaceAll(`charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", timeout: 60s}`, "URL", server.URL))
			s.admit(t, request("one"))
			eventually(t, "it is called for", func() bool { return calls.Load() == 1 })
			startEngine(t, s.URL, engine.Config{RecoveryInterval: often})
			s.exec(t, `UPDATE orders SET due_at = now()`)
			s.until(t, "one", "failed")
			s.proxy.On(func(name string) fate {
				if name == statement && lost.Add(1) <= 3 {
					return loseRequest
				}
				return passes
			})
			close(hang)
			eventually(t, "the late charge is undone", s.answers(t, true,
				`SELECT EXISTS (SELECT FROM late_undos WHERE finished_at IS NOT NULL AND reference = 'ch_1')`))
			if fenced := column[string](t, s.Pool, `SELECT reference FROM step_calls WHERE fenced`); len(fenced) != 1 || fenced[0] != "ch_1" || lost.Load() < 4 {
				t.Errorf("fenced: %q, lost %d times", fenced, lost.Load())
			}
		})
	}
}
