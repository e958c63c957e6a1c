package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pawl/engine"
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
