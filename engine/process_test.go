package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// snapshot is every row of the service with the transaction that wrote it and its place: a write of the same values
// shows, too.
func snapshot(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
		SELECT format('orders %s %s %s', o.xmin, o.ctid, o.*) FROM orders AS o
		UNION ALL SELECT format('transitions %s %s %s', t.xmin, t.ctid, t.*) FROM transitions AS t
		UNION ALL SELECT format('charges %s %s %s', c.xmin, c.ctid, c.*) FROM charges AS c
		UNION ALL SELECT format('refunds %s %s %s', r.xmin, r.ctid, r.*) FROM charge_operations AS r
		UNION ALL SELECT format('reservations %s %s %s', v.xmin, v.ctid, v.*) FROM reservations AS v
		UNION ALL SELECT format('inventory %s %s %s', i.xmin, i.ctid, i.*) FROM inventory AS i) AS lines(line)`)
}

// writesNothing checks that what is done leaves every row alone.
func (b *bundle) writesNothing(t testing.TB, do func()) {
	t.Helper()
	before := snapshot(t, b.Pool)
	do()
	assert.Equal(t, snapshot(t, b.Pool), before, "was")
}

// asJSON makes orders comparable: their fields are pointers, and PostgreSQL keeps the values of metadata, not its spaces.
func asJSON(t testing.TB, order orders.Order) string {
	t.Helper()
	var metadata map[string]string
	if order.Metadata != nil {
		assert.NoError(t, json.Unmarshal(order.Metadata, &metadata))
	}
	order.Metadata = nil
	text, err := json.Marshal([]any{order, metadata})
	assert.NoError(t, err)
	return string(text)
}

// sameAsStored checks that a caller was told what is in the database.
func (b *bundle) sameAsStored(t testing.TB, told orders.Order) {
	t.Helper()
	stored, err := b.engine.Orders.Get(t.Context(), told.OrderID)
	assert.NoError(t, err)
	assert.Equal(t, asJSON(t, told), asJSON(t, stored))
}

func TestProcessNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := request("new")
	in.Quantity, in.Currency, in.Metadata = 3, "EUR", []byte(`{"cart":"7"}`)
	order := b.process(t, in)
	o := order
	assert.True(t, o.Status == fsm.Completed && o.Amount.String() == "99.99" && o.Currency == "EUR" && o.Quantity == 3 &&
		o.Item == "widget" && o.Fence == 1 && o.Seq == 4 && o.Owner == nil && o.DueAt == nil && o.FinishedAt != nil, o)
	assert.True(t, order.ChargedAt != nil && order.ReservedAt != nil && order.RefundedAt == nil && order.ReleasedAt == nil, order)
	assert.Contains(t, value[string](t, b.Pool, `SELECT metadata::text FROM books.orders`), `"cart": "7"`,
		"the metadata is not stored")
	b.sameAsStored(t, b.process(t, request("defaults")))
	assert.Equal(t, value[string](t, b.Pool, `SELECT currency || quantity FROM books.orders WHERE order_id = 'defaults'`), "USD1",
		"defaults")
	proveBooks(t, b.Pool)
}

func TestProcessKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	full := request("known")
	full.Quantity, full.Currency, full.Metadata = 2, "EUR", []byte(`{"a":"1"}`)
	first := b.process(t, full)
	other := b.replica(t, engine.Config{Currency: "GBP"}) // its default is nobody's input
	for name, in := range map[string]engine.Input{
		"the same":                      full,
		"without what has a default":    {OrderID: "known", Amount: full.Amount, Item: full.Item},
		"without the quantity":          {OrderID: "known", Amount: full.Amount, Item: full.Item, Currency: "EUR"},
		"an amount with more zeros":     {OrderID: "known", Amount: decimal.MustParse("99.9900"), Item: full.Item},
		"other metadata, or not at all": {OrderID: "known", Amount: full.Amount, Item: full.Item, Metadata: []byte(`{"b":"2"}`)},
	} {
		b.writesNothing(t, func() {
			for _, e := range []*engine.Engine{b.engine, other} {
				order, err := deref(e.Process(t.Context(), in))
				assert.True(t, err == nil && asJSON(t, order) == asJSON(t, first),
					name, err, "first", asJSON(t, first), "then", asJSON(t, order))
			}
		})
	}
	order, err := deref(other.Process(t.Context(), request("pounds")))
	assert.True(t, err == nil && order.Currency == "GBP", err, order)
}

func TestProcessConflict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, engine.Input{OrderID: "known", Amount: decimal.MustParse("10.50"), Currency: "EUR", Item: "widget", Quantity: 2})
	all := []orders.Difference{{Pointer: "/amount", Stored: "10.50", Sent: "10.51"}, {Pointer: "/item", Stored: "widget", Sent: "Widget"},
		{Pointer: "/currency", Stored: "EUR", Sent: "USD"}, {Pointer: "/quantity", Stored: "2", Sent: "1"}}
	other := engine.Input{OrderID: "known", Amount: decimal.MustParse("10.51"), Item: "Widget", Currency: "USD", Quantity: 1}
	b.writesNothing(t, func() {
		for _, send := range []func(context.Context, engine.Input) (*orders.Order, error){b.engine.Process, b.engine.Admit} {
			_, err := send(t.Context(), other)
			var conflict *orders.Conflict
			assert.Require(t, errors.As(err, &conflict) && slices.Equal(conflict.Differences, all), err)
			b.sameAsStored(t, conflict.Order)
		}
	})
}

// Other input for an order that is under way elsewhere is refused at once, not when the
// order ends.
func TestConflictIsToldAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Minute, "elsewhere")
	other := request("elsewhere")
	other.Item = "something else"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var conflict *orders.Conflict
	_, err := b.engine.Process(ctx, other)
	assert.True(t, errors.As(err, &conflict) && ctx.Err() == nil, err)
}

// atOnce sends requests from a goroutine each and counts the answers.
func (b *bundle) atOnce(t testing.TB, inputs []engine.Input) (completed, conflicts int) {
	t.Helper()
	answers := ask(t, b.engine, inputs...)
	for range inputs {
		a := <-answers
		var conflict *orders.Conflict
		switch {
		case a.err == nil && a.order.Status == fsm.Completed:
			completed++
			b.sameAsStored(t, a.order)
		case errors.As(a.err, &conflict):
			conflicts++
		default:
			t.Errorf("%q: %v, %s", a.orderID, a.err, a.order.Status)
		}
	}
	return completed, conflicts
}

func TestProcessAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("fifty callers with one id make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one")}, 50))
		assert.True(t, completed == 50 && conflicts == 0, completed, "completed", conflicts, "conflicts")
		admitted, moves := b.engine.Stats.Admitted.Load(), b.engine.Stats.Moves.Load()
		assert.True(t, admitted == 1 && moves == 3, admitted, "admitted", moves, "moves")
		proveBooks(t, b.Pool)
	})
	t.Run("fifty callers with one id and two amounts make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := request("one")
		other.Amount = decimal.MustParse("1")
		completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one"), other}, 25))
		assert.True(t, completed == 25 && conflicts == 25, completed, "completed", conflicts, "conflicts")
		b.counts(t, 1, `SELECT count(*) FROM books.charges`)
	})
}

// inVain waits for an order that does not end, just long enough for the database to say how far it is.
func inVain(t testing.TB, wait func(context.Context) (orders.Order, error)) (order orders.Order, err error) {
	t.Helper()
	for limit := 10 * time.Millisecond; limit < patience; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		order, err = wait(ctx)
		cancel()
		if !errors.Is(err, orders.ErrUnavailable) {
			break
		}
	}
	return order, err
}

func TestProcessUnfinished(t *testing.T) {
	t.Parallel()
	t.Run("a caller who has waited long enough is told how far it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, "elsewhere")
		g.advance(t, fsm.Reserving, "elsewhere")
		b.writesNothing(t, func() {
			order, err := inVain(t, func(ctx context.Context) (orders.Order, error) {
				return deref(b.engine.Process(ctx, request("elsewhere")))
			})
			assert.True(t, err == nil && order.Status == fsm.Reserving && order.ChargedAt != nil, err, order)
			b.sameAsStored(t, order)
		})
		g.advance(t, fsm.Completed, "elsewhere")
		b.sameAsStored(t, b.process(t, request("elsewhere")))
	})
	t.Run("a caller who leaves does not stop the order", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.engine.Process(ctx, request("left")); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err) // no error: the order was faster than the caller
		}
		order := b.process(t, request("left"))
		assert.True(t, order.Status == fsm.Completed && order.Seq == 4, order)
	})
	t.Run("one that was left behind is finished by whoever asks", func(t *testing.T) {
		t.Parallel()
		for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
			b := setupWith(t, byCallers)
			g := newGhost(b.Pool)
			g.admit(t, time.Minute, "left behind")
			g.advance(t, state, "left behind")
			g.letGo(t, "left behind")
			order := b.process(t, request("left behind"))
			assert.True(t, order.Status == fsm.Completed && order.Fence == 2, "left", state, order)
			proveBooks(t, b.Pool)
		}
	})
	t.Run("one that is held is told at once, and stays as it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, fsm.Reserving, "held")
		b.writesNothing(t, func() {
			order := b.process(t, request("held"))
			assert.True(t, order.Status == fsm.Reserving && text(order.Hold) == "paused", order)
		})
	})
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	order, err := deref(b.engine.Admit(t.Context(), request("stored")))
	assert.Require(t, err == nil && order.OrderNo != 0 && order.OrderID == "stored", err, order)
	reaches(t, b.Pool, "stored", "completed")
	order, err = deref(b.engine.Admit(t.Context(), request("stored")))
	assert.True(t, err == nil && order.Status == fsm.Completed, err, order)
}

func TestTurnedAway(t *testing.T) {
	t.Parallel()
	t.Run("when there are too many orders in memory", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{MaxInFlight: 1})
		b.process(t, request("known"))
		newGhost(b.Pool).admit(t, time.Minute, "elsewhere")
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := b.engine.Process(ctx, request("elsewhere"))
			done <- err
		}()
		eventually(t, "the first is in memory", func() bool { return b.engine.InFlight() == 1 })
		b.writesNothing(t, func() {
			o, err := deref(b.engine.Process(t.Context(), request("known")))
			assert.True(t, err == nil && o.Status == fsm.Completed, "an order that is stored", o.Status, err)
			assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), request("too many"))), orders.ErrOverloaded)
		})
		assert.Equal(t, b.engine.Stats.Overloaded.Load(), 1, "counted")
		leave()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	t.Run("when the engine stops", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		e := b.replica(t, engine.Config{})
		stop(t, e)
		b.writesNothing(t, func() {
			_, processed := e.Process(t.Context(), request("late"))
			_, admitted := e.Admit(t.Context(), request("late"))
			_, canceled := e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "late"})
			for _, err := range []error{processed, admitted, canceled, e.Ready(t.Context())} {
				assert.ErrorIs(t, err, orders.ErrStopping)
			}
		})
	})
}

// An order deleted while somebody waits for it is gone for its watcher, and new for a
// request that brings it again.
func TestOrderDeletedWhileWatched(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Minute, "watched")
	outcome := make(chan error, 1)
	go func() {
		_, err := b.engine.Do(context.WithoutCancel(t.Context()), engine.Request{Verb: orders.Cancel, OrderID: "watched"})
		outcome <- err
	}()
	eventually(t, "the stop is written", b.answers(t, 1, `SELECT count(*) FROM orders WHERE stop_requested IS NOT NULL`))
	b.exec(t, `SET LOCAL session_replication_role = replica; DELETE FROM transitions; DELETE FROM orders`)
	assert.ErrorIs(t, <-outcome, orders.ErrNotFound, "the watcher is told")
	isNow(t, b.process(t, request("watched")), fsm.Completed)
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "none", 0)
	for _, amount := range []string{
		"99.99", "12345678901.23", "0", "999999999999999.99", "999999999999999.9999", "5", "5.5", "5.50", "0.01", "0.10",
		"1000000", "100.00", "100000000000000", "0.0001", "9007199254740993",
	} {
		in := engine.Input{OrderID: amount, Amount: decimal.MustParse(amount), Item: "widget"}
		if strings.HasPrefix(amount, "9007") { // the limit of a float64, and over ours
			_, err := b.engine.Process(t.Context(), in)
			n := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE order_id = $1`, amount)
			assert.True(t, err != nil && n == 0, amount, err, "stored", n, "times")
			continue
		}
		order := b.process(t, in)
		assert.True(t, order.Status == fsm.Completed && order.Amount.String() == amount, amount, "told", order.Amount)
		in.OrderID, in.Item = amount+" refunded", "none"
		b.process(t, in)
		for query, want := range map[string]string{
			`SELECT amount::text FROM books.orders WHERE order_id = $1`:                 amount,
			`SELECT amount::text FROM books.charges WHERE order_id = $1`:                amount,
			`SELECT amount::text FROM books.refunds WHERE order_id = $1 || ' refunded'`: amount,
		} {
			assert.Equal(t, value[string](t, b.Pool, query, amount), want, amount, "stored")
		}
		if order, err := b.engine.Orders.Get(t.Context(), amount); err != nil || order.Amount.String() != amount {
			t.Errorf("%s: %v, read %s", amount, err, order.Amount)
		}
	}
	zero := b.process(t, engine.Input{OrderID: "zero", Amount: decimal.MustParse("0.00"), Item: "widget"})
	b.sameAsStored(t, zero)
	assert.Equal(t, zero.Amount.Sign(), 0, zero)
	sums := value[string](t, b.Pool, `SELECT format('%s %s', (SELECT sum(amount) FROM books.charges WHERE refunded_at IS NOT NULL) =
		(SELECT sum(amount) FROM books.refunds), (SELECT sum(amount) FROM books.charges WHERE refunded_at IS NULL) =
		(SELECT sum(amount) FROM books.orders WHERE status = 'completed'))`)
	assert.Equal(t, sums, "t t", "the money does not balance")
	proveBooks(t, b.Pool)
}
