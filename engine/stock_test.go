package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// stockStep is a change of the stock of "widget", and what comes of it: see stockNow.
type stockStep struct {
	change engine.StockChange
	want   string
}

// changes makes one change after the other. What is refused, or was made before, must leave every row alone.
func (b *bundle) changes(t *testing.T, steps ...stockStep) {
	t.Helper()
	for _, step := range steps {
		var got string
		do := func() { got = stockNow(b.engine.ChangeStock(t.Context(), step.change)) }
		if want, unwritten := strings.CutPrefix(step.want, "unwritten: "); unwritten {
			b.writesNothing(t, do)
			step.want = want
		} else {
			do()
		}
		assert.Equal(t, got, step.want, step.change.Kind, step.change.Units, step.change.RequestID)
	}
}

// stockNow is what came of a change, in short.
func stockNow(s orders.Stock, err error) string {
	var low *orders.StockTooLow
	switch {
	case errors.Is(err, orders.ErrPrecondition):
		return "another version"
	case errors.As(err, &low):
		return fmt.Sprintf("too low at %s: %d reserved, tracked %t", low.Pointer, low.Item.Reserved, low.Item.Tracked)
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%s: %d on hand, %d reserved, %d sold, tracked %t, version %d", s.Item, s.OnHand, s.Reserved,
		s.Sold, s.Tracked, s.Version)
}

func TestSetStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	assert.ErrorIs(t, assert.Err(b.engine.Orders.StockOf(t.Context(), "widget")), orders.ErrNotFound)
	set := func(onHand, version int64) engine.StockChange { return setTo("widget", onHand, version) }
	b.changes(t, stockStep{set(5, 1), "unwritten: another version"}) // of an item that is not there
	b.process(t, request("untracked"))
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 1, Version: 2})
	for i, onHand := range []int64{5, 7, 7, 0, 9, 1 << 39} {
		b.changes(t, stockStep{set(onHand, int64(i)+2),
			fmt.Sprintf("widget: %d on hand, 0 reserved, 1 sold, tracked true, version %d", onHand, i+3)})
		b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: onHand, Sold: 1, Tracked: true, Version: int64(i) + 3})
	}
	for _, stale := range []int64{0, 1, 7, 9} {
		b.changes(t, stockStep{set(3, stale), "unwritten: another version"})
	}
	proveBooks(t, b.Pool)
}

func TestSetStockTooLow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.hold(t, fsm.Confirming, "one")
	b.hold(t, fsm.Confirming, "two")
	b.changes(t, stockStep{setTo("widget", 1, 0), "unwritten: another version"},
		stockStep{setTo("widget", 1, 1), "unwritten: too low at /onHand: 2 reserved, tracked false"},
		stockStep{setTo("widget", 2, 1), "widget: 2 on hand, 2 reserved, 0 sold, tracked true, version 2"})
	isNow(t, b.process(t, request("three")), fsm.Failed)
	b.cancel(t, engine.Request{OrderID: "one"})
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 2, Reserved: 1, Tracked: true, Version: 2})
	isNow(t, b.process(t, request("four")), fsm.Completed)
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 1, Reserved: 1, Sold: 1, Tracked: true, Version: 3})
	proveBooks(t, b.Pool)
}

// One of those who set the stock at once with the version they saw wins; no setting is lost.
func TestSetStockAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 0)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for set := 0; set < 10; {
				seen, err := b.engine.Orders.StockOf(t.Context(), "widget")
				if err != nil {
					t.Error(err)
					return
				}
				_, err = b.engine.ChangeStock(t.Context(), setTo("widget", seen.OnHand+1, seen.Version))
				switch {
				case err == nil:
					set++
				case !errors.Is(err, orders.ErrPrecondition):
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 80, Tracked: true, Version: 81})
}

