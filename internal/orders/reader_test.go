package orders_test

import (
	"context"
	"testing"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestHistoryEndsWithTheOrder: what was written after the order was read may not be on the disk yet.
func TestHistoryEndsWithTheOrder(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	r := orders.NewReader(t.Context(), db.New(database.Pool))
	for _, statement := range []string{`ALTER TABLE orders DISABLE TRIGGER USER`, `WITH o AS (
		INSERT INTO orders (order_id, status, fence, seq, currency, item, amount, hold)
		VALUES ('order', 'charging', 1, 2, 'USD', 'widget', 5, 'paused') RETURNING order_no
	)
	INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, seq, 'charging', 1 FROM o, generate_series(1, 3) AS seq`} {
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), statement)))
	}
	for _, descending := range []bool{false, true} {
		rows, err := r.Transitions(t.Context(), "order", orders.Span{Before: 100, Limit: 10, Descending: descending})
		if err != nil || len(rows) != 2 {
			t.Errorf("descending %t: %+v, %v", descending, rows, err)
		}
	}
}

func TestMain(m *testing.M) { dbtest.Main(m) }

// An order is shown with what stands of its generation, and not of an earlier one.
func TestGet(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	r := orders.NewReader(t.Context(), db.New(database.Pool))
	const stored = `WITH o AS (
		INSERT INTO orders (order_id, status, fence, due_at, generation, currency, item, amount)
		VALUES ('order', 'charging', 1, now(), 1, 'USD', 'widget', 5) RETURNING order_no
	), undone AS (
		INSERT INTO charges (order_no, generation, currency, amount, refunded_at) SELECT order_no, 0, 'USD', 5, now() FROM o
	)
	INSERT INTO charges (order_no, generation, currency, amount, reference) SELECT order_no, 1, 'USD', 5, 'ch_2' FROM o`
	for _, statement := range []string{`ALTER TABLE orders DISABLE TRIGGER USER`, stored} {
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), statement)))
	}
	for name, get := range map[string]func(context.Context, string) (orders.Order, error){"Get": r.Get, "GetDurable": r.GetDurable} {
		o, err := get(t.Context(), "order")
		if err != nil || o.OrderID != "order" || o.ChargedAt == nil || o.RefundedAt != nil || o.ReservedAt != nil || *o.ChargeReference != "ch_2" {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		assert.ErrorIs(t, assert.Err(get(t.Context(), "nobody's")), orders.ErrNotFound, name)
	}
}

// Where nobody answers, a caller is told to ask again.
func TestReadFromADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	r := orders.NewReader(t.Context(), db.New(database.Pool))
	database.Pool.Close()
	for name, read := range map[string]func() error{
		"an order":    func() error { _, err := r.Get(t.Context(), "order"); return err },
		"a list":      func() error { _, _, err := r.List(t.Context(), orders.Filter{Limit: 1}); return err },
		"the history": func() error { _, err := r.Transitions(t.Context(), "order", orders.Span{Limit: 1}); return err },
		"the calls":   func() error { _, err := r.Calls(t.Context(), "order", orders.Span{Limit: 1}); return err },
		"an item":     func() error { _, err := r.StockOf(t.Context(), "widget"); return err },
		"all items":   func() error { _, err := r.StockList(t.Context(), "", 1); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.ErrorIs(t, read(), orders.ErrUnavailable)
		})
	}
}
