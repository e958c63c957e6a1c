package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/dbtest"
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

// TestLockedStockIsNoBottleneck lets orders of the locked item come all the while. The first of them has waited for the
// lock in vain, its next try stands in the wire: were any other to come to the row, or anybody to wait for that try, the
// orders of other items would not get through.
func TestLockedStockIsNoBottleneck(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	b.exec(t, `INSERT INTO inventory (item) VALUES ('hot')`)
	unlock := b.lock(t, lockStock)
	const rounds = 10
	var reserves atomic.Int64
	wire := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(wire) })
	t.Cleanup(goOn)
	p.On(func(statement string) fate {
		if statement == "OrdersReserve" && reserves.Add(1) == 2 {
			<-wire
		}
		return passes
	})
	hot := []<-chan answer{ask(t, b.engine, withItem("hot", requests("hot", 1))...)}
	eventually(t, "the first has waited for the lock in vain, and tries again", func() bool { return reserves.Load() == 2 })
	for i := range rounds {
		hot = append(hot, ask(t, b.engine, withItem("hot", requests(fmt.Sprint("hot ", i), 1))...))
		eventually(t, "an order of the locked item is to be reserved", func() bool {
			return value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.item = 'hot' AND o.status = 'reserving'`) == i+2
		})
		b.completes(t, ask(t, b.engine, requests(fmt.Sprint("cold ", i), 1)...), 1)
	}
	if n := reserves.Load(); n != 2+rounds {
		t.Errorf("%d sets came to the stock rows, want %d: two of the first order, and one of each order of another item", n, 2+rounds)
	}
	goOn()
	unlock()
	for _, answers := range hot {
		b.completes(t, answers, 1)
	}
	proveBooks(t, b.Pool)
}

// TestSetStockWhoseAnswerIsLost: whoever sets stock is answered, and it is set once. Set again, it
// would bring back what was sold meanwhile.
func TestSetStockWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	b, p := setupWatchful(t, byCallers)
	for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushRequest, dbtest.HushReply} {
		for _, statement := range []string{"InventoryMove", "InventoryGet"} {
			item := f.String() + " of " + statement
			b.setStock(t, item, 3)
			var sent atomic.Int32
			p.On(func(s string) fate {
				if s == statement && sent.Add(1) == 1 {
					return f
				}
				return passes
			})
			stock, err := b.engine.ChangeStock(t.Context(), setTo(item, 7, 1))
			if err != nil || stock.OnHand != 7 || stock.Version != 2 {
				t.Errorf("%s: %+v, %v", item, stock, err)
			}
			if sent.Load() == 0 {
				t.Errorf("%s: not sent", item)
			}
		}
	}
	p.On(nil)
	proveBooks(t, b.Pool)
}

// An item whose stock row stays locked takes a part of the memory, not all of it.
func TestLockedItemLeavesRoom(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{MaxInFlight: 40, Lease: time.Minute}) // no line is too slow for that
	b.setStock(t, "locked", 1000)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM inventory WHERE item = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	turnedAway := make(chan struct{}, 1000)
	ask := func(i int) {
		in := request(fmt.Sprint("locked ", i))
		in.Item = "locked"
		if _, err := b.engine.Process(t.Context(), in); errors.Is(err, orders.ErrOverloaded) {
			turnedAway <- struct{}{}
		}
	}
	for i := 0; len(turnedAway) == 0; i++ {
		callers.Go(func() { ask(i) })
		if _, err := b.engine.Process(t.Context(), request(fmt.Sprint("free ", i))); err != nil { // of another item: never turned away
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	callers.Wait()
}
