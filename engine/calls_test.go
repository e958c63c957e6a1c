package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/simulator"
)

// poolOf reads how busy a replica is with a step of a policy.
func poolOf(e *engine.Engine, version int32, of fsm.Step) engine.CallPoolStats {
	pools := e.CallPools()
	if i := slices.IndexFunc(pools, func(l engine.CallPoolStats) bool { return l.Policy == version && l.Step == of }); i >= 0 {
		return pools[i]
	}
	return engine.CallPoolStats{}
}

// A provider that hangs fills its own call pool, and holds up nobody else.
func TestProviderThatHangs(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	hangs := s.use(t, `
charge: {executor: simulator, url: SIM, timeout: 60s, inFlight: 3, queue: 5, retry: {initial: 30m, cap: 30m}, breaker: {failures: 1000}, keyRetention: 8760h}`)
	s.faults(t, simulator.Rule{Fault: simulator.Hang, OrderPrefix: "stuck"})
	const orders = 20
	for i := range orders {
		s.admit(t, request(fmt.Sprintf("stuck%d", i)))
	}
	eventually(t, "the call pool is full, and who finds no place is held", func() bool {
		pool := poolOf(s.engine, hangs, fsm.Charge)
		held := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = 'retry' AND hold_reason = 'queue_full'`)
		return pool.InFlight == 3 && pool.Queued == 5 && held == orders-8
	})
	if n := value[int64](t, s.Pool, `SELECT count(*) FROM step_calls`); n != 3 {
		t.Errorf("%d calls", n)
	}
	if w, err := s.engine.Waiting(t.Context()); err != nil || w.Held["retry"].Orders != orders-8 || w.Held["attention"].Orders != 0 || len(w.Held) != 7 {
		t.Errorf("%+v, %v", w, err)
	}
	for name, policy := range map[string]string{"ledger": `{}`, "other": `reserve: {executor: simulator, url: SIM}`} {
		s.use(t, policy)
		var callers sync.WaitGroup
		for i := range 50 {
			callers.Go(func() {
				if o := s.process(t, request(fmt.Sprintf("%s%d", name, i))); o.Status != "completed" {
					t.Error(brief(o))
				}
			})
		}
		callers.Wait()
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	registry, cfg := prometheus.NewRegistry(), quick
	cfg.Registerer = registry
	s := openShop(t, 1, cfg)
	version := s.use(t, `
charge: {executor: simulator, url: SIM, inFlight: 1, retry: {initial: 5ms, cap: 10ms, maxRetries: 999}, breaker: {failures: 3, open: 200ms}}`)
	s.faults(t, simulator.Rule{Fault: simulator.Error, Status: 500})
	for i := range 6 {
		s.admit(t, request(fmt.Sprintf("o%d", i)))
	}
	eventually(t, "it opens", func() bool { return poolOf(s.engine, version, fsm.Charge).Breaker == gobreaker.StateOpen })
	eventually(t, "orders are held for it", func() bool {
		return value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = 'retry' AND hold_reason = 'breaker_open'`) > 0
	})
	s.faults(t)
	eventually(t, "all go on when the provider is well", func() bool {
		return value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`) == 6
	})
	if pool := poolOf(s.engine, version, fsm.Charge); pool.Breaker != gobreaker.StateClosed || pool.InFlight != 0 || pool.Queued != 0 {
		t.Errorf("%+v", pool)
	}
	counted := value[int64](t, s.Pool, `SELECT count(*) FROM step_calls WHERE outcome = 'unknown'`)
	made := int64(metric(t, registry, "pawl_step_calls_total", "do unknown charge"))
	if made != counted || made < 3 {
		t.Errorf("counted %d of %d calls", made, counted)
	}
}

// To ask for patience is no illness, and to refuse is none.
func TestBreakerStaysClosed(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	version := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms}, breaker: {failures: 1, open: 1h}}`)
	s.faults(t, simulator.Rule{Fault: simulator.RateLimit, Delay: time.Millisecond, Times: 2, OrderPrefix: "patient"}, simulator.Rule{Fault: simulator.Decline, OrderPrefix: "poor"})
	for id, want := range map[string]fsm.State{"patient": "completed", "poor": "failed"} {
		if o := s.process(t, request(id)); o.Status != want {
			t.Error(brief(o))
		}
	}
	if pool := poolOf(s.engine, version, fsm.Charge); pool.Breaker != gobreaker.StateClosed {
		t.Errorf("%+v", pool)
	}
}

// When an order is tried next is in the database: a replica that starts later goes by it.
func TestRetrySurvivesARestart(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 1s, cap: 1s}}`)
	s.faults(t, simulator.Rule{Fault: simulator.RateLimit, Delay: 5 * time.Second, Times: 1})
	s.admit(t, request("later"))
	held := s.until(t, "later", "retry")
	if held.DueAt == nil || held.HoldReason == nil || *held.Calls != 1 {
		t.Fatal(brief(held))
	}
	stop(t, s.engine)
	if now := s.get(t, "later"); !now.DueAt.Equal(*held.DueAt) || now.Seq != held.Seq {
		t.Errorf("it was %s, it is %s", brief(held), brief(now))
	}
	s.engine = s.replica(t, s.cfg)
	s.engines = []*engine.Engine{s.engine}
	s.until(t, "later", "completed")
	second := value[time.Time](t, s.Pool, `SELECT started_at FROM step_calls WHERE call = 2`)
	if second.Before(*held.DueAt) {
		t.Errorf("tried at %s, before %s", second, held.DueAt)
	}
}

// An order keeps the policy it started with, whatever is active meanwhile, also over a restart.
func TestPolicyIsPinned(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	first := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 5ms, maxRetries: 999}}
reserve: {executor: simulator, url: SIM}`)
	s.faults(t, simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
	s.admit(t, request("old"))
	s.until(t, "old", "retry")
	second := s.use(t, `confirm: {executor: simulator, url: SIM}`)
	s.process(t, request("new"))
	s.replace(t, 0)
	s.replace(t, 1)
	s.faults(t)
	s.until(t, "old", "completed")
	for id, want := range map[string]struct {
		version int32
		steps   []string
	}{"old": {first, []string{"charge live", "reserve live"}}, "new": {second, []string{"confirm live"}}} {
		if o := s.get(t, id); *o.Policy != want.version {
			t.Errorf("%s has policy %d", id, *o.Policy)
		}
		s.stands(t, id, want.steps...)
	}
}

// An order whose policy a replica does not know is left to those that do.
func TestUnknownPolicyIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := setupWith(t, quick)
	b.exec(t, `INSERT INTO orders (order_id, status, fence, owner, due_at, amount, currency, item, policy)
		VALUES ('newer', 'charging', 1, gen_random_uuid(), now(), 1, 'USD', 'i', 4711)`)
	eventually(t, "it is seen again and again", func() bool { return b.engine.Stats.UnknownPolicy.Load() > 2 })
	if o, err := b.engine.Orders.Get(t.Context(), "newer"); err != nil || o.Fence != 1 || o.Seq != 1 {
		t.Error(err, brief(o))
	}
}
