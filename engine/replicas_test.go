package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// counted starts a replica whose statements are counted.
func (b *bundle) counted(t *testing.T, cfg engine.Config) (*engine.Engine, *dbtest.Statements) {
	t.Helper()
	c := &dbtest.Statements{}
	return startOn(t, dbtest.Open(t, b.URL, pg.Options{MaxConns: 8, Observe: c.Observe}), cfg), c
}

// TestOneOrderManyCallers asks three replicas for one order 50 times at once.
func TestOneOrderManyCallers(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	atReserve, release := p.stall(t, named("OrdersReserve"))
	first := ask(t, b.engine, request("one"))
	eventually(t, "the first replica has stored the order", func() bool { return atReserve.Load() == 1 })
	began := time.Now()
	others := make([]*dbtest.Statements, 2)
	replicas := []*engine.Engine{b.engine, nil, nil}
	for i := range others {
		replicas[i+1], others[i] = b.counted(t, byCallers)
	}
	type told struct {
		answer
		at time.Time
	}
	answers := make(chan told, 49)
	var wg sync.WaitGroup
	for i := range 49 {
		wg.Go(func() {
			order, err := deref(replicas[i%3].Process(t.Context(), request("one")))
			answers <- told{answer{"one", order, err}, time.Now()}
		})
	}
	for _, c := range others {
		eventually(t, "the other replicas have looked several times", func() bool {
			return c.Named("OrdersWatched") >= 5
		})
	}
	release()
	wg.Wait()
	b.completes(t, first, 1)
	finished := value[time.Time](t, b.Pool, `SELECT o.finished_at FROM books.orders AS o`)
	var after []time.Duration
	for range 49 {
		a := <-answers
		assert.True(t, a.err == nil && a.order.Status == "completed" && a.order.ChargedAt != nil && a.order.ReservedAt != nil,
			"told", a.order.Status, "charged", a.order.ChargedAt, "reserved", a.order.ReservedAt, a.err)
		after = append(after, a.at.Sub(finished))
	}
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM books.charges`), 1, "charges")
	proveBooks(t, b.Pool)
	slices.Sort(after)
	extra, asked := others[0].Sent()+others[1].Sent(), time.Since(began)
	t.Logf("%d statements of the other replicas; answers %v after the last move at the median, %v at the most", extra, after[24], after[48])
	// A replica asks in pauses that grow to a quarter of a second, for all its callers at once.
	most := 40 + 2*int64(asked/(200*time.Millisecond))
	assert.True(t, int64(extra) <= most, extra, "statements within", asked)
}

// TestOneOrderTwice sends two versions of an order to three replicas at once, 10 times each.
func TestOneOrderTwice(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	replicas := []*engine.Engine{b.engine, b.replica(t, byCallers), b.replica(t, byCallers)}
	other := request("one")
	other.Amount, other.Item = decimal.MustParse("99.98"), "gadget"
	var sent [2]atomic.Int64
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			in := []engine.Input{request("one"), other}[i%2]
			order, err := replicas[i/2%3].Process(t.Context(), in)
			var conflict *orders.Conflict
			switch {
			case err == nil && order.Status == "completed" && order.Item == in.Item:
				sent[i%2].Add(1)
			case errors.As(err, &conflict):
				var differ []string
				for _, d := range conflict.Differences {
					differ = append(differ, d.Pointer, d.Stored, d.Sent)
				}
				want := []string{"/amount", "99.99", "99.98", "/item", "widget", "gadget"}
				if i%2 == 0 {
					want = []string{"/amount", "99.98", "99.99", "/item", "gadget", "widget"}
				}
				assert.True(t, slices.Equal(differ, want) && conflict.Order.OrderID == "one",
					"conflict with", differ, "in", conflict.Order.OrderID)
			default:
				t.Errorf("%s: %v", order.Status, err)
			}
		})
	}
	wg.Wait()
	a, c := sent[0].Load(), sent[1].Load()
	assert.True(t, a+c == 30 && (a == 0 || c == 0), a, "callers of one version and", c, "of the other were told it is completed")
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM books.charges`), 1, "charges")
	proveBooks(t, b.Pool)
}

// TestWatchUnderLoad has a caller wait for another replica's order while newcomers wait for others all the time.
func TestWatchUnderLoad(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, "one")
	answers := ask(t, b.engine, request("one"))
	eventually(t, "the caller waits", func() bool { return b.engine.InFlight() == 1 })
	g.advance(t, "completed", "one")
	start := time.Now()
	for time.Since(start) < patience { // for ever, if every newcomer began the pause anew
		select {
		case a := <-answers:
			t.Logf("told after %v", time.Since(start))
			assert.True(t, a.err == nil && a.order.Status == "completed", "told", a.order.Status, a.err)
			return
		default:
			b.engine.WakeWatcher()
		}
	}
	t.Error("told nothing while newcomers came")
}

// stoppable is an engine that the test stops itself.
func (b *bundle) stoppable(t *testing.T, url string, cfg engine.Config) *engine.Engine {
	t.Helper()
	e := engine.New(openPool(t, url), cfg)
	e.Start()
	b.engine = e
	return e
}

