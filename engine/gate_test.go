package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// startsIn has the order start then.
func startsIn(d time.Duration) act {
	return admits(func(in *engine.Input) { in.StartAt = time.Now().Add(d) })
}

func TestScheduledStart(t *testing.T) {
	t.Parallel()
	tooEarly := shows(0, `SELECT count(*) FROM transitions AS t JOIN orders AS o USING (order_no) WHERE t.to_status <> 'pending' AND t.at < o.start_at`)
	toldAtOnce := func(t *testing.T, s *shop) {
		t.Helper()
		in := request("order")
		in.StartAt = time.Now().Add(time.Hour)
		limit := within(t, patience)
		if first, err := deref(s.engine.Process(limit, in)); err != nil || text(first.Hold) != "scheduled" || limit.Err() != nil {
			t.Errorf("told of a start that its caller can't wait for: %v, %s, time is up: %v", err, brief(first), limit.Err())
		}
	}
	play(t, []scene{
		{"is told to a caller who can't wait for it", with("{}"), acts{toldAtOnce}},
		{"is told to a caller who can't wait for it, with a policy", with(allAtTheSimulator), acts{toldAtOnce, uncalled}},
		{"is kept", with("{}"), acts{startsIn(time.Second), processes("completed"), tooEarly}},
		{"is kept, with a policy", with(allAtTheSimulator), acts{startsIn(time.Second), processes("completed"), tooEarly}},
		{"in the past is at once", with("{}"), acts{startsIn(-time.Hour), processes("completed")}},
	})
}

func TestApprovalThatNobodyGives(t *testing.T) {
	t.Parallel()
	timesOut := func(onTimeout string) func(*testing.T) *shop {
		return with(allAtTheSimulator + "approval: [{items: [widget], amountOver: 50, currency: USD, timeout: 1h, onTimeout: " + onTimeout + "}]")
	}
	// A caller who would wait for a person is told at once.
	waits := acts{processes("pending approval"), uncalled,
		sql(`UPDATE orders SET approval_until = now(), due_at = now() WHERE approval_until IS NOT NULL`)}
	play(t, []scene{
		{"cancels the order", timesOut("cancel"), append(waits, is("canceled: approval_timed_out"), uncalled)},
		{"or lets it go on", timesOut("approve"), append(waits, is("completed"),
			shows(true, `SELECT approved_at IS NOT NULL AND failure_code IS NULL FROM orders`))},
		{"does not matter to an order that no rule fits", with("approval: [{amountOver: 100, currency: USD}]"), acts{
			processes("completed")}},
		{"of an order that is scheduled is asked for at its start", with("approval: [{items: [widget]}]"), acts{
			startsIn(time.Hour), is("scheduled"),
			shows(true, `SELECT approval_until IS NULL FROM orders`), func(t *testing.T,
				s *shop) {
				t.Helper()
				s.startNow(t, "order")
			},
			is("approval"), shows(true, `SELECT due_at IS NULL FROM orders`)}},
	})
}

