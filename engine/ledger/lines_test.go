package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// baskets admits orders with lines, and takes them to reserving.
func (l *books) baskets(baskets ...[]orders.Line) (orderNos []int64) {
	l.t.Helper()
	p := db.OrdersAdmitWithTermsParams{Owner: uuid.New(), LeaseSeconds: 60, Waits: true}
	for _, lines := range baskets {
		l.made++
		units := int32(0)
		for _, line := range lines {
			if line.Kind == "" {
				units += line.Quantity
			}
		}
		p.OrderIds = append(p.OrderIds, fmt.Sprintf("basket %06d", l.made))
		p.Amounts, p.Currencies = append(p.Amounts, "10.50"), append(p.Currencies, "USD")
		p.Items, p.Quantities = append(p.Items, ""), append(p.Quantities, units)
		p.Lines = append(p.Lines, orders.FormatLines(lines))
	}
	rows, err := l.query.OrdersAdmitWithTerms(l.t.Context(), p)
	l.must(err)
	for _, row := range rows {
		orderNos = append(orderNos, row.WrittenOrder.OrderNo)
	}
	l.all(l.set(orderNos...))
	return orderNos
}

// reserveLines sends the statement, and returns the verdicts by number.
func (l *books) reserveLines(set ledger.Batch) map[int64]fsm.State {
	l.t.Helper()
	moved, err := ledger.LineMoves[fsm.Reserving](l.t.Context(), l.query, set)
	l.must(err)
	verdicts := map[int64]fsm.State{}
	for _, m := range moved {
		verdicts[m.OrderNo] = m.ToStatus
	}
	return verdicts
}

func units(item string, quantity int32) orders.Line {
	return orders.Line{Item: item, Quantity: quantity}
}

func TestReserveLines(t *testing.T) {
	t.Parallel()
	const reserved, refused, undecided = fsm.Confirming, fsm.Refunding, fsm.State("")
	for name, c := range map[string]struct {
		baskets [][]orders.Line
		want    []fsm.State
		left    string // on hand less reserved
	}{
		"all or nothing": {
			[][]orders.Line{{units("cup", 1), units("tea", 9)}, {units("tea", 1), units("cup", 1)}},
			[]fsm.State{refused, undecided}, "cup 5, tea 2"},
		"two lines of one item count together": {
			[][]orders.Line{{units("tea", 1), units("tea", 2)}, {units("tea", 1), units("tea", 1)}},
			[]fsm.State{refused, undecided}, "cup 5, tea 2"},
		"other kinds have no stock": {
			[][]orders.Line{{units("cup", 5), {Item: "tea", Quantity: 9, Kind: orders.LineShipping}}},
			[]fsm.State{reserved}, "cup 0, tea 2"},
		"one that may still fit comes again": {
			[][]orders.Line{{units("cup", 4)}, {units("cup", 4), units("tea", 1)}, {units("cup", 1), units("tea", 2)}},
			[]fsm.State{reserved, refused, undecided}, "cup 1, tea 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			l.stock("cup", 5)
			l.stock("tea", 2)
			nos := l.baskets(c.baskets...)
			verdicts := l.reserveLines(l.set(nos...))
			for i, no := range nos {
				assert.Equal(t, verdicts[no], c.want[i], "order", i)
			}
			left := value[string](l, `SELECT string_agg(item || ' ' || on_hand - reserved, ', ' ORDER BY item) FROM inventory`)
			assert.Equal(t, left, c.left, "left")
		})
	}
	t.Run("new items get rows, and their orders come again", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		nos := l.baskets([]orders.Line{units("new", 1), units("other", 2)})
		verdicts := l.reserveLines(l.set(nos...))
		assert.True(t, len(verdicts) == 0, "decided", verdicts)
		if verdicts := l.reserveLines(l.set(nos...)); verdicts[nos[0]] != fsm.Confirming {
			t.Errorf("decided: %v", verdicts)
		}
		l.has("other", "2 of 0 untracked")
	})
}

