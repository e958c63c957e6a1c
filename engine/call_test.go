package engine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy/store"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// poolOf reads how busy a replica is with a step of a policy.
func poolOf(e *engine.Engine, version int32, of fsm.Step) orders.ProviderStep {
	pools := e.CallPools()
	if i := slices.IndexFunc(pools, func(l orders.ProviderStep) bool { return l.Policy == version && l.Step == of }); i >= 0 {
		return pools[i]
	}
	return orders.ProviderStep{}
}

// A provider that hangs fills its own call pool, and holds up nobody else.
func TestProviderThatHangs(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	hangs := s.use(t, `
charge: {executor: simulator, url: SIM, timeout: 60s, inFlight: 3, queue: 5, retry: {initial: 30m, cap: 30m}, breaker: {failures: 1000}, keyRetention: 8760h}`)
	s.faults(t, "hang,order=stuck")
	const orders = 20
	for i := range orders {
		s.admit(t, request(fmt.Sprintf("stuck%d", i)))
	}
	eventually(t, "the call pool is full, and who finds no place is held", func() bool {
		pool := poolOf(s.engine, hangs, fsm.Charge)
		held := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = 'retry' AND hold_reason = 'queue_full'`)
		return pool.InFlight == 3 && pool.Queued == 5 && held == orders-8
	})
	s.counts(t, 3, `SELECT count(*) FROM step_calls`)
	w, err := s.engine.Orders.Waiting(t.Context(), s.engine.Backlog())
	assert.True(t, err == nil && w.Held["retry"].Orders == orders-8 && w.Held["attention"].Orders == 0 && len(w.Held) == 7, w, err)
	for name, policy := range map[string]string{"ledger": `{}`, "other": `reserve: {executor: simulator, url: SIM}`} {
		s.use(t, policy)
		var callers sync.WaitGroup
		for i := range 50 {
			callers.Go(func() {
				isNow(t, s.process(t, request(fmt.Sprintf("%s%d", name, i))), "completed")
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
	s.faults(t, "error:500")
	for i := range 6 {
		s.admit(t, request(fmt.Sprintf("o%d", i)))
	}
	eventually(t, "it opens", func() bool { return poolOf(s.engine, version, fsm.Charge).Breaker == "open" })
	eventually(t, "orders are held for it", func() bool {
		return value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = 'retry' AND hold_reason = 'breaker_open'`) > 0
	})
	s.faults(t)
	eventually(t, "all go on when the provider is well", s.answers(t, 6,
		`SELECT count(*) FROM orders WHERE ended_as = 'completed'`))
	pool := poolOf(s.engine, version, fsm.Charge)
	assert.True(t, pool.Breaker == "closed" && pool.InFlight == 0 && pool.Queued == 0, pool)
	counted := value[int64](t, s.Pool, `SELECT count(*) FROM step_calls WHERE outcome = 'unknown'`)
	made := int64(metric(t, registry, "pawl_step_calls_total", "do unknown charge"))
	assert.True(t, made == counted && made >= 3, "counted", made, "of", counted, "calls")
}