// Of those who set the stock at once, each only if the item is not there, one makes it.
func TestSetStockOfNewItemsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, item := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		var callers sync.WaitGroup
		var made atomic.Int32
		for onHand := range int64(4) {
			callers.Go(func() {
				switch _, err := b.engine.ChangeStock(t.Context(), setTo(item, onHand, 0)); {
				case err == nil:
					made.Add(1)
				case !errors.Is(err, orders.ErrPrecondition):
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if got, err := b.engine.Orders.StockOf(t.Context(), item); err != nil || made.Load() != 1 || got.Version != 1 {
			t.Errorf("made %d times: %+v, %v", made.Load(), got, err)
		}
	}
}

func TestStockList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	names := []string{"B", "a", "b", "b b", "c", "é", "日本", "👩"}
	for i, name := range names {
		b.setStock(t, name, int64(i))
	}
	for limit := int32(1); limit < 10; limit++ {
		assert.Equal(t, b.allItems(t, limit), names, limit, "at a time")
	}
	page, err := b.engine.Orders.StockList(t.Context(), "b", 2)
	want := []orders.Stock{{Item: "b b", OnHand: 3, Tracked: true, Version: 1}, {Item: "c", OnHand: 4, Tracked: true, Version: 1}}
	assert.True(t, err == nil && slices.Equal(page, want), err, "is", page, want)
}

// allItems walks along the list.
func (b *bundle) allItems(t testing.TB, limit int32) (items []string) {
	t.Helper()
	for after := ""; ; after = items[len(items)-1] {
		page, err := b.engine.Orders.StockList(t.Context(), after, limit)
		assert.NoError(t, err)
		for _, stock := range page {
			items = append(items, stock.Item)
		}
		if len(page) < int(limit) {
			return items
		}
	}
}

func TestOutOfStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setStock(t, "widget", 2)
	in := request("large")
	in.Quantity = 3
	order := b.process(t, in)
	b.sameAsStored(t, order)
	o := order
	assert.True(t, o.Status == fsm.Failed && text(o.FailureStep) == "reserve" && text(o.FailureCode) == "out_of_stock" &&
		text(o.Outcome) == "failed" && o.FinishedAt != nil, o)
	assert.True(t, order.ChargedAt != nil && order.RefundedAt != nil && order.ReservedAt == nil && order.ReleasedAt == nil, order)
	in.OrderID, in.Quantity = "fits", 2
	isNow(t, b.process(t, in), fsm.Completed)
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 2, Tracked: true})
	proveBooks(t, b.Pool)
}

