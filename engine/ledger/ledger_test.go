package ledger_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/test/assert"
)

// moves is what each state leads to, and what is then in the books: charges that stand and were refunded, reservations
// that stand and were released, units reserved and on hand. Ten widgets were on hand, the order is for two.
var moves = []struct {
	from    fsm.State
	outcome string // stopped or refused before the move
	to      fsm.State
	books   string
}{
	{fsm.Pending, "", fsm.Charging, "charges 0/0 reservations 0/0 stock 0 of 10"},
	{fsm.Pending, "canceled", fsm.Canceled, "charges 0/0 reservations 0/0 stock 0 of 10"},
	{fsm.Charging, "", fsm.Reserving, "charges 1/0 reservations 0/0 stock 0 of 10"},
	{fsm.Charging, "canceled", fsm.Canceled, "charges 0/0 reservations 0/0 stock 0 of 10"},
	{fsm.Reserving, "", fsm.Confirming, "charges 1/0 reservations 1/0 stock 2 of 10"},
	{fsm.Reserving, "canceled", fsm.Refunding, "charges 1/0 reservations 0/0 stock 0 of 10"},
	{fsm.Confirming, "", fsm.Completed, "charges 1/0 reservations 1/0 stock 0 of 8"},
	{fsm.Confirming, "canceled", fsm.Releasing, "charges 1/0 reservations 1/0 stock 2 of 10"},
	{fsm.Releasing, "canceled", fsm.Refunding, "charges 1/0 reservations 0/1 stock 0 of 10"},
	{fsm.Releasing, "failed", fsm.Refunding, "charges 1/0 reservations 0/1 stock 0 of 10"},
	{fsm.Refunding, "canceled", fsm.Canceled, "charges 0/1 reservations 0/0 stock 0 of 10"},
	{fsm.Refunding, "failed", fsm.Failed, "charges 0/1 reservations 0/0 stock 0 of 10"},
}

func (l *books) books() string {
	l.t.Helper()
	return value[string](l, `SELECT format('charges %s/%s reservations %s/%s stock %s of %s',
		(SELECT count(*) FROM charges WHERE refunded_at IS NULL), (SELECT count(*) FROM charge_operations),
		(SELECT count(*) FROM reservations WHERE released_at IS NULL), (SELECT count(*) FROM reservations WHERE released_at IS NOT NULL),
		reserved, on_hand) FROM inventory WHERE item = 'widget'`)
}

func (l *books) stock(item string, onHand int64) {
	l.t.Helper()
	rows, err := l.query.InventoryMove(l.t.Context(), l.toStock(item, onHand))
	l.must(err)
	assert.Require(l.t, len(rows) == 1, "stock of", item, "was not set")
}

// toStock is the movement that gives an item a stock, as it is now.
func (l *books) toStock(item string, onHand int64) db.InventoryMoveParams {
	l.t.Helper()
	before := value[int64](l, `SELECT coalesce((SELECT on_hand FROM inventory WHERE item = $1), 0)`, item)
	return db.InventoryMoveParams{
		Item: item, Change: onHand - before, IfVersion: new(l.version(item)), Kind: "set", RequestID: uuid.NewString()}
}

// version is that of an item's stock, or 0 if nobody has seen the item.
func (l *books) version(item string) int64 {
	l.t.Helper()
	return value[int64](l, `SELECT coalesce((SELECT version FROM inventory WHERE item = $1), 0)`, item)
}

func TestMoves(t *testing.T) {
	t.Parallel()
	for _, m := range moves {
		t.Run(fmt.Sprintf("%s to %s%s", m.from, m.to, after(m.outcome)), func(t *testing.T) {
			t.Parallel()
			l := open(t)
			l.stock("widget", 10)
			no := l.plant(m.from, m.outcome)
			set := l.set(no)

			for _, other := range fsm.States() {
				if wrong := set; other != m.from && ledger.Moves[other] != nil {
					wrong.Expected = other
					l.stays(wrong)
				}
			}
			for _, by := range []int64{-1, 1} {
				wrong := set
				wrong.Fence += by
				l.stays(wrong)
				wrong = set
				wrong.Seq += int32(by)
				l.stays(wrong)
			}

			moved := l.move(set)
			assert.Require(t, len(moved) == 1 && moved[0].OrderNo == no && moved[0].ToStatus == m.to && moved[0].Seq == set.Seq+1,
				"moved", moved)
			l.stands(set, moved[0], m.outcome)
			assert.Equal(t, l.books(), m.books, "books")
			l.stays(set) // the compare-and-set is lost the second time
		})
	}
}

func TestEveryStateThatIsOursHasAMove(t *testing.T) {
	t.Parallel()
	for _, s := range fsm.States() {
		_, ok := ledger.Moves[s]
		assert.True(t, ok != s.Final(), s, "a move is there", ok)
	}
}

func after(outcome string) string {
	if outcome == "" {
		return ""
	}
	return ", to be " + outcome
}

// stands checks the row and the history of an order that has moved.
func (l *books) stands(set ledger.Batch, moved ledger.Moved, outcome string) {
	l.t.Helper()
	rows, err := l.query.OrdersByNo(l.t.Context(), db.OrdersByNoParams{OrderNos: set.OrderNos})
	l.must(err)
	o := rows[0]
	assert.True(l.t, o.Status == moved.ToStatus && o.Seq == moved.Seq && o.Fence == set.Fence && o.TakeOvers == 0, "stored", o)
	final := o.Status.Final()
	if (o.Owner == nil) != final || (o.DueAt == nil) != final || (o.FinishedAt != nil) != final || (o.EndedAs != nil) != final {
		l.t.Errorf("final %v, but stored %+v", final, o)
	}
	undone := o.Status.Undoing() || o.Status == fsm.Failed || o.Status == fsm.Canceled
	assert.True(l.t, undone == (o.Outcome != nil) && (!undone || *o.Outcome == outcome), "outcome of", o.Status, "is", o.Outcome)
	history := value[string](l, `SELECT format('%s %s %s %s %s', from_status, to_status, fence, seq, at = $3)
		FROM transitions WHERE order_no = $1 AND seq = $2`, moved.OrderNo, moved.Seq, moved.At)
	assert.Equal(l.t, history, fmt.Sprintf("%s %s %d %d t", set.Expected, moved.ToStatus, set.Fence, moved.Seq), "history")
}