// Orders that come while the breaker is open are all due when it lets a call through, not a whole pause after they came.
func TestBreakerDelaysNoOrderTwice(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 1ms}, breaker: {failures: 1, open: 1h}}`)
	s.faults(t, "error:500")
	for i := range 20 {
		s.admit(t, request(fmt.Sprintf("o%d", i)))
		s.until(t, fmt.Sprintf("o%d", i), "retry")
	}
	eventually(t, "they are held until the same moment", s.answers(t, true, `SELECT count(*) > 10
		AND max(due_at) - min(due_at) < (max(created_at) - min(created_at)) / 2
		FROM orders WHERE hold_reason = 'breaker_open'`))
}

// While one call tries whether the provider is back, other orders wait for its result, and no longer.
func TestBreakerThatCloses(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	version := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}, breaker: {failures: 1, open: 1ms}}`)
	s.faults(t, "error:500,order=first")
	s.admit(t, request("first"))
	s.until(t, "first", "retry")
	eventually(t, "it is half-open", func() bool { return poolOf(s.engine, version, fsm.Charge).Breaker == "half_open" })
	called, open := s.door.shut(t, "/charge")
	for i := range 5 {
		s.admit(t, request(fmt.Sprintf("o%d", i)))
	}
	eventually(t, "one is called, and the others wait", func() bool {
		return called.Load() == 1 && poolOf(s.engine, version, fsm.Charge).Queued == 4
	})
	open()
	eventually(t, "all are completed", s.answers(t, 5, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`))
	s.counts(t, 0, `SELECT count(*) FROM transitions WHERE reason = 'breaker_open'`)
}

// To ask for patience is no illness, and to refuse is none.
func TestBreakerStaysClosed(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	version := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms}, breaker: {failures: 1, open: 1h}}`)
	s.faults(t, "rate-limit2:1ms,order=patient", "decline,order=poor")
	for id, want := range map[string]fsm.State{"patient": "completed", "poor": "failed"} {
		isNow(t, s.process(t, request(id)), want)
	}
	pool := poolOf(s.engine, version, fsm.Charge)
	assert.Equal(t, pool.Breaker, "closed", pool)
}

// When an order is tried next is in the database: a replica that starts later goes by it.
func TestRetrySurvivesARestart(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 1s, cap: 1s}}`)
	s.faults(t, "rate-limit1:5s")
	s.admit(t, request("later"))
	held := s.until(t, "later", "retry")
	assert.Require(t, held.DueAt != nil && held.HoldReason != nil && *held.Calls == 1, brief(held))
	stop(t, s.engine)
	now := s.get(t, "later")
	assert.True(t, now.DueAt.Equal(*held.DueAt) && now.Seq == held.Seq, "it was", brief(held), "it is", brief(now))
	s.only(s.replica(t, s.cfg))
	s.until(t, "later", "completed")
	second := value[time.Time](t, s.Pool, `SELECT started_at FROM step_calls WHERE call = 2`)
	assert.True(t, !second.Before(*held.DueAt), "tried at", second, "before", held.DueAt)
}

// An order keeps the policy it started with, whatever is active meanwhile, also over a restart.
func TestPolicyIsPinned(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	first := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 5ms, maxRetries: 999}}
reserve: {executor: simulator, url: SIM}`)
	s.faults(t, "not-done@charge")
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
		assert.Equal(t, *s.get(t, id).Policy, want.version, id, "has policy")
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
	o, err := b.engine.Orders.Get(t.Context(), "newer")
	assert.True(t, err == nil && o.Fence == 1 && o.Seq == 1, err, brief(o))
}

// made are the calls that the books have of an order: operation, outcome and code.
func (b *bundle) made(t testing.TB, orderID string) []string {
	t.Helper()
	return column[string](t, b.Pool, `SELECT concat_ws(' ', operation, outcome, code) FROM books.step_calls WHERE order_id = $1 ORDER BY call`, orderID)
}

// lingering is an endpoint that loses the connection of a charge and goes on working on it; it tells those who ask how far it
// is. No clock has a part in it.
func lingering(retry string, lookups ...string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := with(atEndpoint(", lookupUrl: ENDPOINT/charge/lookup, retry: "+retry, "charge"))(t)
		s.provider.says("charge/do: cut", "charge/lookup: "+strings.Join(lookups, "; "))
		return s
	}
}

const inProgress, isDone = `200 {"state":"in_progress"}`, `200 {"state":"done","reference":"ch_1"}`

// calledFor checks the calls that the books have of the order.
func calledFor(want ...string) act {
	return func(t *testing.T, s *shop) { t.Helper(); assert.Equal(t, s.made(t, "order"), want, "calls") }
}

