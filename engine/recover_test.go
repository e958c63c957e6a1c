package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// soon makes a replica look for due orders often. Its own leases do not end within a test: on a busy machine one that is
// short ends while its order is driven.
var soon = engine.Config{RecoveryInterval: often, Lease: time.Minute}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		t.Run("from "+string(state)+", and late writes match nothing", func(t *testing.T) {
			t.Parallel()
			b := &bundle{Database: dbtest.New(t)}
			g := newGhost(b.Pool)
			g.admit(t, 0, "one", "two")
			g.advance(t, state, "one", "two")
			seen := g.stored(t, "one", "two")
			b.engine = startEngine(t, b.URL, soon)
			for _, before := range seen {
				b.takenOver(t, before)
			}
			moved := g.move(t, seen)
			assert.Equal(t, len(moved), 0, "a late write moved", moved)
			assert.Equal(t, b.engine.Stats.TakenOver.Load(), 2, "orders counted as taken over")
			proveBooks(t, b.Pool)
		})
	}
}

// takenOver waits for the end of an order that its driver left, and looks at how it came about.
func (b *bundle) takenOver(t *testing.T, before orders.Order) {
	t.Helper()
	reaches(t, b.Pool, before.OrderID, "completed")
	assert.Equal(t, verbs(t, b.Pool, before.OrderID), []string{"take_over"}, before.OrderID, "was done")
	fence := value[int64](t, b.Pool, `SELECT o.fence FROM books.orders AS o WHERE o.order_id = $1`, before.OrderID)
	assert.Equal(t, fence, before.Fence+1, before.OrderID)
}

// TestLateWrites sends every move of the machine with the fence of before a take-over.
func TestLateWrites(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	b.exec(t, `INSERT INTO inventory (item, on_hand, tracked) VALUES ('widget', 100, true)`)
	g, other := newGhost(b.Pool), newGhost(b.Pool)
	for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming, fsm.Releasing, fsm.Refunding} {
		orderID := "left in " + string(state)
		g.admit(t, 0, orderID)
		if state == fsm.Releasing || state == fsm.Refunding {
			g.advance(t, fsm.Confirming, orderID)
			b.exec(t, `UPDATE orders SET stop_requested = 'cancel' WHERE order_id = $1`, orderID)
		}
		g.advance(t, state, orderID)
		seen := g.stored(t, orderID)
		other.claim(t, orderID)
		before := value[string](t, b.Pool, everythingStored)
		moved := g.move(t, seen)
		assert.Equal(t, len(moved), 0, orderID, "moved", moved)
		assert.Equal(t, value[string](t, b.Pool, everythingStored), before, orderID, "a late write left something")
	}
}

// everythingStored is one text of all tables.
const everythingStored = `SELECT concat(
	(SELECT json_agg(o ORDER BY o.order_no) FROM orders AS o), (SELECT json_agg(t ORDER BY t.order_no, t.seq) FROM transitions AS t),
	(SELECT json_agg(c ORDER BY c.order_no) FROM charges AS c), (SELECT json_agg(r ORDER BY r.order_no) FROM charge_operations AS r),
	(SELECT json_agg(v ORDER BY v.order_no) FROM reservations AS v), (SELECT json_agg(i ORDER BY i.item) FROM inventory AS i))`

// TestStalledReplica stops a replica with its statement in the wire, as SIGSTOP does, until another has its orders;
// then it goes on as if nothing had been.
func TestStalledReplica(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, finished := range map[string]bool{"finds its orders finished": true, "finds its orders driven": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, engine.Config{RecoveryInterval: time.Hour, Lease: time.Hour})
			answers, release := b.gather(t, p, "OrdersReserve", requests("order", n)...)
			_, resume := p.stall(t, everything) // also what it does by the clock
			b.exec(t, `UPDATE orders SET due_at = now() WHERE status = 'reserving'`)
			other := newProxy(t, b.URL)
			_, goOn := other.stall(t, named("OrdersReserve"))
			startPatient(t, other, engine.Config{RecoveryInterval: often})
			eventually(t, "the other replica has taken the orders over", b.answers(t, n,
				`SELECT count(*) FROM books.orders AS o WHERE o.status = 'reserving' AND o.fence = 2`))
			if finished {
				goOn()
				eventually(t, "it has finished them", b.answers(t, n,
					`SELECT count(*) FROM books.orders AS o WHERE o.status = 'completed' AND o.fence = 2`))
			}
			release()
			resume()
			eventually(t, "the late write has come and found nothing", func() bool { return b.engine.Stats.CASMisses.Load() == n })
			if !finished {
				eventually(t, "the replica knows that the orders are another's", func() bool { return b.engine.Stats.Fenced.Load() == n })
				goOn()
			}
			b.completes(t, answers, n)
			proveBooks(t, b.Pool)
		})
	}
}

