package orders_test

import (
	"context"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
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
		assert.True(t, err == nil && len(rows) == 2, "descending", descending, rows, err)
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
		assert.True(t, err == nil && o.OrderID == "order" && o.ChargedAt != nil && o.RefundedAt == nil && o.ReservedAt == nil && *o.ChargeReference == "ch_2", name, o, err)
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

// TestAllowedActions shows what people can ask of an order, by where it stands.
func TestAllowedActions(t *testing.T) {
	t.Parallel()
	held := func(hold string) orders.Order { return orders.Order{Status: fsm.Charging, Hold: &hold} }
	completed := func(refunds string) orders.Order {
		return orders.Order{Status: fsm.Completed, Amount: decimal.Ten, ChargeOperationList: []byte(refunds)}
	}
	now, one, cancel, pause, paused := time.Now(), int32(1), "cancel", "pause", fsm.HoldPaused
	attention, unknown, void := fsm.HoldAttention, orders.RefusedUnknown+": asked", orders.VoidRefused+"closed"
	for _, c := range []struct {
		order string
		is    orders.Order
		want  []string
	}{
		{"driven", orders.Order{Status: fsm.Charging}, []string{"cancel", "pause"}},
		{"driven, to be paused", orders.Order{Status: fsm.Charging, StopRequested: &pause}, []string{"cancel", "resume"}},
		{"driven, to be canceled", orders.Order{Status: fsm.Charging, StopRequested: &cancel}, nil},
		{"on its way back", orders.Order{Status: fsm.Refunding}, []string{"pause"}},
		{"on its way back, needs attention", orders.Order{Status: fsm.Refunding, Hold: &attention}, []string{"retry"}},
		{"confirming, in doubt", orders.Order{Status: fsm.Confirming, InDoubtSince: &now}, []string{"pause"}},
		{"completed", orders.Order{Status: fsm.Completed}, nil},
		{"completed, paid", orders.Order{Status: fsm.Completed, Amount: decimal.Ten}, []string{"refund"}},
		{"completed, a refund in doubt", completed(`[{"number":1,"kind":"refund","state":"in_doubt","amount":"7"}]`), []string{"step-result", "refund"}},
		{"completed, all of it being refunded", completed(`[{"number":1,"kind":"refund","state":"accepted","amount":"10"}]`), []string{"step-result"}},
		{"completed, all of it refunded", completed(`[{"number":1,"kind":"refund","state":"done","amount":"10"}]`), nil},
		{"completed, a refund failed", completed(`[{"number":1,"kind":"refund","state":"failed","amount":"10"}]`), []string{"refund"}},
		{"failed", orders.Order{Status: fsm.Failed}, []string{"retry"}},
		{"canceled", orders.Order{Status: fsm.Canceled}, nil},
		{"scheduled", held(fsm.HoldScheduled), []string{"cancel", "pause"}},
		{"queued", held(fsm.HoldQueued), []string{"cancel", "pause"}},
		{"waits for approval", held(fsm.HoldApproval), []string{"cancel", "pause", "approve", "reject"}},
		{"waits to be tried again", held(fsm.HoldRetry), []string{"cancel", "retry", "pause"}},
		{"needs attention", held(fsm.HoldAttention), []string{"cancel", "retry"}},
		{"paused", held(fsm.HoldPaused), []string{"cancel", "resume"}},
		{"paused, in doubt", orders.Order{Status: fsm.Charging, Hold: &paused, InDoubtSince: &now, Calls: &one}, []string{"cancel", "resume", "step-result"}},
		{"waits for a callback", orders.Order{Status: fsm.Charging, Hold: new(fsm.HoldCallback), Calls: &one, Retries: &one}, []string{"cancel", "retry", "pause", "step-result"}},
		{"held as unknown", orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &unknown, InDoubtSince: &now, Calls: &one}, []string{"cancel", "step-result"}},
		{"held for a refused void", orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &void, Calls: &one, Retries: &one}, []string{"cancel", "retry"}},
	} {
		assert.Equal(t, orders.AllowedActions(&c.is), c.want, c.order, "allowed")
	}
}

// TestRefusalFor names what is in the way where more than the state is.
func TestRefusalFor(t *testing.T) {
	t.Parallel()
	now, one, attention, unknown := time.Now(), int32(1), fsm.HoldAttention, orders.RefusedUnknown+": asked"
	for _, c := range []struct {
		verb orders.Verb
		is   orders.Order
		want string
	}{
		{orders.Cancel, orders.Order{Status: fsm.Confirming, InDoubtSince: &now}, orders.RefusedConfirmInDoubt},
		{orders.Retry, orders.Order{Status: fsm.Charging, Hold: &attention, HoldReason: &unknown}, orders.RefusedUnknown},
		{orders.StepResult, orders.Order{Status: fsm.Charging, Calls: &one}, orders.RefusedBusy},
		{orders.Approve, orders.Order{Status: fsm.Charging}, orders.RefusedState},
	} {
		got := c.verb.RefusalFor(&c.is)
		assert.True(t, !c.verb.Applies(&c.is) && got == c.want, c.verb, "refused as", got, c.want)
	}
}
