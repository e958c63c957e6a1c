package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

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
				if a.err != nil && !errors.Is(a.err, orders.ErrStopping) || a.err == nil && string(a.order.Status) != status(t, b.Pool, a.orderID) {
					t.Errorf("%s: told %s: %v", a.orderID, a.order.Status, a.err)
				}
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
		if a := <-answers; !errors.Is(a.err, orders.ErrStopping) && !errors.Is(a.err, orders.ErrUnavailable) {
			t.Errorf("told %q: %v", a.order.Status, a.err)
		}
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
	if a := <-answers; a.err != nil || a.order.Status != "charging" || *a.order.Owner != g.owner {
		t.Errorf("told %s: %v", a.order.Status, a.err)
	}
	assert.ErrorIs(t, assert.Err(e.Process(t.Context(), request("two"))), orders.ErrStopping, "after the stop")
	if _, err := e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "one"}); !errors.Is(err, orders.ErrStopping) {
		t.Errorf("cancel after the stop: %v", err)
	}
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