// TestTakenOverInVain has orders that nobody can move.
func TestTakenOverInVain(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	newGhost(b.Pool).admit(t, 0, "cursed")
	for range 3 {
		newGhost(b.Pool).claim(t, "cursed")
	}
	b.engine = startEngine(t, b.URL, soon)
	order := b.process(t, request("cursed"))
	assert.True(t, text(order.Hold) == "attention" && order.Status == "charging" && order.Owner == nil && order.DueAt == nil,
		order.Status, "held for", text(order.Hold), text(order.HoldReason))
	assert.Equal(t, verbs(t, b.Pool, "cursed"), []string{"take_over", "take_over", "take_over", "hold"}, "to the order was done")
	proveBooks(t, b.Pool)
}

// TestMoveForgetsTakeOvers: three in a row is what counts.
func TestMoveForgetsTakeOvers(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	g := newGhost(b.Pool)
	g.admit(t, 0, "one")
	for _, state := range []fsm.State{fsm.Reserving, fsm.Confirming} {
		for range 3 {
			newGhost(b.Pool).claim(t, "one")
		}
		g.advance(t, state, "one")
	}
	b.engine = startEngine(t, b.URL, soon)
	isNow(t, b.process(t, request("one")), "completed")
	proveBooks(t, b.Pool)
}

// TestLeaseIsRenewed keeps orders in a replica's memory for longer than its lease. Their rows are locked by its own
// statements for most of the time, while these wait for the stock row.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{RecoveryInterval: time.Hour, Lease: 5 * time.Second})
	b.exec(t, `INSERT INTO inventory (item) VALUES ('hot')`)
	b.replica(t, soon)
	unlock := b.lock(t, lockStock)
	answers := ask(t, b.engine, withItem("hot", requests("hot", 5))...)
	eventually(t, "the lease would have ended twice", b.answers(t, true,
		`SELECT count(*) = 5 AND bool_and(o.created_at < now() - interval '11 s') FROM orders AS o`))
	unlock()
	b.completes(t, answers, 5)
	b.counts(t, 0, `SELECT count(*) FROM books.transitions AS t WHERE t.verb IS NOT NULL`)
	proveBooks(t, b.Pool)
}

// TestLostRenewals loses every other renewal, while the next move of the orders waits in the wire.
func TestLostRenewals(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, engine.Config{RecoveryInterval: time.Hour, Lease: 6 * time.Second})
	b.replica(t, soon)
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	var renewals atomic.Int32
	p.On(func(statement string) fate {
		switch statement {
		case "OrdersCharge":
			<-gate
		case "LeasesRenew":
			return []fate{loseRequest, passes, loseReply, passes, loseClient, passes}[(renewals.Add(1)-1)%6]
		}
		return passes
	})
	answers := ask(t, b.engine, requests("order", 3)...)
	eventually(t, "renewals were lost in every way", func() bool { return renewals.Load() >= 6 })
	release()
	b.completes(t, answers, 3)
	b.counts(t, 0, `SELECT count(*) FROM books.transitions AS t WHERE t.verb IS NOT NULL`)
	proveBooks(t, b.Pool)
}

// TestLeaseOfLockedRow has somebody else hold an order's row until its lease has ended. Neither a renewal nor a claim
// waits for it; afterwards whoever comes first goes on.
func TestLeaseOfLockedRow(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, engine.Config{RecoveryInterval: time.Hour, Lease: 4 * time.Second})
	answers, release := b.gather(t, p, "OrdersCharge", requests("order", 2)...)
	unlock := b.lock(t, `SELECT o.seq FROM orders AS o WHERE o.order_id = 'order 000' FOR UPDATE`)
	b.replica(t, soon)
	release()
	eventually(t, "the lease has ended", b.answers(t, true,
		`SELECT o.due_at < now() FROM orders AS o WHERE o.order_id = 'order 000'`))
	b.completes(t, answers, 1)
	unlock()
	b.completes(t, answers, 1)
	t.Logf("to the locked order was done: %q, to the other: %q", verbs(t, b.Pool, "order 000"), verbs(t, b.Pool, "order 001"))
	proveBooks(t, b.Pool)
}

