package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

const (
	month     = 31 * 24 * time.Hour
	longSince = 40 * 24 * time.Hour
)

// totals are what pawl verify adds up.
func (b *bundle) totals(t *testing.T) (orders map[string]int64, money []books.Money) {
	t.Helper()
	report := b.proof(t)
	return report.Orders, report.Money
}

// proof is the report of pawl verify, which must find nothing.
func (b *bundle) proof(t *testing.T) books.Report {
	t.Helper()
	report, err := books.Verify(t.Context(), openPool(t, b.URL), books.Options{RangeSize: 3})
	assert.True(t, err == nil && report.OK(), report, err)
	return report
}

// forgets starts a replica that forgets old orders, and waits until those that remain are these.
func (b *bundle) forgets(t *testing.T, remaining ...string) {
	t.Helper()
	b.replica(t, engine.Config{OrderRetention: month, RecoveryInterval: 10 * time.Millisecond})
	eventually(t, fmt.Sprint("only these remain: ", remaining), func() bool {
		return fmt.Sprint(column[string](t, b.Pool, `SELECT order_id FROM books.orders ORDER BY order_id COLLATE "C"`)) == fmt.Sprint(remaining)
	})
	eventually(t, "no batch is open", func() bool {
		return value[int](t, b.Pool, `SELECT count(*) FROM pawl.forgotten_batches WHERE removed_at IS NULL`) == 0
	})
}

// TestForgottenOrders forgets orders of every kind, and keeps those that are open in any way. Then nothing may happen
// for their ids again, and what is left must answer and prove what the orders did.
func TestForgottenOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "cup", 9)
	ten := decimal.MustParse("99.99")
	lined := basket("lined", units("cup", 2), orders.Line{Item: "by air", Quantity: 1, Kind: orders.LineShipping})
	short := request("short")
	short.Item, short.Quantity = "cup", 50
	terms := request("terms")
	terms.CustomerID, terms.PaymentMethod, terms.SubmittedBy = "alice", "card-1", "token:shop"
	terms.StartAt = time.Now().Add(-time.Second).Truncate(time.Microsecond)
	inputs := map[string]engine.Input{"plain": request("plain"), "lined": lined, "short": short, "terms": terms, "refunded": {
		OrderID: "refunded", Amount: ten, Item: "cup", Quantity: 3}}
	for _, in := range inputs {
		b.process(t, in)
	}
	refund := func(id string) {
		assert.NoError(t, assert.Err(b.engine.Do(t.Context(), engine.Request{OrderID: id, Verb: orders.Refund, RequestID: "r", Actor: "me",
			ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("40")), Restock: 2}})))
	}
	refund("refunded")
	assert.NoError(t, assert.Err(b.engine.Do(t.Context(), engine.Request{OrderID: "refunded", Verb: "dispute_lost", Actor: "me", RequestID: "d",
		Dispute: &engine.Dispute{Reference: "dp_2", State: "lost", Amount: decimal.MustParse("7")}})))
	for _, id := range []string{"disputed", "open", "told", "unread"} {
		b.process(t, request(id))
	}
	b.hold(t, fsm.Charging, "held")
	assert.NoError(t, assert.Err(b.engine.Do(t.Context(), engine.Request{OrderID: "disputed", Verb: "dispute_opened", Actor: "me", RequestID: "d",
		Dispute: &engine.Dispute{Reference: "dp_1", State: "opened", Amount: ten}})))
	b.Age(t, longSince)
	terms.StartAt = terms.StartAt.Add(-longSince)
	inputs["terms"] = terms
	b.process(t, request("recent"))
	want := b.proof(t)
	b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders WHERE order_id = 'open'`)
	b.exec(t, `INSERT INTO webhook_endpoints (event_no, created_by, secret, url) VALUES (0, 'me', 'whsec_x', 'https://shop.example')`)
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, body, state)
		SELECT 1, 1, 'x', 'x', 'order ' || order_no, 'x', 'exhausted' FROM orders WHERE order_id = 'told'`)
	b.exec(t, `UPDATE event_batches SET position_from = (SELECT max(position) FROM transitions JOIN orders USING (order_no) WHERE order_id = 'unread')`)

	b.forgets(t, "disputed", "held", "open", "recent", "told", "unread")
	got := b.proof(t)
	want.Money[0].Forgotten = 5
	assert.Equal(t, got.Orders, want.Orders)
	assert.Equal(t, got.Money, want.Money)
	assert.Equal(t, got.Movements, want.Movements)
	for _, table := range []string{"transitions", "charges", "charge_operations", "reservations"} {
		orphans := value[int](t, b.Pool, `SELECT count(*) FROM `+table+` AS c WHERE NOT EXISTS (SELECT FROM orders AS o WHERE o.order_no = c.order_no)`)
		assert.Equal(t, orphans, 0, table)
	}
	assert.True(t, assert.Err(b.Pool.Exec(t.Context(), `UPDATE forgotten_batches SET id_hashes = '{}'`)) != nil,
		"a batch can be changed")
	b.repeatForgotten(t, inputs)
	b.forgets(t, "disputed", "held", "open", "recent", "told", "unread")
}

