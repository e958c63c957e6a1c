package engine_test

import (
	"strings"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
)

// ids that are easily taken for each other, or for something else.
var ids = []string{
	" ", "  ", " lead", "trail ", "a", "A", "ａ", "á", "a\u0301", "\u00c5", "\u212b", "ß", "ss", "ı", "i", "I", "İ",
	"日本語", "שלום", "שלום\u200f", "👩‍👩‍👧", "👩", "\U0010ffff", "\uffff", "\ufeffbom", "bom\ufeff", "\u200b", "\u2028",
	"a/b", "a%2Fb", "..", ".", "%", "%00", "_", "a_b", "a%b", `a\b`, `a\\b`, "'", "''", `"`, "$1", "{}", "{a,b}", "NULL", "null",
	"1", "01", "1.0", "a\tb", "a b", strings.Repeat("x", 255), strings.Repeat("x", 254), strings.Repeat("界", 255), strings.Repeat("👩", 255),
}

func TestIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var inputs []engine.Input
	for _, id := range ids {
		in := request(id)
		in.Item = "item " + id // items are names of the same kind
		inputs = append(inputs, in)
	}
	if completed, _ := b.atOnce(t, inputs); completed != len(ids) {
		t.Fatalf("%d of %d completed", completed, len(ids))
	}
	if n := b.engine.Stats.Admitted.Load(); n != int64(len(ids)) {
		t.Errorf("%d orders from %d ids", n, len(ids))
	}
	for _, id := range ids {
		order, err := b.engine.Orders.Get(t.Context(), id)
		if err != nil || order.OrderID != id || order.Item != "item "+id {
			t.Errorf("%q: %v, stored as %q for %q", id, err, order.OrderID, order.Item)
		}
		if n := value[int](t, b.Pool, `SELECT count(*) FROM books.charges WHERE order_id = $1`, id); n != 1 {
			t.Errorf("%q has %d charges", id, n)
		}
	}
	proveBooks(t, b.Pool)
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
			if n := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE order_id = $1`, amount); err == nil || n != 0 {
				t.Errorf("%s: %v, stored %d times", amount, err, n)
			}
			continue
		}
		if order := b.process(t, in); order.Status != fsm.Completed || order.Amount.String() != amount {
			t.Errorf("%s: told %s", amount, order.Amount)
		}
		in.OrderID, in.Item = amount+" refunded", "none"
		b.process(t, in)
		for query, want := range map[string]string{
			`SELECT amount::text FROM books.orders WHERE order_id = $1`:                 amount,
			`SELECT amount::text FROM books.charges WHERE order_id = $1`:                amount,
			`SELECT amount::text FROM books.refunds WHERE order_id = $1 || ' refunded'`: amount,
		} {
			if got := value[string](t, b.Pool, query, amount); got != want {
				t.Errorf("%s: stored %s", amount, got)
			}
		}
		if order, err := b.engine.Orders.Get(t.Context(), amount); err != nil || order.Amount.String() != amount {
			t.Errorf("%s: %v, read %s", amount, err, order.Amount)
		}
	}
	zero := b.process(t, engine.Input{OrderID: "zero", Amount: decimal.MustParse("0.00"), Item: "widget"})
	if b.sameAsStored(t, zero); zero.Amount.Sign() != 0 {
		t.Errorf("%+v", zero)
	}
	sums := value[string](t, b.Pool, `SELECT format('%s %s', (SELECT sum(amount) FROM books.charges WHERE refunded_at IS NOT NULL) =
		(SELECT sum(amount) FROM books.refunds), (SELECT sum(amount) FROM books.charges WHERE refunded_at IS NULL) =
		(SELECT sum(amount) FROM books.orders WHERE status = 'completed'))`)
	if sums != "t t" {
		t.Error("the money does not balance")
	}
	proveBooks(t, b.Pool)
}