// Whoever processes waits for what comes within his time, and for nothing else.
func TestHowLongACallerWaits(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `
charge: {executor: http, url: "http://127.0.0.1:1/c", undoUrl: "http://127.0.0.1:1/u", retry: {initial: 20ms, cap: 20ms}, breaker: {failures: 1000000}}
concurrency: {by: concurrencyKey, limit: 1}`)
	t.Run("for a retry that comes in time", func(t *testing.T) {
		t.Parallel()
		s.waitsInVain(t, request("retries"), func(o *orders.Order) bool { return o.Status == "charging" && o.Calls != nil })
	})
	t.Run("for its permit", func(t *testing.T) {
		t.Parallel()
		in := request("first")
		in.ConcurrencyKey = "k"
		s.admit(t, in)
		in.OrderID = "second"
		s.waitsInVain(t, in, func(o *orders.Order) bool { return o.Hold != nil && *o.Hold == "queued" })
	})
	t.Run("not for a person", func(t *testing.T) {
		t.Parallel()
		s.admit(t, request("held"))
		eventually(t, "it can be held", s.answers(t, 1,
			`WITH held AS (UPDATE orders SET hold = 'attention', hold_reason = 'look', due_at = NULL, owner = NULL, seq = seq + 1
				WHERE order_id = 'held' AND hold = 'retry' RETURNING 1) SELECT count(*) FROM held`))
		limit := within(t, patience)
		order, err := deref(s.engine.Process(limit, request("held")))
		assert.True(t, err == nil && limit.Err() == nil && order.Hold != nil && *order.Hold == "attention",
			err, brief(order), "time is up", limit.Err())
		s.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
			SELECT order_no, seq, status, status, fence, 'hold' FROM orders WHERE order_id = 'held'`)
	})
}

// waitsInVain gives a caller more and more time, until the order gets where it stays within it. Each time the caller is
// to wait until the time is up or no further try would come in time, or is told that nobody knows of the order yet.
func (s *shop) waitsInVain(t *testing.T, in engine.Input, stays func(*orders.Order) bool) {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		began := time.Now()
		order, err := deref(s.engine.Process(within(t, limit), in))
		took := time.Since(began)
		switch {
		case err == nil && took < limit-50*time.Millisecond:
			t.Fatalf("of %s waited %s: %s", limit, took, brief(order))
		case err == nil && stays(&order):
			return
		case err != nil && !errors.Is(err, orders.ErrUnavailable), limit > patience:
			t.Fatalf("after %s: %v, %s", took, err, brief(order))
		}
	}
}

func TestCustomerIsPartOfTheInput(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, allAtTheSimulator)
	in := request("whose")
	in.CustomerID, in.PaymentMethod, in.ConcurrencyKey = "me", "pm_secret", "k"
	s.process(t, in)
	same := request("whose")
	same.Metadata, same.ConcurrencyKey = []byte(`{"a":"other"}`), "other" // the policy limits nothing by the key
	isNow(t, s.process(t, same), "completed")
	other := in
	other.StartAt, other.CompleteBy, other.ReservationTTL = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour), time.Minute
	differs := func(what engine.Input, want ...orders.Difference) {
		t.Helper()
		_, err := s.engine.Process(t.Context(), what)
		var conflict *orders.Conflict
		assert.Require(t, errors.As(err, &conflict), "no conflict", err)
		for i := range want {
			if want[i].Sent == "" { // a time
				want[i] = orders.Difference{Pointer: want[i].Pointer, Stored: conflict.Differences[i].Stored,
					Sent: conflict.Differences[i].Sent}
			}
		}
		assert.Equal(t, conflict.Differences, want)
	}
	differs(other, orders.Difference{Pointer: "/startAt"}, orders.Difference{Pointer: "/completeBy"},
		orders.Difference{Pointer: "/reservationTtl"})
	other = in
	other.CustomerID, other.PaymentMethod = "you", "pm_other"
	differs(other, orders.Difference{Pointer: "/customerId", Stored: "me", Sent: "you"},
		orders.Difference{Pointer: "/paymentMethod", Stored: "(another)", Sent: "(as sent)"})
}

// watchPermits looks at how many orders of each key are under way until the test ends, and reports more than the limit.
func (s *shop) watchPermits(t *testing.T, limit int64) (stop func() (most int64)) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-done:
				ended <- most
				return
			case <-look.C:
			}
			most = max(most, value[int64](t, s.Pool, `SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM orders
				WHERE concurrency_key IS NOT NULL AND ended_as IS NULL AND status <> 'pending' GROUP BY concurrency_key) AS under_way`))
		}
	}()
	return func() int64 {
		close(done)
		most := <-ended
		assert.True(t, most <= limit, most, "orders of one key were under way, the limit is", limit)
		return most
	}
}

// flood sends orders of some customers to all replicas at once and waits for their ends.
func (s *shop) flood(t *testing.T, n, customers int) {
	t.Helper()
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			in := request(fmt.Sprintf("o%03d", i))
			in.CustomerID = fmt.Sprintf("c%d", i%customers)
			limit := within(t, 3*patience) // for all of them together
			if order, err := insist(func() (orders.Order, error) { return deref(s.anyone().Process(limit, in)) }); err != nil || order.Status != "completed" {
				t.Errorf("%s: %v, %s", in.OrderID, err, brief(order))
			}
		})
	}
	callers.Wait()
}

const twoPerCustomer = `
charge: {executor: simulator, url: SIM, retry: {initial: 5ms, cap: 10ms}}
concurrency: {by: customerId, limit: 2}`

func TestConcurrencyPermits(t *testing.T) {
	t.Parallel()
	t.Run("are never more than the limit, over three replicas, and all orders finish", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 3, quick)
		s.use(t, twoPerCustomer)
		s.faults(t, "error1,fraction=0.2", "slow:2ms")
		stop := s.watchPermits(t, 2)
		s.flood(t, 120, 3)
		assert.Equal(t, stop(), 2, "at most were under way")
	})
	t.Run("are given in the order of arrival", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 2, quick)
		s.use(t, `
charge: {executor: simulator, url: SIM}
concurrency: {by: item, limit: 1}`)
		for i := range 30 {
			if _, err := insist(func() (orders.Order, error) {
				return deref(s.anyone().Admit(t.Context(), request(fmt.Sprintf("o%03d", i))))
			}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all have ended", s.answers(t, 30, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`))
		started := column[string](t, s.Pool, `SELECT o.order_id FROM orders AS o JOIN transitions AS t USING (order_no)
			WHERE t.to_status = 'charging' AND t.from_status = 'pending' ORDER BY t.at, o.order_no`)
		assert.True(t, slices.IsSorted(started), "started", started)
	})
	t.Run("other keys do not wait", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `
charge: {executor: simulator, url: SIM, timeout: 20s}
concurrency: {by: customerId, limit: 1}`)
		s.faults(t, "hang,order=hangs")
		stuck, free, none := request("hangs"), request("flows"), request("nobody's")
		stuck.CustomerID, free.CustomerID = "a", "b"
		s.admit(t, stuck)
		for _, in := range []engine.Input{free, none} {
			isNow(t, s.process(t, in), "completed")
		}
	})
}