func TestAProviderThatTakesItsTime(t *testing.T) {
	t.Parallel()
	asked := asked(orders.Retry)
	askedAgain := func(t *testing.T, s *shop) {
		t.Helper()
		held := s.get(t, "order")
		retry(t, s)
		eventually(t, "it was asked, and waits again", func() bool {
			o := s.get(t, "order")
			return o.Seq > held.Seq+1 && text(o.Hold) == "callback"
		})
	}
	play(t, []scene{
		// It is asked until it is done. Nobody calls back, so nothing else would tell.
		{"is asked until it is done", lingering("{initial: 1ms, cap: 50ms, maxRetries: 2}", inProgress, inProgress,
			inProgress, inProgress, isDone),
			acts{processes("completed"), charges(1), calledFor("do unknown connection_lost", "lookup unknown in_progress",
				"lookup unknown in_progress",
				"lookup unknown in_progress", "lookup unknown in_progress", "lookup done")}},
		// What is in progress for longer than retries and budget last comes to a person, and a retry asks at once.
		{"and is never done comes to a person", lingering("{initial: 30m, cap: 30m, maxRetries: 1, budget: 0s}",
			inProgress), acts{
			admits(), is("retry"), due, is("charging attention: retries_exhausted"), calledFor("do unknown connection_lost", "lookup unknown in_progress"),
			says("charge/lookup: " + isDone), retry, is("completed"),
			calledFor("do unknown connection_lost", "lookup unknown in_progress", "lookup done")}},
		// Whoever does not want to wait for a callback asks: by a look-up, or with the same key where there is none.
		{"is asked by a retry", with(`charge: {executor: simulator, url: SIM}`), acts{
			fails("callback-never1"), admits(), is("callback"),
			allows("cancel", "retry", "pause", "step-result"), does(asked, "completed"), calledFor("do waiting",
				"lookup done"), stands("charge live")}},
		{"and can't be asked is sent the same again",
			with(`charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo}`), acts{
				fails("callback-never1"), admits(), is("callback"), does(asked, "completed"), calledFor("do waiting",
					"do done"), stands("charge live")}},
		{"and still owes the callback is waited for", with(`charge: {executor: simulator, url: SIM}`), acts{
			fails("async:1h"), admits(), is("callback"),
			askedAgain, calledFor("do waiting", "lookup waiting")}},
		// A request that never arrived is sent again at once when the look-up says so, by a call of its own.
		{"and got no request is sent another one",
			with(`charge: {executor: simulator, url: SIM, timeout: 1m, retry: {initial: 1ms, cap: 1ms}}`), acts{
				fails("refuse-connection1"), processes("completed"), calledFor("do unknown connection_lost",
					"lookup retry unseen", "do done"),
				func(t *testing.T, s *shop) { t.Helper(); s.called(t, "order", "charge/do", "charge/do") }}},
	})
}

// executor is something that charges, with what it knows of that.
type executor struct {
	policy string
	// charged says how often it has charged an order, and how often it took that back.
	charged func(t *testing.T, s *shop, orderID string) (times, undone int)
}

// executors are all there are: the ledger, which charges in the commit of its move, and those that are remote. Stock is
// the ledger's, so that an order is refused after its charge wherever that was made.
func executors(t *testing.T, s *shop) map[string]executor {
	t.Helper()
	ofSimulator := func(_ *testing.T, s *shop, orderID string) (times, undone int) {
		for _, e := range s.sim.Books(orderID) {
			if e.Step != "charge" {
				continue
			}
			times += e.Effects
			if e.State == simulator.Undone {
				undone++
			}
		}
		return times, undone
	}
	key := filepath.Join(t.TempDir(), "key")
	assert.NoError(t, os.WriteFile(key, []byte("sk_test_1"), 0o600))
	stripe := fmt.Sprintf("charge: {executor: stripe, url: SIM, secret: %q", "file:"+key)
	return map[string]executor{
		"ledger": {"{}", func(t *testing.T, s *shop, orderID string) (times, undone int) {
			t.Helper()
			return value[int](t, s.Pool, `SELECT count(*) FROM books.charges WHERE order_id = $1`, orderID),
				value[int](t, s.Pool, `SELECT count(*) FROM books.refunds WHERE order_id = $1`, orderID)
		}},
		"simulator":                   {"charge: {executor: simulator, url: SIM}", ofSimulator},
		"http":                        {"charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: SIM/charge/refund}", ofSimulator},
		"stripe":                      {stripe + "}", ofSimulator},
		"stripe, captured on confirm": {stripe + ", capture: on_confirm}\nconfirm: {executor: stripe}", ofSimulator},
	}
}