// repeatForgotten sends the requests again, and others like them.
func (b *bundle) repeatForgotten(t *testing.T, inputs map[string]engine.Input) {
	t.Helper()
	for id, in := range inputs {
		want := fsm.Completed
		if id == "short" {
			want = fsm.Failed
		}
		_, err := b.engine.Process(t.Context(), in)
		left, ok := errors.AsType[*orders.Forgotten](err)
		if !ok || left.Status != want || left.Currency != "USD" || !left.Own {
			t.Errorf("%s again: %v", id, err)
		} else if id == "refunded" && left.Refunded != "40" {
			t.Errorf("refunded %q", left.Refunded)
		}
		assert.ErrorIs(t, assert.Err(b.engine.Admit(t.Context(), in)), orders.ErrForgotten)
		assert.ErrorIs(t, assert.Err(b.engine.Orders.Get(t.Context(), id)), orders.ErrForgotten)
		assert.ErrorIs(t, assert.Err(b.engine.Do(t.Context(), engine.Request{OrderID: id, Verb: orders.Retry})), orders.ErrForgotten)
		in.Amount = decimal.MustParse("1")
		b.conflicts(t, in, "")
	}
	terms := inputs["terms"]
	left := terms
	left.CustomerID, left.PaymentMethod, left.StartAt, left.SubmittedBy, left.Amount = "", "", time.Time{}, "token:other", decimal.MustParse("99.990")
	_, err := b.engine.Process(t.Context(), left)
	f, ok := errors.AsType[*orders.Forgotten](err)
	assert.True(t, ok && !f.Own, "left out", err)
	for pointer, change := range map[string]func(*engine.Input){
		"/customerId":     func(in *engine.Input) { in.CustomerID = "bob" },
		"/paymentMethod":  func(in *engine.Input) { in.PaymentMethod = "card-2" },
		"/startAt":        func(in *engine.Input) { in.StartAt = in.StartAt.Add(-time.Second) },
		"/reservationTtl": func(in *engine.Input) { in.ReservationTTL = time.Minute },
		"/currency":       func(in *engine.Input) { in.Currency = "EUR" },
		"":                func(in *engine.Input) { in.Quantity = 2 },
	} {
		in := terms
		change(&in)
		b.conflicts(t, in, pointer)
	}
}

func (b *bundle) conflicts(t *testing.T, in engine.Input, pointer string) {
	t.Helper()
	_, err := b.engine.Process(t.Context(), in)
	c, ok := errors.AsType[*orders.Conflict](err)
	assert.True(t, ok && len(c.Differences) == 1 && c.Differences[0].Pointer == pointer, in.OrderID, "other", pointer, err, c)
}