func TestNeverOversold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.replica(t, engine.Config{})
	b.setStock(t, "widget", 50)
	var mu sync.Mutex
	var sold, smallest int32 = 0, 100 // units sold, and the smallest order that was refused
	var callers sync.WaitGroup
	for caller := range 64 {
		callers.Go(func() {
			for n := range 3 {
				in := request(fmt.Sprintf("%d/%d", caller, n))
				in.Quantity = int32(1 + (caller+n)%5)
				order, err := []*engine.Engine{b.engine, other}[caller%2].Process(t.Context(), in)
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				switch o := order; {
				case o.Status == fsm.Completed:
					sold += o.Quantity
				case o.Status == fsm.Failed && text(o.FailureCode) == "out_of_stock":
					smallest = min(smallest, o.Quantity)
				default:
					t.Errorf("%+v", o)
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	stock, err := b.engine.Orders.StockOf(t.Context(), "widget")
	assert.True(t, err == nil && stock.OnHand == int64(50-sold) && stock.Reserved == 0, "sold", sold, "left", stock, err)
	assert.True(t, stock.OnHand < int64(smallest), stock.OnHand, "are left, and an order for", smallest, "was refused")
	units := value[int32](t, b.Pool, `SELECT sum(quantity)::integer FROM books.reservations WHERE state = 'sold'`)
	assert.Equal(t, units, sold, "units sold in the books, callers were told")
	proveBooks(t, b.Pool)
}

// stock checks what is known of an item.
func (b *bundle) stock(t testing.TB, item string, want orders.Stock) {
	t.Helper()
	got, err := b.engine.Orders.StockOf(t.Context(), item)
	if want.Version == 0 { // that of as many sales as there were batches
		want.Version = got.Version
	}
	assert.True(t, err == nil && got == want, err, "is", got, want)
}

// adjustment is one of somebody who says why.
func adjustment(item string, units int64, requestID string) engine.StockChange {
	return engine.StockChange{Item: item, Kind: engine.StockAdjustment, Units: units, Actor: "ann", Reason: "delivery", RequestID: requestID}
}

// TestStockIsNotSetAgainAfterItIsSold: one unit is set and sold, and whoever set it never got the answer. To set it again
// would sell what is not there.
func TestStockIsNotSetAgainAfterItIsSold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	set := setTo("widget", 1, 0)
	set.RequestID = "first"
	one := "widget: 1 on hand, 0 reserved, 0 sold, tracked true, version 1"
	b.changes(t, stockStep{set, one}, stockStep{set, "unwritten: " + one})
	isNow(t, b.process(t, request("one")), fsm.Completed)
	b.changes(t, stockStep{set, "unwritten: widget: 0 on hand, 0 reserved, 1 sold, tracked true, version 2"},
		stockStep{setTo("widget", 1, 0), "unwritten: another version"}, stockStep{setTo("widget", 1, 1),
			"unwritten: another version"})
	isNow(t, b.process(t, request("two")), fsm.Failed)
	b.stock(t, "widget", orders.Stock{Item: "widget", Sold: 1, Tracked: true, Version: 2})
	proveBooks(t, b.Pool)
}

func TestAdjustStock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, request("untracked"))
	for i, c := range []struct{ change, onHand int64 }{{10, 10}, {-2, 8}, {-7, 1}, {orders.StockMost - 1, orders.StockMost}, {4 - orders.StockMost, 4}} {
		b.changes(t, stockStep{adjustment("widget", c.change, fmt.Sprint(i)),
			fmt.Sprintf("widget: %d on hand, 0 reserved, 1 sold, tracked true, version %d", c.onHand, i+3)})
	}
	b.hold(t, fsm.Confirming, "holds one")
	b.changes(t,
		stockStep{adjustment("widget", -4, "low"), "unwritten: too low at /change: 1 reserved, tracked true"},
		stockStep{adjustment("nowhere", -1, "low"), "unwritten: too low at /change: 0 reserved, tracked false"},
		stockStep{adjustment("widget", orders.StockMost, "high"), "unwritten: " + orders.ErrStockTooHigh.Error()},
		stockStep{adjustment("widget", -2, "1"),
			"unwritten: widget: 4 on hand, 1 reserved, 1 sold, tracked true, version 7"}) // the same again
	b.writesNothing(t, func() {
		assert.ErrorIs(t, assert.Err(b.engine.ChangeStock(t.Context(), adjustment("widget", 3, "1"))), orders.ErrKeyReused)
	})
	moves, err := b.engine.Orders.StockMovements(t.Context(), "widget", orders.StockSpan{After: 3, Limit: 2})
	assert.True(t, err == nil && len(moves) == 2 && moves[0].Change == -2 && moves[0].OnHand == 8 && moves[0].Actor == "ann" &&
		text(moves[0].Reason) == "delivery" && moves[0].RequestID == "1" && moves[1].Version == 5, err, moves)
	assert.ErrorIs(t, assert.Err(b.engine.Orders.StockMovements(t.Context(), "nowhere", orders.StockSpan{Limit: 9})),
		orders.ErrNotFound)
	proveBooks(t, b.Pool)
}

// Of the same request that comes to two replicas at once, many times, one counts, whatever is sold meanwhile.
func TestAdjustStockAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := startEngine(t, b.URL, engine.Config{})
	b.setStock(t, "widget", 100)
	var callers sync.WaitGroup
	for n := range 80 {
		e := []*engine.Engine{b.engine, other}[n%2]
		callers.Go(func() {
			q := adjustment("widget", int64(n/8)+1, fmt.Sprint("delivery ", n/8))
			if n/8 >= 5 {
				q.Item = "new"
			}
			assert.Succeeds(t, assert.Err(e.ChangeStock(t.Context(), q)))
		})
		callers.Go(func() { b.process(t, request(fmt.Sprint("order ", n))) })
	}
	callers.Wait()
	b.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 100 + 15 - 80, Sold: 80, Tracked: true})
	b.stock(t, "new", orders.Stock{Item: "new", OnHand: 40, Tracked: true, Version: 5})
	proveBooks(t, b.Pool)
}