// TestEveryExecutor runs whole orders: what an order is promised does not depend on who does its steps.
func TestEveryExecutor(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ledger", "simulator", "http", "stripe", "stripe, captured on confirm"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			x := executors(t, s)[name]
			s.use(t, x.policy)
			keeps(t, s, func(orderID string) (int, int) { return x.charged(t, s, orderID) })
			taken := map[string]int{"well": 1, "crowd": 1, "seen": 1, "refused": 0}
			for _, e := range s.sim.Books("") { // what was only authorized is taken, of orders that were not refused
				assert.True(t, e.Step != "confirm" || e.State == simulator.Live && e.Effects == taken[e.OrderID], "captured", e)
			}
		})
	}
}

// keeps sends three orders: one that goes well and is sent again, one that fifty send at once, one that is refused.
func keeps(t *testing.T, s *shop, charged func(orderID string) (times, undone int)) {
	t.Helper()
	check := func(orderID string, o orders.Order) {
		if times, undone := charged(orderID); o.Status != fsm.Completed || times != 1 || undone != 0 {
			t.Errorf("%s: %s, charged %d times and undone %d times", orderID, brief(o), times, undone)
		}
	}
	well := paid("well")
	s.process(t, well)
	check("well", s.process(t, well))

	crowd := paid("crowd")
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			o, err := deref(s.engines[i%2].Process(t.Context(), crowd))
			assert.True(t, err == nil && o.Status == fsm.Completed, "one of a crowd", err, brief(o))
		})
	}
	callers.Wait()
	check("crowd", s.get(t, "crowd"))

	// The item was seen as untracked a moment ago, or else the order would be refused before its charge.
	seen, refused := paid("seen"), paid("refused")
	seen.Item, refused.Item = "gone", "gone"
	s.process(t, seen)
	s.setStock(t, refused.Item, 0)
	failed := s.process(t, refused)
	if times, undone := charged("refused"); failed.Status != fsm.Failed || times > 1 || undone != times {
		t.Errorf("%s, charged %d times and undone %d times", brief(failed), times, undone)
	}
}

// TestPoliciesThatAreReadLate has the first reads of the policies fail at the start of an engine that looks for
// orders once in an hour. It reads them again soon, and turns away what comes meanwhile.
func TestPoliciesThatAreReadLate(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"PolicyActive", "PoliciesUnknown"} {
		for _, f := range []fate{loseRequest, loseReply, dbtest.HushReply} {
			t.Run(statement+", "+f.String(), func(t *testing.T) {
				t.Parallel()
				b := &bundle{Database: dbtest.New(t)}
				used, err := store.Use(t.Context(), db.New(b.Pool), []byte("completeWithin: 1h\n"), "test")
				assert.NoError(t, err)
				p := newProxy(t, b.URL)
				var reads atomic.Int32
				p.On(func(name string) fate {
					if name == statement && reads.Add(1) <= 3 {
						return f
					}
					return passes
				})
				b.engine = startWatchful(t, p, byCallers)
				var order orders.Order
				eventually(t, "an order is taken", func() bool {
					order, err = deref(b.engine.Process(t.Context(), request("order")))
					assert.Require(t, err == nil || errors.Is(err, orders.ErrUnavailable), err)
					return err == nil
				})
				if o := order; o.Status != fsm.Completed || o.Policy == nil || *o.Policy != used.Version || o.CompleteBy == nil {
					t.Errorf("%s, by policy %v", brief(order), o.Policy)
				}
				n := reads.Load()
				assert.True(t, n >= 4, "read", n, "times")
			})
		}
	}
}
