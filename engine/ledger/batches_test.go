package ledger_test

import (
	"fmt"
	"sync"
	"testing"

	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/test/assert"
)

func TestBatches(t *testing.T) {
	t.Parallel()
	for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		t.Run("numbers that come twice or mean nobody, in any order, from "+string(state), func(t *testing.T) {
			t.Parallel()
			l := open(t)
			l.stock("widget", 10)
			nos := l.orders(state, "widget", 1, 2, 3)
			set := l.set(nos[2], nos[0], nos[2], 987654321, nos[1], -1, nos[0], 0)
			moved := l.move(set)
			seen := map[int64]bool{}
			for _, m := range moved {
				seen[m.OrderNo] = true
			}
			assert.True(t, len(moved) == 3 && len(seen) == 3, "moved", moved)
			want := map[fsm.State]string{
				fsm.Charging:   "charges 3/0 reservations 0/0 stock 0 of 10",
				fsm.Reserving:  "charges 3/0 reservations 3/0 stock 6 of 10",
				fsm.Confirming: "charges 3/0 reservations 3/0 stock 0 of 4",
			}[state]
			assert.Equal(t, l.books(), want, "books")
			l.stays(set)
		})
	}
	t.Run("of nobody moves nothing", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.orders(fsm.Charging, "widget", 1)
		for state := range ledger.Moves {
			l.stays(ledger.Batch{OrderNos: []int64{}, Expected: state, Fence: 1, Seq: 1})
		}
	})
	t.Run("only those that are as expected move", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		nos := l.orders(fsm.Charging, "widget", 1, 1, 1, 1)
		l.stop(nos[1])       // another seq
		l.all(l.set(nos[2])) // another status
		l.exec(`UPDATE orders SET fence = 2 WHERE order_no = $1`, nos[3])
		moved := l.move(l.set(nos...))
		assert.True(t, len(moved) == 1 && moved[0].OrderNo == nos[0], "moved", moved)
	})
	t.Run("a locked order is left out and stalls nobody", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("widget", 10)
		nos := l.orders(fsm.Charging, "widget", 1, 2)
		for _, want := range []fsm.State{fsm.Reserving, fsm.Confirming, fsm.Completed} {
			tx := l.begin()
			assert.NoError(t, assert.Err(tx.Exec(t.Context(), `SELECT FROM orders WHERE order_no = $1 FOR UPDATE`, nos[0])))
			moved := l.move(l.set(nos...))
			assert.True(t, len(moved) == 1 && moved[0].OrderNo == nos[1] && moved[0].ToStatus == want, "moved", moved)
			l.must(tx.Rollback(t.Context()))
			l.all(l.set(nos[0]))
		}
	})
}

func TestEffectsExistIfAndOnlyIfTheMoveWon(t *testing.T) {
	t.Parallel()
	t.Run("a move that is rolled back leaves nothing", func(t *testing.T) {
		t.Parallel()
		for _, m := range moves {
			t.Run(fmt.Sprintf("%s to %s%s", m.from, m.to, after(m.outcome)), func(t *testing.T) {
				t.Parallel()
				l := open(t)
				l.stock("widget", 10)
				set := l.set(l.plant(m.from, m.outcome))
				before := l.snapshot()
				tx := l.begin()
				l.within(tx).all(set)
				l.must(tx.Rollback(t.Context()))
				assert.Equal(t, l.snapshot(), before, "was")
				l.all(set)
			})
		}
	})
	t.Run("an effect that is refused takes back the whole set", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		nos := l.orders(fsm.Charging, "widget", 1, 1, 1)
		l.exec(`INSERT INTO charges (order_no, generation, currency, amount) VALUES ($1, 0, 'USD', 1)`, nos[1])
		before := l.snapshot()
		moved, err := ledger.Moves[fsm.Charging](t.Context(), l.query, l.set(nos...))
		assert.True(t, len(moved) == 0 && pg.FaultOf(err) == pg.Bad, "moved", moved, "error", err)
		assert.Equal(t, l.snapshot(), before, "something was written")
	})
	t.Run("whoever comes at the same time, each order moves once", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		quantities := make([]int32, 40)
		for i := range quantities {
			quantities[i] = 1
		}
		l.stock("widget", 100)
		nos := l.orders(fsm.Charging, "widget", quantities...)
		for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
			l.race(l.set(nos...), state)
		}
		assert.Equal(t, l.books(), "charges 40/0 reservations 40/0 stock 0 of 60", "books")
	})
}

// race sends the same set from six callers until all of it has moved.
func (l *books) race(set ledger.Batch, state fsm.State) {
	l.t.Helper()
	var mu sync.Mutex
	won := map[int64]int{}
	var callers sync.WaitGroup
	for range 6 {
		callers.Go(func() {
			moved, err := ledger.Moves[state](l.t.Context(), l.query, set)
			assert.True(l.t, err == nil || pg.FaultOf(err) == pg.Busy, err)
			mu.Lock()
			defer mu.Unlock()
			for _, m := range moved {
				won[m.OrderNo]++
			}
		})
	}
	callers.Wait()
	for _, m := range l.move(set) {
		won[m.OrderNo]++
	}
	for _, no := range set.OrderNos {
		assert.Equal(l.t, won[no], 1, "order", no, "left", state, "times")
	}
}
