package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
)

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
	eventually(t, "the neighbours are completed", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE status = 'completed'`) == 19
	})
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
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM orders ORDER BY due_at LIMIT 500 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	b.replica(t, engine.Config{})
	eventually(t, "the orders behind the locked ones are completed", func() bool {
		return value[int64](t, b.Pool, `SELECT count(*) FROM orders WHERE status = 'completed'`) == 20
	})
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
	eventually(t, "the order whose driver has died is taken over", func() bool { return status(t, b.Pool, "driven") == "completed" })
	for what, of := range map[string]struct{ sql, want string }{
		"waits": {`SELECT string_agg(concat(hold, ' ', round(extract(epoch FROM due_at - now()) / 60)), ', ' ORDER BY order_no) FROM orders WHERE hold IS NOT NULL`,
			"retry 25, callback 50, approval 120, scheduled 4320"},
		"approvals":    {`SELECT string_agg(round(extract(epoch FROM approval_until - now()) / 60)::text, '') FROM orders`, "120"},
		"reservations": {`SELECT string_agg(round(extract(epoch FROM reserved_until - now()) / 60)::text, '') FROM orders`, "10"},
		"late undos":   {`SELECT string_agg(round(extract(epoch FROM due_at - now()) / 60)::text, '') FROM late_undos`, "60"},
	} {
		if got := value[string](t, b.Pool, of.sql); got != of.want {
			t.Errorf("%s: %s, want %s", what, got, of.want)
		}
	}
}