// An order keeps its permit until it has ended, also when it is held for a person.
func TestConcurrencyPermitOfAHeldOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms, maxRetries: 1, budget: 0s}}
concurrency: {by: concurrencyKey, limit: 2}`)
	s.faults(t, "error,order=stuck")
	stuck := request("stuck")
	stuck.ConcurrencyKey = "k"
	s.admit(t, stuck)
	s.until(t, "stuck", "attention")
	stop := s.watchPermits(t, 2)
	for i := range 10 {
		in := request(fmt.Sprintf("o%d", i))
		in.ConcurrencyKey = "k"
		s.admit(t, in)
	}
	eventually(t, "the others go on beside it", s.answers(t, 10, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`))
	stop()
	ends := column[time.Time](t, s.Pool, `SELECT at FROM transitions WHERE to_status = 'completed' ORDER BY at`)
	starts := column[time.Time](t, s.Pool, `SELECT at FROM transitions WHERE to_status = 'charging' AND from_status = 'pending' ORDER BY at OFFSET 1`)
	for i := 1; i < len(starts); i++ { // one at a time: the other permit is taken
		assert.Require(t, !starts[i].Before(ends[i-1]), i+1, "began before the one before it had ended")
	}
}

// Replicas are stopped in the middle, again and again: no permit is lost.
func TestConcurrencyPermitsSurviveStops(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, engine.Config{RecoveryInterval: often, Lease: 2 * time.Second})
	s.use(t, twoPerCustomer)
	s.faults(t, "slow:5ms")
	const orders = 60
	for i := range orders {
		in := request(fmt.Sprintf("o%03d", i))
		in.CustomerID = fmt.Sprintf("c%d", i%2)
		s.admit(t, in)
	}
	stop := s.watchPermits(t, 2)
	for range 4 {
		mark := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`)
		eventually(t, "some more have ended", func() bool {
			return value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`) >= min(mark+5, orders)
		})
		s.replace(t, rand.IntN(2))
	}
	eventually(t, "all have ended", s.answers(t, orders, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`))
	stop()
}

// replace ends a replica without giving it time to finish anything, and starts another one.
func (s *shop) replace(t *testing.T, i int) {
	t.Helper()
	e := s.replica(t, s.cfg)
	s.mu.Lock()
	old := s.engines[i]
	s.engines[i] = e
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = old.Stop(ctx) // it says that orders were left
}

// Whoever sends an order again with another concurrencyKey would be told that it takes its turn with others than it does.
func TestRepeatedOrderWithAnotherConcurrencyKey(t *testing.T) {
	t.Parallel()
	b := with("concurrency: {by: concurrencyKey, limit: 1}")(t)
	keyed := func(orderID, key string) engine.Input {
		in := request(orderID)
		in.ConcurrencyKey = key
		return in
	}
	b.process(t, keyed("with", "a"))
	b.process(t, keyed("without", ""))
	b.activate(t, "concurrency: {by: item, limit: 1}")
	b.process(t, keyed("by item", "a"))
	for _, c := range []struct{ orderID, key, stored string }{{"with", "b", "a"}, {"without", "b", ""}} {
		conflict := &orders.Conflict{}
		if _, err := b.engine.Process(t.Context(), keyed(c.orderID, c.key)); !errors.As(err, &conflict) || len(conflict.Differences) != 1 ||
			conflict.Differences[0] != (orders.Difference{Pointer: "/concurrencyKey", Stored: c.stored, Sent: c.key}) {
			t.Errorf("%s: %v, %+v", c.orderID, err, conflict)
		}
	}
	b.process(t, keyed("with", "a"))
	b.process(t, keyed("with", ""))
	b.process(t, keyed("by item", "b")) // no key is kept where none counts
}

// A retry removes a deadline that has passed. The first request can be sent again all the same.
func TestRepeatedOrderAfterItsDeadlineWasRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 0)
	in := request("late")
	in.CompleteBy = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	isNow(t, b.process(t, in), fsm.Failed)
	b.exec(t, `UPDATE orders SET complete_by = now() - interval '1 second'`)
	o, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Retry, OrderID: "late", Actor: "ann"})
	assert.Require(t, err == nil && o.Generation == 1 && o.CompleteBy == nil, brief(o), err)
	o = b.process(t, in)
	assert.True(t, o.Status == fsm.Failed && o.Generation == 1, brief(o))
}
