package engine_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestStorm has everything go wrong at once: four engines, one of them on a line that loses requests and replies, a
// provider with every fault it knows, callers who leave, people who cancel, pause and resume, deadlines, permits. When it
// is over, every order ends, nothing stands that must not, and no call pool has lost a permit.
func TestStorm(t *testing.T) {
	t.Parallel()
	orders := times(60, 150)
	s := openShop(t, 3, engine.Config{RecoveryInterval: often, Lease: time.Second})
	line := newProxy(t, s.URL)
	t.Cleanup(func() { line.On(nil) })
	s.engines = append(s.engines, startEngine(t, line.URL, s.cfg))
	step := "{executor: simulator, url: SIM, timeout: 1s, inFlight: 20, queue: 100, callbackTimeout: 500ms, " +
		"retry: {initial: 5ms, cap: 100ms, maxRetries: 4, budget: 5s}, breaker: {failures: 10, open: 50ms}}"
	s.use(t, "charge: "+step+"\nreserve: "+step+"\nconfirm: "+step+"\nconcurrency: {by: item, limit: 30}\nreservationTtl: 3s\n")
	s.faults(t, allFaults()...)
	line.On(func(string) fate {
		if rand.IntN(100) < 4 {
			return []fate{loseRequest, loseReply, loseClient}[rand.IntN(3)]
		}
		return passes
	})
	var people sync.WaitGroup
	for first := range 8 {
		people.Go(func() {
			for i := first; i < orders; i += 8 {
				s.harass(t, i)
			}
		})
	}
	people.Wait()
	s.faults(t)
	line.On(nil)
	eventually(t, "every order has ended", func() bool { return s.comfort(t) == 0 })
	for _, e := range s.engines {
		eventually(t, "every permit is free", func() bool {
			for _, l := range e.CallPools() {
				if l.InFlight != 0 || l.Queued != 0 {
					return false
				}
			}
			return true
		})
	}
}

// allFaults is a little of each fault.
func allFaults() (rules []string) {
	for _, fault := range []string{
		"decline", "slow", "hang", "refuse-connection", "timeout-before", "timeout-after", "cut-after", "error", "error-after", "not-done",
		"rate-limit", "async", "callback-twice", "callback-late", "callback-never", "callback-before", "answer-twice",
	} {
		if !slices.Contains([]string{"decline", "error", "error-after"}, fault) {
			fault += fmt.Sprintf(":%dms", 1+rand.IntN(150))
		}
		rules = append(rules, fault+",fraction=0.03")
	}
	for _, step := range []string{"charge", "reserve"} {
		for _, fault := range []string{"error", "timeout-after", "not-done"} {
			rules = append(rules, fault+"@"+step+"/undo,fraction=0.05")
		}
	}
	return rules
}

// harass sends an order, leaves soon, and asks things of it and of others before it.
func (s *shop) harass(t *testing.T, i int) {
	t.Helper()
	in := request(fmt.Sprintf("order %d", i))
	in.Item = fmt.Sprintf("item %d", i%7)
	if i%10 == 0 {
		in.CompleteBy = time.Now().Add(time.Duration(rand.IntN(1500)) * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+rand.IntN(300))*time.Millisecond)
	defer cancel()
	_, _ = s.anyone().Process(ctx, in) // how it ends is looked at in the end
	verbs := []orders.Verb{orders.Cancel, orders.Pause, orders.Resume, orders.Retry}
	for range rand.IntN(6) {
		s.ask(t, verbs[rand.IntN(len(verbs))], fmt.Sprintf("order %d", max(0, i-rand.IntN(20))))
	}
}

// ask asks somebody, and does not mind a no.
func (s *shop) ask(t *testing.T, verb orders.Verb, orderID string) {
	t.Helper()
	_, _ = s.anyone().Do(t.Context(), engine.Request{OrderID: orderID, Verb: verb, Actor: "storm", Async: true})
}

// comfort lets go on what a person can let go on, and returns how many orders are left.
func (s *shop) comfort(t *testing.T) int {
	t.Helper()
	for _, id := range column[string](t, s.Pool, `SELECT order_id FROM orders WHERE hold IN ('paused', 'attention')`) {
		s.ask(t, orders.Resume, id)
		s.ask(t, orders.Retry, id)
	}
	return value[int](t, s.Pool, `SELECT count(*) FROM orders WHERE ended_as IS NULL`)
}

var planOrders = flag.Int64("plan-orders", int64(times(3_000, 10_000)), "orders of the test that looks for sequential scans")

// TestPlansFromTheFirstOrderOn fills an empty database by the engine alone. Plans that were made while it was empty must
// serve it when it is not.
func TestPlansFromTheFirstOrderOn(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	pool, err := pg.Open(t.Context(), b.URL, pg.Options{MaxConns: 8})
	assert.NoError(t, err)
	e := startOn(t, pool, engine.Config{Lease: time.Minute}) // nobody is turned away
	assert.NoError(t, assert.Err(setStock(t.Context(), e, "few", 10)))
	var n atomic.Int64
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for i := n.Add(1); i <= *planOrders; i = n.Add(1) {
				if err := orderForPlans(t, e, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	stop(t, e)
	pool.Close() // its connections tell what they did when they end
	eventually(t, "the connections of the engine have ended", b.answers(t, 0,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid <> pg_backend_pid()`))
	scans(t, b.Pool)
}

// orderForPlans sends one order: nearly always one that goes straight on, now and then one that is asked for twice, is
// out of stock, or is canceled.
func orderForPlans(t testing.TB, e *engine.Engine, i int64) error {
	t.Helper()
	in := request(fmt.Sprintf("%x", uint64(i)*0x9E3779B97F4A7C15)) // in no order
	in.Item = fmt.Sprintf("item %d", i%1000)
	if i%50 == 0 {
		in.Item = "few"
	}
	if i%100 == 1 {
		if _, err := e.Admit(t.Context(), in); err != nil {
			return err
		}
		_, _ = e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: in.OrderID, RequestID: "1"}) // may come too late
	}
	if i%10 == 3 {
		in = keyed(in, in.OrderID)
	}
	if _, err := e.Process(t.Context(), in); err != nil {
		return err
	}
	if i%100 == 4 {
		in = keyed(in, in.OrderID+" again")
	}
	if i%20 == 2 || i%20 == 3 || i%20 == 4 {
		_, err := e.Process(t.Context(), in)
		return err
	}
	return nil
}

func scans(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range []string{"orders", "charges", "reservations", "inventory", "transitions", "refunds", "late_undos", "idempotency_keys"} {
		if n := value[int](t, pool, `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1`, table); n > 0 {
			t.Errorf("%s was read from end to end %d times", table, n)
		}
	}
	inserted := value[int64](t, pool, `SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'orders'`)
	assert.Equal(t, inserted, *planOrders, "statistics of orders")
	// Of the three moves of an order only the last changes what an index holds; the others stay, as far as there is room.
	hot := value[float64](t, pool, `SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'orders'`)
	if hot < 0.4 {
		t.Errorf("%.0f %% of the updates stayed on their page", hot*100)
	}
	t.Logf("%.0f %% of the updates stayed on their page", hot*100)
}
