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
)

// snapshot is every row of the service with the transaction that wrote it and its place: a write of the same values
// shows, too.
func snapshot(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
		SELECT format('orders %s %s %s', o.xmin, o.ctid, o.*) FROM orders AS o
		UNION ALL SELECT format('transitions %s %s %s', t.xmin, t.ctid, t.*) FROM transitions AS t
		UNION ALL SELECT format('charges %s %s %s', c.xmin, c.ctid, c.*) FROM charges AS c
		UNION ALL SELECT format('refunds %s %s %s', r.xmin, r.ctid, r.*) FROM refunds AS r
		UNION ALL SELECT format('reservations %s %s %s', v.xmin, v.ctid, v.*) FROM reservations AS v
		UNION ALL SELECT format('inventory %s %s %s', i.xmin, i.ctid, i.*) FROM inventory AS i) AS lines(line)`)
}

// writesNothing checks that what is done leaves every row alone.
func (b *bundle) writesNothing(t testing.TB, do func()) {
	t.Helper()
	before := snapshot(t, b.Pool)
	do()
	if after := snapshot(t, b.Pool); after != before {
		t.Errorf("was\n%s\nis\n%s", before, after)
	}
}

// asJSON makes orders comparable: their fields are pointers, and PostgreSQL keeps the values of metadata, not its spaces.
func asJSON(t testing.TB, order engine.Order) string {
	t.Helper()
	var metadata map[string]string
	if order.Order.Metadata != nil {
		if err := json.Unmarshal(order.Order.Metadata, &metadata); err != nil {
			t.Fatal(err)
		}
	}
	order.Order.Metadata = nil
	text, err := json.Marshal([]any{order, metadata})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sameAsStored checks that a caller was told what is in the database.
func (b *bundle) sameAsStored(t testing.TB, told engine.Order) {
	t.Helper()
	stored, err := b.engine.Get(t.Context(), told.Order.OrderID)
	if err != nil {
		t.Fatal(err)
	}
	if told, stored := asJSON(t, told), asJSON(t, stored); told != stored {
		t.Errorf("told   %s\nstored %s", told, stored)
	}
}

func TestProcessNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := request("new")
	in.Quantity, in.Currency, in.Metadata = 3, "EUR", []byte(`{"cart":"7"}`)
	order := b.process(t, in)
	o := order.Order
	if o.Status != fsm.Completed || o.Amount.String() != "99.99" || o.Currency != "EUR" || o.Quantity != 3 || o.Item != "widget" ||
		o.Fence != 1 || o.Seq != 4 || o.Owner != nil || o.DueAt != nil || o.FinishedAt == nil {
		t.Errorf("%+v", o)
	}
	if order.ChargedAt == nil || order.ReservedAt == nil || order.RefundedAt != nil || order.ReleasedAt != nil {
		t.Errorf("%+v", order)
	}
	if !strings.Contains(value[string](t, b.Pool, `SELECT metadata::text FROM books.orders`), `"cart": "7"`) {
		t.Error("the metadata is not stored")
	}
	if got := states(t, b.Pool, "new"); !slices.Equal(got, []string{"charging", "reserving", "confirming", "completed"}) {
		t.Errorf("went %q", got)
	}
	b.sameAsStored(t, b.process(t, request("defaults")))
	if defaults := value[string](t, b.Pool, `SELECT currency || quantity FROM books.orders WHERE order_id = 'defaults'`); defaults != "USD1" {
		t.Errorf("defaults are %s", defaults)
	}
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
				order, err := e.Process(t.Context(), in)
				if err != nil || asJSON(t, order) != asJSON(t, first) {
					t.Errorf("%s: %v\nfirst %s\nthen  %s", name, err, asJSON(t, first), asJSON(t, order))
				}
			}
		})
	}
	if order, err := other.Process(t.Context(), request("pounds")); err != nil || order.Order.Currency != "GBP" {
		t.Errorf("%v %+v", err, order)
	}
}

func TestProcessConflict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stored := engine.Input{OrderID: "known", Amount: decimal.MustParse("10.50"), Currency: "EUR", Item: "widget", Quantity: 2}
	b.process(t, stored)
	amount := engine.Difference{Pointer: "/amount", Stored: "10.50", Sent: "10.51"}
	item := engine.Difference{Pointer: "/item", Stored: "widget", Sent: "Widget"}
	currency := engine.Difference{Pointer: "/currency", Stored: "EUR", Sent: "USD"}
	quantity := engine.Difference{Pointer: "/quantity", Stored: "2", Sent: "1"}
	for name, c := range map[string]struct {
		change func(*engine.Input)
		want   []engine.Difference
	}{
		"amount":   {func(in *engine.Input) { in.Amount = decimal.MustParse("10.51") }, []engine.Difference{amount}},
		"item":     {func(in *engine.Input) { in.Item = "Widget" }, []engine.Difference{item}},
		"currency": {func(in *engine.Input) { in.Currency = "USD" }, []engine.Difference{currency}},
		"quantity": {func(in *engine.Input) { in.Quantity = 1 }, []engine.Difference{quantity}},
		"all of them": {func(in *engine.Input) {
			*in = engine.Input{OrderID: "known", Amount: decimal.MustParse("10.51"), Item: "Widget", Currency: "USD", Quantity: 1}
		}, []engine.Difference{amount, item, currency, quantity}},
		"amount, the rest left out": {func(in *engine.Input) {
			*in = engine.Input{OrderID: "known", Amount: decimal.MustParse("10.51"), Item: "widget"}
		}, []engine.Difference{amount}},
	} {
		in := stored
		c.change(&in)
		b.writesNothing(t, func() {
			for _, send := range []func(context.Context, engine.Input) (engine.Order, error){b.engine.Process, b.engine.Admit} {
				_, err := send(t.Context(), in)
				var conflict *engine.Conflict
				if !errors.As(err, &conflict) || !slices.Equal(conflict.Differences, c.want) {
					t.Errorf("%s: %v", name, err)
					continue
				}
				b.sameAsStored(t, conflict.Order)
			}
		})
	}
}

// atOnce sends requests from a goroutine each and counts the answers.
func (b *bundle) atOnce(t testing.TB, inputs []engine.Input) (completed, conflicts int) {
	t.Helper()
	answers := ask(t, b.engine, inputs...)
	for range inputs {
		a := <-answers
		var conflict *engine.Conflict
		switch {
		case a.err == nil && a.order.Order.Status == fsm.Completed:
			completed++
			b.sameAsStored(t, a.order)
		case errors.As(a.err, &conflict):
			conflicts++
		default:
			t.Errorf("%q: %v, %s", a.orderID, a.err, a.order.Order.Status)
		}
	}
	return completed, conflicts
}

func TestProcessAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("fifty callers with one id make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one")}, 50)); completed != 50 || conflicts != 0 {
			t.Errorf("%d completed, %d conflicts", completed, conflicts)
		}
		if admitted, moves := b.engine.Stats.Admitted.Load(), b.engine.Stats.Moves.Load(); admitted != 1 || moves != 3 {
			t.Errorf("%d admitted, %d moves", admitted, moves)
		}
		proveBooks(t, b.Pool)
	})
	t.Run("fifty callers with one id and two amounts make one run", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := request("one")
		other.Amount = decimal.MustParse("1")
		if completed, conflicts := b.atOnce(t, slices.Repeat([]engine.Input{request("one"), other}, 25)); completed != 25 || conflicts != 25 {
			t.Errorf("%d completed, %d conflicts", completed, conflicts)
		}
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges`); n != 1 {
			t.Errorf("%d charges", n)
		}
	})
	t.Run("different ids have nothing to do with each other", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if completed, _ := b.atOnce(t, requests("order", 200)); completed != 200 {
			t.Errorf("%d completed", completed)
		}
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges`); n != 200 {
			t.Errorf("%d charges", n)
		}
		proveBooks(t, b.Pool)
	})
}

func TestProcessUnfinished(t *testing.T) {
	t.Parallel()
	t.Run("a caller who has waited long enough is told how far it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		g := newGhost(b.Pool)
		g.admit(t, time.Hour, "elsewhere")
		g.advance(t, fsm.Reserving, "elsewhere")
		b.writesNothing(t, func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			order, err := b.engine.Process(ctx, request("elsewhere"))
			if err != nil || order.Order.Status != fsm.Reserving || order.ChargedAt == nil {
				t.Errorf("%v %+v", err, order)
			}
			b.sameAsStored(t, order)
		})
		g.advance(t, fsm.Completed, "elsewhere")
		b.sameAsStored(t, b.process(t, request("elsewhere")))
	})
	t.Run("a caller with other input who has waited long enough is told so", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		newGhost(b.Pool).admit(t, time.Hour, "elsewhere")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		in := request("elsewhere")
		in.Item = "gadget"
		_, err := b.engine.Process(ctx, in)
		if conflict := (*engine.Conflict)(nil); !errors.As(err, &conflict) || conflict.Order.Order.Status != fsm.Charging {
			t.Error(err)
		}
	})
	t.Run("a caller who leaves does not stop the order", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.engine.Process(ctx, request("left")); !errors.Is(err, context.Canceled) {
			// It may have been faster than the caller.
			t.Logf("%v", err)
		}
		if order := b.process(t, request("left")); order.Order.Status != fsm.Completed || order.Order.Seq != 4 {
			t.Errorf("%+v", order.Order)
		}
	})
	t.Run("one that was left behind is finished by whoever asks", func(t *testing.T) {
		t.Parallel()
		for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
			b := setupWith(t, byCallers)
			g := newGhost(b.Pool)
			g.admit(t, time.Hour, "left behind")
			g.advance(t, state, "left behind")
			g.letGo(t, "left behind")
			if order := b.process(t, request("left behind")); order.Order.Status != fsm.Completed || order.Order.Fence != 2 {
				t.Errorf("left %s: %+v", state, order.Order)
			}
			proveBooks(t, b.Pool)
		}
	})
	t.Run("one that is held is told at once, and stays as it is", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.hold(t, fsm.Reserving, "held")
		b.writesNothing(t, func() {
			if order := b.process(t, request("held")); order.Order.Status != fsm.Reserving || text(order.Order.Hold) != "paused" {
				t.Errorf("%+v", order.Order)
			}
		})
	})
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	order, err := b.engine.Admit(t.Context(), request("stored"))
	if err != nil || order.Order.OrderNo == 0 || order.Order.OrderID != "stored" {
		t.Fatalf("%v %+v", err, order)
	}
	eventually(t, "the order is completed without its caller", func() bool { return status(t, b.Pool, "stored") == "completed" })
	order, err = b.engine.Admit(t.Context(), request("stored"))
	if err != nil || order.Order.Status != fsm.Completed {
		t.Errorf("%v %+v", err, order)
	}
}

func TestTurnedAway(t *testing.T) {
	t.Parallel()
	t.Run("when there are too many orders in memory", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{MaxInFlight: 1})
		newGhost(b.Pool).admit(t, time.Hour, "elsewhere")
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := b.engine.Process(ctx, request("elsewhere"))
			done <- err
		}()
		eventually(t, "the first is in memory", func() bool { return b.engine.InFlight() == 1 })
		b.writesNothing(t, func() {
			if _, err := b.engine.Process(t.Context(), request("too many")); !errors.Is(err, engine.ErrOverloaded) {
				t.Error(err)
			}
		})
		if n := b.engine.Stats.Overloaded.Load(); n != 1 {
			t.Errorf("%d counted", n)
		}
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("when the engine stops", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		e := b.replica(t, engine.Config{})
		stop(t, e)
		b.writesNothing(t, func() {
			_, processed := e.Process(t.Context(), request("late"))
			_, admitted := e.Admit(t.Context(), request("late"))
			_, canceled := e.Cancel(t.Context(), engine.Stop{OrderID: "late"})
			for _, err := range []error{processed, admitted, canceled, e.Ready(t.Context())} {
				if !errors.Is(err, engine.ErrStopping) {
					t.Error(err)
				}
			}
		})
	})
}