// TestStockChangeWhoseAnswerIsLost: it is answered, and done once. A set that is done again would bring back what was sold
// meanwhile.
func TestStockChangeWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	b, p := setupWatchful(t, byCallers)
	for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushRequest, dbtest.HushReply} {
		for statement, change := range map[string]func(item string) engine.StockChange{
			"InventoryGet":           func(item string) engine.StockChange { return setTo(item, 7, 1) },
			"StockMovementByRequest": func(item string) engine.StockChange { return adjustment(item, 4, "delivery") },
		} {
			for _, lost := range []string{"InventoryMove", statement} {
				item := fmt.Sprintf("%v of %s, %s", f, lost, statement)
				b.setStock(t, item, 3)
				once := p.loseOne(lost, f)
				times := 1
				if statement == "StockMovementByRequest" {
					times = 2 // a request id is known again
				}
				for range times {
					stock, err := b.engine.ChangeStock(t.Context(), change(item))
					assert.True(t, err == nil && stock.OnHand == 7 && stock.Version == 2, item, stock, err)
				}
				assert.True(t, once.Load(), item, "not sent")
			}
		}
	}
	p.On(nil)
	proveBooks(t, b.Pool)
}

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
			got := value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.item = 'hot' AND o.status = $1`, c.at)
			assert.Equal(t, got, 20, "of 20 orders of the locked item are", c.at)
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
		eventually(t, "an order of the locked item is to be reserved", b.answers(t, i+2,
			`SELECT count(*) FROM books.orders AS o WHERE o.item = 'hot' AND o.status = 'reserving'`))
		b.completes(t, ask(t, b.engine, requests(fmt.Sprint("cold ", i), 1)...), 1)
	}
	assert.Equal(t, reserves.Load(), 2+rounds,
		"sets came to the stock rows", "two of the first order, and one of each order of another item")
	goOn()
	unlock()
	for _, answers := range hot {
		b.completes(t, answers, 1)
	}
	proveBooks(t, b.Pool)
}

// An item whose stock row stays locked takes a part of the memory, not all of it.
func TestLockedItemLeavesRoom(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{MaxInFlight: 40, Lease: time.Minute}) // no line is too slow for that
	b.setStock(t, "locked", 1000)
	unlock := b.lock(t, `SELECT 1 FROM inventory WHERE item = 'locked' FOR UPDATE`)
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
	unlock()
	callers.Wait()
}

// A stock row that somebody holds stalls no other item, also where the confirmation is remote and the stock ours.
func TestLockedStockRowRemote(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, "charge: {executor: simulator, url: SIM}\nconfirm: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 20ms}, breaker: {open: 10ms}}\n")
	s.faults(t, "refuse-connection@confirm")
	for i := range 20 {
		in := request(fmt.Sprintf("order %d", i))
		in.Item = "free"
		if i%5 == 0 {
			in.Item = "locked"
		}
		s.admit(t, in)
	}
	eventually(t, "all are reserved", s.answers(t, 20, `SELECT count(*) FROM orders WHERE status = 'confirming'`))
	unlock := s.lock(t, `SELECT 1 FROM inventory WHERE item = 'locked' FOR UPDATE`)
	s.faults(t)
	completed := func(item string) int {
		return value[int](t, s.Pool, `SELECT count(*) FROM orders WHERE item = $1 AND status = 'completed'`, item)
	}
	eventually(t, "those of the free item are completed", func() bool { return completed("free") == 16 })
	n := completed("locked")
	assert.True(t, n == 0, n, "completed although their stock was locked")
	unlock()
	eventually(t, "the others are, too", func() bool { return completed("locked") == 4 })
}

// TestStockThatNobodyWaitsForIsNotSet has a replica without a free connection. Whoever set the stock there has long been told
// that it is not known whether it was, and has set another one elsewhere since.
func TestStockThatNobodyWaitsForIsNotSet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := openPool(t, b.URL)
	busy := startOn(t, pool, engine.Config{})
	var holders []pgx.Tx
	for range pool.Stat().MaxConns() {
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
		assert.NoError(t, err)
		holders = append(holders, tx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err := busy.ChangeStock(ctx, setTo("widget", 1, 0))
	assert.Require(t, errors.Is(err, orders.ErrUnavailable), err)
	b.setStock(t, "widget", 1000)
	for _, tx := range holders {
		assert.NoError(t, tx.Rollback(t.Context()))
	}
	for n := range 20 { // whatever was to be sent is sent before these are answered
		assert.NoError(t, assert.Err(setStock(t.Context(), busy, fmt.Sprint("other ", n), 1)))
	}
	assert.Equal(t, value[int64](t, b.Pool, `SELECT on_hand FROM inventory WHERE item = 'widget'`), 1000,
		"1000 were set last, and answered; there")
}
