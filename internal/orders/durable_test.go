package orders

import (
	"context"
	"sync"
	"testing"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// driven is a reader on a database with an order that a replica drives, and one that is paused. Its statements pass a proxy.
type driven struct {
	*Reader
	*dbtest.Database
	proxy      *dbtest.Proxy
	statements dbtest.Statements
	end        context.CancelFunc // of the reader's life
}

func drivenOrder(t *testing.T) *driven {
	t.Helper()
	d := &driven{Database: dbtest.New(t)}
	d.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`)
	d.exec(t, `INSERT INTO orders (order_id, status, fence, owner, due_at, hold, currency, item, amount) VALUES
		('driven', 'charging', 1, gen_random_uuid(), now() + interval '1 hour', NULL, 'USD', 'widget', 5),
		('paused', 'charging', 1, NULL, NULL, 'paused', 'USD', 'widget', 5)`)
	d.proxy = dbtest.NewProxy(t, d.URL)
	pool := dbtest.Open(t, d.proxy.URL, pg.Options{MaxConns: 4, Observe: d.statements.Observe})
	life, end := context.WithCancel(t.Context())
	d.Reader, d.end = NewReader(life, db.New(pool)), end
	t.Cleanup(func() { end(); d.Wait() })
	return d
}

func (d *driven) exec(t *testing.T, statement string) {
	t.Helper()
	assert.NoError(t, assert.Err(d.Pool.Exec(t.Context(), statement)))
}

// read reads the order durably.
func (d *driven) read(t *testing.T) {
	t.Helper()
	o, err := d.GetDurable(t.Context(), "driven")
	assert.True(t, err == nil && o.OrderID == "driven", o, err)
}

// waits has a durable read wait in the wire until goOn is called.
func (d *driven) waits(t *testing.T) (goOn func()) {
	t.Helper()
	gate, arrived := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	d.proxy.On(func(statement string) dbtest.Fate {
		if statement == "OrdersByID" {
			arrive()
			<-gate
		}
		return dbtest.Passes
	})
	var caller sync.WaitGroup
	caller.Go(func() { d.read(t) })
	<-arrived
	return sync.OnceFunc(func() { close(gate); caller.Wait() })
}

func (d *driven) gathered() int {
	d.durable.mu.Lock()
	defer d.durable.mu.Unlock()
	return len(d.durable.next)
}

// TestReadsUnderWayAreRepeated: an order that no replica drives costs one statement.
func TestReadsUnderWayAreRepeated(t *testing.T) {
	t.Parallel()
	d := drivenOrder(t)
	for orderID, want := range map[string]int{"paused": 1, "driven": 2} {
		before := d.statements.Sent()
		_, err := d.Get(t.Context(), orderID)
		assert.NoError(t, err)
		assert.Equal(t, d.statements.Sent()-before, want, orderID)
	}
}

// TestDurableReadsGather: callers who gather while a statement waits are served by the next one. Those who leave are forgotten.
func TestDurableReadsGather(t *testing.T) {
	t.Parallel()
	d := drivenOrder(t)
	goOn := d.waits(t)
	var callers sync.WaitGroup
	const stay = 1000
	for range stay {
		callers.Go(func() { d.read(t) })
	}
	leaving, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	for range 100 {
		left.Go(func() { assert.ErrorIs(t, assert.Err(d.GetDurable(leaving, "driven")), ErrUnavailable) })
	}
	assert.Eventually(t, "all have gathered", func() bool { return d.gathered() == stay+100 })
	leave()
	left.Wait()
	assert.Equal(t, d.gathered(), stay, "those who wait")
	goOn()
	callers.Wait()
	assert.Equal(t, d.statements.Named("OrdersByID"), 2, "statements")
}

// TestDurableReadsFailAlone: a caller whose id the database rejects fails, and not those who gathered with it.
func TestDurableReadsFailAlone(t *testing.T) {
	t.Parallel()
	d := drivenOrder(t)
	goOn := d.waits(t)
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() { d.read(t) })
	}
	for _, bad := range []string{"\x00", "\xff"} {
		callers.Go(func() {
			if err := assert.Err(d.GetDurable(t.Context(), bad)); pg.FaultOf(err) != pg.Bad {
				t.Errorf("%q: %v", bad, err)
			}
		})
	}
	assert.Eventually(t, "all have gathered", func() bool { return d.gathered() == 12 })
	goOn()
	callers.Wait()
}

// TestDurableReadsWhenTheProcessStops: what waits then ends, and every caller reads for itself.
func TestDurableReadsWhenTheProcessStops(t *testing.T) {
	t.Parallel()
	d := drivenOrder(t)
	goOn := d.waits(t)
	var callers sync.WaitGroup
	callers.Go(func() { d.read(t) })
	assert.Eventually(t, "it has gathered", func() bool { return d.gathered() == 1 })
	d.end()
	d.Wait()
	goOn()
	callers.Wait()
	assert.NoError(t, assert.Err(d.Get(t.Context(), "driven")))
}

// TestOrderGoneBetweenReads takes an order away, as a crash does, after it was seen and before it was durable.
func TestOrderGoneBetweenReads(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]struct {
		statement int // that finds it gone
		check     func(*testing.T, *driven)
	}{
		"get": {2, func(t *testing.T, d *driven) {
			t.Helper()
			assert.ErrorIs(t, assert.Err(d.Get(t.Context(), "driven")), ErrNotFound)
		}},
		"list": {1, func(t *testing.T, d *driven) {
			t.Helper()
			page, _, err := d.List(t.Context(), Filter{Limit: 10})
			assert.True(t, err == nil && len(page) == 1 && page[0].OrderID == "paused", page, err)
		}},
		"overview": {1, func(t *testing.T, d *driven) {
			t.Helper()
			v, err := d.Overview(t.Context(), Backlog{})
			assert.True(t, err == nil && v.Oldest == nil, v.Oldest, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drivenOrder(t)
			sent := 0
			d.proxy.On(func(statement string) dbtest.Fate {
				if statement == "OrdersByID" {
					if sent++; sent == read.statement {
						d.exec(t, `DELETE FROM orders WHERE order_id = 'driven'`)
					}
				}
				return dbtest.Passes
			})
			read.check(t, d)
		})
	}
}

// TestOverviewWhileReadsWait: the overview is there, without an order that a crash may take back.
func TestOverviewWhileReadsWait(t *testing.T) {
	t.Parallel()
	d := drivenOrder(t)
	assert.Eventually(t, "it names the order", func() bool {
		v, err := d.readOverview(t.Context(), Backlog{}, CountsMost)
		assert.NoError(t, err)
		return v.Oldest != nil && v.Oldest.OrderID == "driven"
	})
	defer d.waits(t)()
	v, err := d.readOverview(t.Context(), Backlog{}, CountsMost)
	assert.True(t, err == nil && v.Oldest == nil, v.Oldest, err)
}