// expired is a grace period that has ended.
func expired(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

const (
	unfinished = `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL`
	notHanded  = `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL AND (o.owner IS NOT NULL OR o.due_at > now())`
)

// TestStopWithoutGrace stops an engine whose orders can't finish, and wants them finished by another at once, long
// before a lease could end.
func TestStopWithoutGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, statement string }{
		{"orders that wait for a stock row", ""},
		{"orders whose charge is in the wire", "OrdersCharge"},
		{"orders whose reservation is in the wire", "OrdersReserve"},
		{"orders whose confirmation is in the wire", "OrdersConfirm"},
	} {
		t.Run(c.name+" are handed back", func(t *testing.T) {
			t.Parallel()
			b := &bundle{Database: dbtest.New(t)}
			p := newProxy(t, b.URL)
			e := b.stoppable(t, p.URL, engine.Config{RecoveryInterval: time.Hour, Lease: time.Hour})
			var answers <-chan answer
			unlock := func() {}
			if c.statement == "" {
				b.exec(t, `INSERT INTO inventory (item) VALUES ('widget')`)
				unlock = b.lock(t, `SELECT i.item FROM inventory AS i FOR UPDATE`)
				answers = ask(t, e, requests("order", 30)...)
				eventually(t, "the orders wait", b.answers(t, 30,
					`SELECT count(*) FROM books.orders AS o WHERE o.status = 'reserving'`))
			} else {
				answers, _ = b.gather(t, p, c.statement, requests("order", 30)...)
			}
			assert.ErrorIs(t, e.Stop(expired(t)), context.Canceled, "stop")
			for range 30 {
				a := <-answers
				assert.True(t, (a.err == nil || errors.Is(a.err, orders.ErrStopping)) && (a.err != nil ||
					string(a.order.Status) == status(t, b.Pool, a.orderID)), a.orderID, "told", a.order.Status, a.err)
			}
			assert.Equal(t, value[int](t, b.Pool, notHanded), 0, "orders still belong to the engine that is gone")
			unlock()
			b.engine = startEngine(t, b.URL, engine.Config{RecoveryInterval: often})
			eventually(t, "another has finished the orders", func() bool { return value[int](t, b.Pool, unfinished) == 0 })
			proveBooks(t, b.Pool)
		})
	}
}

// TestStopWithAdmissionInDoubt stops an engine between the execution of an admission and its reply.
func TestStopWithAdmissionInDoubt(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	p := newProxy(t, b.URL)
	e := b.stoppable(t, p.URL, engine.Config{RecoveryInterval: time.Hour, Lease: time.Hour})
	unlock := b.delay(t, "charging")
	answers := ask(t, e, request("one"))
	eventually(t, "the admission is at work", func() bool { return b.atWork(t, "OrdersAdmit") == 1 })
	assert.ErrorIs(t, e.Stop(expired(t)), context.Canceled, "stop")
	assert.ErrorIs(t, (<-answers).err, orders.ErrUnavailable)
	unlock()
}

// TestStopWithoutDatabase stops an engine that can't reach its database.
func TestStopWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	p := newProxy(t, b.URL)
	e := b.stoppable(t, p.URL, engine.Config{})
	p.On(func(string) fate { return loseRequest })
	answers := ask(t, e, requests("order", 10)...)
	eventually(t, "the engine has noticed", func() bool { return e.Stats.UnknownOutcome.Load() > 0 })
	assert.ErrorIs(t, e.Stop(expired(t)), context.Canceled, "stop")
	for range 10 {
		a := <-answers
		assert.True(t, errors.Is(a.err, orders.ErrStopping) || errors.Is(a.err, orders.ErrUnavailable), "told", a.order.Status, a.err)
	}
}

// TestStopWhileWatching stops an engine whose callers wait for another replica: they are not kept until that is done.
func TestStopWhileWatching(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, "one")
	e := b.stoppable(t, b.URL, byCallers)
	answers := ask(t, e, request("one"))
	eventually(t, "the caller waits", func() bool { return e.InFlight() == 1 })
	stop(t, e)
	a := <-answers
	assert.True(t, a.err == nil && a.order.Status == "charging" && *a.order.Owner == g.owner, "told", a.order.Status, a.err)
	assert.ErrorIs(t, assert.Err(e.Process(t.Context(), request("two"))), orders.ErrStopping, "after the stop")
	assert.ErrorIs(t, assert.Err(e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "one"})), orders.ErrStopping,
		"cancel after the stop")
	b.counts(t, 1, `SELECT count(*) FROM books.transitions`)
}

// TestOverload fills the memory that an engine was given.
func TestOverload(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, engine.Config{RecoveryInterval: time.Hour, MaxInFlight: 10})
	atCharge, release := p.stall(t, named("OrdersCharge"))
	answers := ask(t, b.engine, requests("order", 10)...)
	eventually(t, "the memory is full", func() bool { return b.engine.InFlight() == 10 && atCharge.Load() == 1 })
	for _, in := range requests("late", 10) {
		assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), in)), orders.ErrOverloaded, in.OrderID)
	}
	release()
	b.completes(t, answers, 10)
	b.counts(t, 10, `SELECT count(*) FROM books.orders`)
	assert.Equal(t, b.engine.Stats.Overloaded.Load(), 10, "requests counted as turned away")
	b.completes(t, ask(t, b.engine, request("late 000")), 1)
}
