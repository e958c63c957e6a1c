package ledger_test

import (
	"slices"
	"testing"

	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/test/assert"
)

// decide sends orders to be reserved and says what became of each.
func (l *books) decide(orderNos ...int64) string {
	l.t.Helper()
	set := l.set(orderNos...)
	verdicts := map[int64]fsm.State{}
	for _, m := range l.move(set) {
		verdicts[m.OrderNo] = m.ToStatus
	}
	var out string
	for _, no := range orderNos {
		out += map[fsm.State]string{fsm.Confirming: "reserved ", fsm.Refunding: "refused ", "": "undecided "}[verdicts[no]]
	}
	return out
}

func (l *books) decides(want string, orderNos ...int64) {
	l.t.Helper()
	assert.Equal(l.t, l.decide(orderNos...), want+" ")
}

// has checks an item: reserved, on hand, tracked.
func (l *books) has(item, want string) {
	l.t.Helper()
	got := value[string](l, `SELECT format('%s of %s %s', reserved, on_hand, CASE WHEN tracked THEN 'tracked' ELSE 'untracked' END)
		FROM inventory WHERE item = $1`, item)
	assert.Equal(l.t, got, want, item, "has")
}

func TestReserve(t *testing.T) {
	t.Parallel()
	t.Run("in order of arrival, whatever the order of the numbers", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 5)
		nos := l.orders(fsm.Reserving, "widget", 3, 2, 1)
		l.decides("refused reserved reserved", nos[2], nos[1], nos[0])
		l.has("widget", "5 of 5 tracked")
	})
	t.Run("the first that does not fit is refused, smaller ones behind it may still fit", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 5)
		nos := l.orders(fsm.Reserving, "widget", 3, 3, 2, 1)
		l.decides("reserved refused undecided undecided", nos...)
		l.has("widget", "3 of 5 tracked")
		l.decides("reserved refused", nos[2:]...)
		l.has("widget", "5 of 5 tracked")
	})
	t.Run("every set decides somebody", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 9)
		left := l.orders(fsm.Reserving, "widget", 10, 8, 3, 2, 2, 1, 1, 9)
		for len(left) > 0 {
			moved := l.move(l.set(left...))
			assert.Require(t, len(moved) != 0, len(left), "orders are left undecided for ever")
			left = slices.DeleteFunc(left, func(no int64) bool {
				return slices.ContainsFunc(moved, func(m ledger.Moved) bool { return m.OrderNo == no })
			})
		}
		l.has("widget", "9 of 9 tracked") // 8 and 1
	})
	t.Run("items of one set do not disturb each other", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("few", 1)
		l.stock("none", 0)
		nos := slices.Concat(l.orders(fsm.Reserving, "few", 1, 1), l.orders(fsm.Reserving, "none", 1), l.orders(fsm.Reserving, "unknown", 1))
		l.decides("reserved refused refused reserved", nos...)
		l.has("few", "1 of 1 tracked")
		l.has("none", "0 of 0 tracked")
		l.has("unknown", "1 of 0 untracked")
	})
	t.Run("an item without stock never runs out", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		for range 3 {
			l.decides("reserved reserved", l.orders(fsm.Reserving, "anything", 2_000_000_000, 2_000_000_000)...)
		}
		l.has("anything", "12000000000 of 0 untracked")
	})
	t.Run("who is refused says why", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 0)
		no := l.orders(fsm.Reserving, "widget", 1)[0]
		l.all(l.set(no))
		failure := value[string](l, `SELECT format('%s %s %s', failure_step, failure_code, outcome) FROM orders WHERE order_no = $1`, no)
		reason := value[string](l, `SELECT reason FROM transitions WHERE order_no = $1 ORDER BY seq DESC LIMIT 1`, no)
		assert.True(t, failure == "reserve out_of_stock failed" && reason == "out_of_stock", failure, reason)
	})
	t.Run("who is stopped takes nothing, and leaves room for others", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 1)
		nos := l.orders(fsm.Reserving, "widget", 1, 1)
		l.stop(nos[0])
		l.exec(`UPDATE orders SET seq = 3 WHERE order_no = $1`, nos[1]) // as if of the same set
		l.decides("refused reserved", nos...)
		if why := value[*string](l, `SELECT failure_code FROM orders WHERE order_no = $1`, nos[0]); why != nil {
			t.Errorf("stopped, but failed: %s", *why)
		}
	})
}

func TestStockIsReturned(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.stock("tracked", 10)
	tracked := l.orders(fsm.Confirming, "tracked", 1, 2, 3)
	untracked := l.orders(fsm.Confirming, "untracked", 4, 5)
	l.has("tracked", "6 of 10 tracked")
	l.has("untracked", "9 of 0 untracked")

	l.all(l.set(tracked[0], untracked[0])) // a sale leaves the shelf
	l.has("tracked", "5 of 9 tracked")
	l.has("untracked", "5 of 0 untracked")

	for _, no := range []int64{tracked[1], untracked[1]} {
		l.stop(no)
		l.all(l.set(no))
		l.all(l.set(no)) // a release goes back to it
	}
	l.has("tracked", "3 of 9 tracked")
	l.has("untracked", "0 of 0 untracked")

	l.all(l.set(tracked[2]))
	l.has("tracked", "0 of 6 tracked")
}