// TestReserveLinesAsOneByOne compares what batches decide with what a shop would that serves one order after the other.
func TestReserveLinesAsOneByOne(t *testing.T) {
	t.Parallel()
	l := open(t)
	round := 0
	dbtest.Check(t, func(rt *rapid.T) {
		round++
		shop := shelf{}
		item := func(n int) string { return fmt.Sprintf("%d-%c", round, 'a'+n) }
		for n := range 5 {
			if stock := rapid.Int64Range(-1, 12).Draw(rt, "stock"); stock >= 0 { // the others are not tracked
				shop[item(n)] = stock
				l.stock(item(n), stock)
			}
		}
		basket := rapid.Custom(func(rt *rapid.T) []orders.Line {
			return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) orders.Line {
				return units(item(rapid.IntRange(0, 4).Draw(rt, "item")), rapid.Int32Range(1, 4).Draw(rt, "quantity"))
			}), 1, 5).Draw(rt, "lines")
		})
		baskets := rapid.SliceOfN(basket, 1, 12).Draw(rt, "baskets")
		nos := l.baskets(baskets...)
		want := map[int64]fsm.State{}
		for i, no := range nos {
			want[no] = shop.serve(baskets[i])
		}
		got, left, vain := map[int64]fsm.State{}, slices.Clone(nos), 0
		for len(left) > 0 && vain < 2 { // the first pass may only make rows of items
			vain++
			for no, state := range l.reserveLines(l.set(left...)) {
				got[no], vain = state, 0
				left = slices.DeleteFunc(left, func(other int64) bool { return other == no })
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Errorf("%v, want %v", got, want)
		}
		for name, stock := range shop {
			if available := value[int64](l, `SELECT on_hand - reserved FROM inventory WHERE item = $1`, name); available != stock {
				rt.Errorf("%d of %s are left, want %d", available, name, stock)
			}
		}
		wrong := value[*string](l, `SELECT string_agg(o.order_id, ', ') FROM orders AS o WHERE o.order_no = ANY($1) AND
			(SELECT string_agg(r.line || r.item || r.quantity, ' ' ORDER BY r.line) FROM reservations AS r WHERE r.order_no = o.order_no)
			IS DISTINCT FROM (SELECT string_agg(i.number || i.name || i.units, ' ' ORDER BY i.number) FROM items_of('', 0, o.lines) AS i
				WHERE o.status = 'confirming')`, nos)
		if wrong != nil {
			rt.Errorf("reservations of %s", *wrong)
		}
	})
}

// shelf is the stock of a shop.
type shelf map[string]int64

// serve takes all that is in the basket, or nothing.
func (s shelf) serve(basket []orders.Line) fsm.State {
	wanted := map[string]int64{}
	for _, line := range basket {
		wanted[line.Item] += int64(line.Quantity)
	}
	for item, quantity := range wanted {
		if stock, tracked := s[item]; tracked && stock < quantity {
			return fsm.Refunding
		}
	}
	for item, quantity := range wanted {
		if _, tracked := s[item]; tracked {
			s[item] -= quantity
		}
	}
	return fsm.Confirming
}

// TestConfirmAndReleaseLines sells a basket, and takes another one back.
func TestConfirmAndReleaseLines(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.stock("cup", 5)
	l.stock("tea", 5)
	basket := []orders.Line{units("tea", 2), units("cup", 1), units("tea", 1)}
	nos := l.baskets(basket, basket)[:1]
	l.reserveLines(l.set(nos...))
	l.has("tea", "3 of 5 tracked")
	assert.NoError(t, assert.Err(ledger.LineMoves[fsm.Confirming](t.Context(), l.query, l.set(nos...))))
	l.has("tea", "0 of 2 tracked")
	l.has("cup", "0 of 4 tracked")
	other := l.baskets([]orders.Line{units("cup", 4), units("tea", 2)})
	l.reserveLines(l.set(other...))
	l.has("cup", "4 of 4 tracked")
	l.stop(other[0])
	assert.NoError(t, assert.Err(ledger.LineMoves[fsm.Confirming](t.Context(), l.query, l.set(other...))))
	l.all(l.set(other...)) // release
	l.has("cup", "0 of 4 tracked")
	l.has("tea", "0 of 2 tracked")
	released := value[string](l, `SELECT string_agg(item || ' ' || (released_at IS NOT NULL), ', ' ORDER BY line) FROM reservations WHERE order_no = $1`, other[0])
	assert.True(t, !strings.Contains(released, "false"), "released", released)
}