// TestForgettingWhileOrdersAreRepeated has callers repeat requests, with keys and in batches with new orders, while
// their orders are forgotten: each is answered as before or as forgotten, and none is charged again.
func TestForgettingWhileOrdersAreRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := requests("old", 300)
	b.completes(t, ask(t, b.engine, old...), len(old))
	b.Age(t, longSince)
	forgotten := make(chan struct{})
	var callers sync.WaitGroup
	for n := range 8 {
		e := b.engine
		if n%2 == 1 {
			e = b.replica(t, engine.Config{})
		}
		callers.Go(func() {
			for i := 0; ; i++ {
				in := old[(i*7+n)%len(old)]
				if i%3 == 0 {
					in.SetKey("token:shop", fmt.Sprint(n, i))
				}
				o, err := e.Process(t.Context(), in)
				assert.True(t, (err != nil || o.Status == fsm.Completed) && (err == nil || errors.Is(err, orders.ErrForgotten) ||
					errors.Is(err, orders.ErrOverloaded)), in.OrderID, err)
				select {
				case <-forgotten:
					return
				default:
				}
			}
		})
	}
	b.forgets(t)
	close(forgotten)
	callers.Wait()
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM charges`), 0, "charged again")
	orders, money := b.totals(t)
	assert.True(t, orders["completed"] == 300 && money[0].Charges == 300, orders, money)
}

// TestRemovalWaitsForOlderStatements: a statement that may have begun before the mark was visible could admit the id
// again.
func TestRemovalWaitsForOlderStatements(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, request("one"))
	b.Age(t, longSince)
	unlock := b.lock(t, `LOCK TABLE orders IN ROW EXCLUSIVE MODE`)
	b.exec(t, `SELECT mark_forgotten(0, 9, interval '31 days', false)`)
	const remove = `SELECT removed::text || ' ' || waiting FROM remove_forgotten(NULL)`
	assert.Equal(t, value[string](t, b.Pool, remove), "0 true")
	unlock()
	younger := b.lock(t, `SELECT FROM orders`) // only reads
	defer younger()
	assert.Equal(t, value[string](t, b.Pool, remove), "1 false")
	assert.Equal(t, value[string](t, b.Pool, remove), "0 false")
	b.totals(t)
}

// TestRefundAfterTheMark refunds an order of a batch that an archive marked and left open for longer than orders are
// kept: the order stays, because what was marked and written does not show the refund.
func TestRefundAfterTheMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completes(t, ask(t, b.engine, request("quiet"), request("refunded")), 2)
	b.Age(t, 2*longSince)
	b.exec(t, `SELECT mark_forgotten(0, 9, interval '31 days', true)`)
	assert.NoError(t, assert.Err(b.engine.Do(t.Context(), engine.Request{OrderID: "refunded", Verb: orders.Refund, RequestID: "r", Actor: "me",
		ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("40"))}})))
	b.Age(t, longSince)
	b.exec(t, `UPDATE forgotten_batches SET marked_at = marked_at - make_interval(secs => $1)`, (longSince + time.Hour).Seconds())
	log := new(dbtest.Log)
	b.replica(t, engine.Config{OrderRetention: month, RecoveryInterval: 10 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))})
	eventually(t, "the open batch is logged", func() bool { return strings.Contains(log.String(), "run pawl archive again") })

	assert.Equal(t, value[int](t, b.Pool, `SELECT removed FROM remove_forgotten(gen_random_uuid())`), 0, "another batch")
	assert.Equal(t, value[int](t, b.Pool, `SELECT r.removed FROM forgotten_batches AS b CROSS JOIN LATERAL remove_forgotten(b.id) AS r`), 1)
	b.totals(t)
	b.forgets(t)
	left, ok := errors.AsType[*orders.Forgotten](assert.Err(b.engine.Orders.Get(t.Context(), "refunded")))
	assert.True(t, ok && left.Refunded == "40", left)
	b.totals(t)
}

// TestOtherHalfOfADividedCell removes the orders of the other half without a trace, except for the units that they
// sold.
func TestOtherHalfOfADividedCell(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completes(t, ask(t, b.engine, requests("order", 40)...), 40)
	b.exec(t, `UPDATE installation SET cell = '1/2'`)
	own := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE get_byte(sha256(convert_to(order_id, 'UTF8')), 0) >= 128`)
	b.Age(t, longSince)
	b.forgets(t)
	left := value[string](t, b.Pool, `SELECT (SELECT count(*) FROM forgotten_orders) || ' ' || sum(orders) || ' ' || (SELECT sum(others) FROM forgotten_batches) || ' '
		|| (SELECT sold FROM forgotten_stock) FROM forgotten_sums`)
	assert.Equal(t, left, fmt.Sprint(own, " ", own, " ", 40-own, " 40"))
	b.totals(t)
}
