package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const (
	lockStock = `SELECT i.on_hand FROM inventory AS i WHERE i.item = 'hot' FOR UPDATE`
	// Nobody has seen the item before: what is waited for is not a row but the end of whoever makes it.
	makeStock = `INSERT INTO inventory (item) VALUES ('hot')`
)

// TestLockedStock holds the stock row of one item while a set with orders for it and for others is on its way.
func TestLockedStock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ statement, at, lock string }{
		{"OrdersReserve", "reserving", lockStock},
		{"OrdersReserve", "reserving", makeStock},
		{"OrdersConfirm", "confirming", lockStock},
	} {
		t.Run(c.statement+" behind "+c.lock[:6], func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			if c.lock == lockStock {
				b.exec(t, `INSERT INTO inventory (item) VALUES ('hot')`)
			}
			inputs := withItem("hot", requests("hot", 20))
			for i := range 200 {
				inputs = append(inputs, withItem(fmt.Sprintf("item %d", i%7), requests(fmt.Sprint("cold ", i), 1))...)
			}
			answers, release := b.gather(t, p, c.statement, inputs...)
			unlock := b.lock(t, c.lock)
			release()
			b.completes(t, answers, 200)
			if got := value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.item = 'hot' AND o.status = $1`, c.at); got != 20 {
				t.Errorf("%d of 20 orders of the locked item are %s", got, c.at)
			}
			unlock()
			b.completes(t, answers, 20)
			proveBooks(t, b.Pool)
		})
	}
}

// TestLockedStockIsNoBottleneck lets orders of the locked item come all the while.
func TestLockedStockIsNoBottleneck(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.exec(t, `INSERT INTO inventory (item) VALUES ('hot')`)
	unlock := b.lock(t, lockStock)
	const rounds = 20
	hot := make([]<-chan answer, rounds)
	took := make([]time.Duration, rounds)
	for i := range rounds {
		hot[i] = ask(t, b.engine, withItem("hot", requests(fmt.Sprint("hot ", i), 1))...)
		eventually(t, "an order of the locked item has come to the lock", func() bool {
			return value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.item = 'hot' AND o.status = 'reserving'`) == i+1
		})
		start := time.Now()
		b.completes(t, ask(t, b.engine, requests(fmt.Sprint("cold ", i), 1)...), 1)
		took[i] = time.Since(start)
	}
	unlock()
	for _, answers := range hot {
		b.completes(t, answers, 1)
	}
	proveBooks(t, b.Pool)
	slices.Sort(took)
	t.Logf("orders of other items took %v at the median, %v at the most", took[rounds/2], took[rounds-1])
	// The first one to come may wait for the lock with the others of its set, once.
	if took[rounds/2] > 300*time.Millisecond || took[rounds*4/5] > 450*time.Millisecond {
		t.Errorf("orders of other items took %v", took)
	}
}