// An order that can't be claimed, because a row stands in the way of its history, does
// not keep its neighbours from being taken over.
func TestOneOrderThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint("left ", i))
	}
	g.admit(t, time.Millisecond, ids...)
	b.exec(t, `INSERT INTO transitions (order_no, seq, to_status, fence)
		SELECT order_no, 2, 'charging', 1 FROM orders WHERE order_id = 'left 7'`)
	b.replica(t, engine.Config{})
	eventually(t, "the neighbours are completed", b.answers(t, 19, `SELECT count(*) FROM orders WHERE status = 'completed'`))
}

// A claim counts the answer that a driver has lost, and none of an order that was handed back, or that a person had retried.
func TestLostAnswersAreCounted(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	g := newGhost(database.Pool)
	g.admit(t, 0, "o")
	assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), `UPDATE orders SET in_doubt_since = now(), retries = 1`)))
	g.letGo(t, "o")
	for want := range int32(2) {
		g.claim(t, "o")
		assert.Equal(t, *g.stored(t, "o")[0].Retries, 1+want, "retries")
	}
}

// More due orders than one look takes, all of them locked, do not hide those behind them.
func TestLockedPageOfDueOrders(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.exec(t, `WITH due AS (
		INSERT INTO orders (order_id, status, due_at, owner, fence, currency, item, amount)
		SELECT 'due ' || n, 'charging', now() - interval '1 hour' + n * interval '1 ms', gen_random_uuid(), 1, 'USD', 'widget', 1
		FROM generate_series(1, 520) AS n RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM due`)
	b.lock(t, `SELECT 1 FROM orders ORDER BY due_at LIMIT 500 FOR UPDATE`)
	b.replica(t, engine.Config{})
	eventually(t, "the orders behind the locked ones are completed", b.answers(t, 20,
		`SELECT count(*) FROM orders WHERE status = 'completed'`))
}

// TestClockOfTheDatabaseSetBack: leases, waits and the times of reservations that were written before the clock was set back by three
// days end when the longest of their kind would. A start that the caller has set stays.
func TestClockOfTheDatabaseSetBack(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, "driven")
	version := b.activate(t, `
charge: {executor: http, url: "http://127.0.0.1:9/charge", undoUrl: "http://127.0.0.1:9/undo", timeout: 1s, callbackTimeout: 50m, retry: {cap: 5m, budget: 20m}}
approval: [{amountOver: 10, currency: USD, timeout: 2h}]`)
	for i, hold := range []string{fsm.HoldRetry, fsm.HoldCallback, fsm.HoldApproval, fsm.HoldScheduled} {
		b.exec(t, `WITH held AS (
			INSERT INTO orders (order_id, status, hold, due_at, approval_until, start_at, fence, currency, item, amount, policy, calls, retries, retry_window_started_at)
			SELECT $1::text, CASE WHEN $2::integer < 2 THEN 'charging' ELSE 'pending' END, $1::text, now() + interval '3 days', CASE $1::text WHEN 'approval' THEN now() + interval '3 days' END,
				CASE $1::text WHEN 'scheduled' THEN now() + interval '3 days' END, 1, 'USD', 'widget', 99.99, $3, 0, 0, now() + interval '3 days' RETURNING order_no, status)
			INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, 1, status, 1 FROM held`, hold, i, version)
	}
	b.exec(t, `UPDATE orders SET due_at = due_at + interval '3 days' WHERE hold IS NULL`)
	b.exec(t, `UPDATE orders SET reservation_ttl = 600, reserved_until = now() + interval '3 days' WHERE hold = 'retry'`)
	b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '3 days' FROM orders WHERE hold = 'retry'`)
	b.replica(t, engine.Config{Lease: time.Second, RecoveryInterval: often})
	reaches(t, b.Pool, "driven", "completed")
	for what, of := range map[string]struct{ sql, want string }{
		"waits": {`SELECT string_agg(concat(hold, ' ', round(extract(epoch FROM due_at - now()) / 60)), ', ' ORDER BY order_no) FROM orders WHERE hold IS NOT NULL`,
			"retry 25, callback 50, approval 120, scheduled 4320"},
		"approvals":    {`SELECT string_agg(round(extract(epoch FROM approval_until - now()) / 60)::text, '') FROM orders`, "120"},
		"reservations": {`SELECT string_agg(round(extract(epoch FROM reserved_until - now()) / 60)::text, '') FROM orders`, "10"},
		"late undos":   {`SELECT string_agg(round(extract(epoch FROM due_at - now()) / 60)::text, '') FROM late_undos`, "60"},
	} {
		assert.Equal(t, value[string](t, b.Pool, of.sql), of.want, what)
	}
}
