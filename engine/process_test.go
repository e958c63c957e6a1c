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
func asJSON(t testing.TB, order orders.Order) string {
	t.Helper()
	var metadata map[string]string
	if order.Metadata != nil {
		if err := json.Unmarshal(order.Metadata, &metadata); err != nil {
			t.Fatal(err)
		}
	}
	order.Metadata = nil
	text, err := json.Marshal([]any{order, metadata})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sameAsStored checks that a caller was told what is in the database.
func (b *bundle) sameAsStored(t testing.TB, told orders.Order) {
	t.Helper()
	stored, err := b.engine.Orders.Get(t.Context(), told.OrderID)
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
	o := order
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
	if order, err := other.Process(t.Context(), request("pounds")); err != nil || order.Currency != "GBP" {
		t.Errorf("%v %+v", err, order)
	}
}

func TestProcessConflict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stored := engine.Input{OrderID: "known", Amount: decimal.MustParse("10.50"), Currency: "EUR", Item: "widget", Quantity: 2}
	b.process(t, stored)
	amount := orders.Difference{Pointer: "/amount", Stored: "10.50", Sent: "10.51"}
	item := orders.Difference{Pointer: "/item", Stored: "widget", Sent: "Widget"}
	currency := orders.Difference{Pointer: "/currency", Stored: "EUR", Sent: "USD"}
	quantity := orders.Difference{Pointer: "/quantity", Stored: "2", Sent: "1"}
	for name, c := range map[string]struct {
		change func(*engine.Input)
		want   []orders.Difference
	}{
		"amount":   {func(in *engine.Input) { in.Amount = decimal.MustParse("10.51") }, []orders.Difference{amount}},
		"item":     {func(in *engine.Input) { in.Item = "Widget" }, []orders.Difference{item}},
		"currency": {func(in *engine.Input) { in.Currency = "USD" }, []orders.Difference{currency}},
		"quantity": {func(in *engine.Input) { in.Quantity = 1 }, []orders.Difference{quantity}},
		"all of them": {func(in *engine.Input) {
			*in = engine.Input{OrderID: "known", Amount: decimal.MustParse("10.51"), Item: "Widget", Currency: "USD", Quantity: 1}
		}, []orders.Difference{amount, item, currency, quantity}},
		"amount, the rest left out": {func(in *engine.Input) {
			*in = engine.Input{OrderID: "known", Amount: decimal.MustParse("10.51"), Item: "widget"}
		}, []orders.Difference{amount}},
	} {
		in := stored
		c.change(&in)
		b.writesNothing(t, func() {
			for _, send := range []func(context.Context, engine.Input) (orders.Order, error){b.engine.Process, b.engine.Admit} {
				_, err := send(t.Context(), in)
				var conflict *orders.Conflict
				if !errors.As(err, &conflict) || !slices.Equal(conflict.Differences, c.want) {
					t.Errorf("%s: %v", name, err)
					continue
				}
				b.sameAsStored(t, conflict.Order)
			}
		})
	}
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
	if _, err := b.engine.Process(ctx, other); !errors.As(err, &conflict) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}
