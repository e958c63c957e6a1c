package engine_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// crash is a server that forgets orders: one engine admits them behind a proxy, which keeps their next statements. Then
// a process of the server is killed, and what was not flushed is gone.
type crash struct {
	*bundle // its engine has connections of its own
	proxy   *proxy
	behind  *engine.Engine
	reads   atomic.Int32 // by order id, through the proxy
}

// setupCrash makes a server that flushes its log for nothing but commits that wait for it.
func setupCrash(t *testing.T) *crash {
	t.Helper()
	server := dbtest.Restartable(t)
	server.Set(t, "wal_writer_delay", "10s")
	server.Set(t, "wal_writer_flush_after", "1GB")
	pool, err := pgxpool.New(t.Context(), server.URL)
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	c := &crash{bundle: &bundle{Database: &dbtest.Database{URL: server.URL, Pool: pool}}, proxy: newProxy(t, server.URL)}
	quiet := engine.Config{Lease: time.Minute, RecoveryInterval: time.Hour}
	c.engine, c.behind = startEngine(t, server.URL, quiet), startPatient(t, c.proxy, quiet)
	return c
}

// kill ends a process of the server with SIGKILL, and returns when the server has ended the others, and recovered.
func (c *crash) kill(t *testing.T) {
	t.Helper()
	var conns [2]*pgx.Conn
	for i := range conns {
		conn, err := pgx.Connect(t.Context(), c.URL)
		assert.NoError(t, err)
		defer conn.Close(t.Context())
		conns[i] = conn
	}
	assert.NoError(t, syscall.Kill(int(conns[0].PgConn().PID()), syscall.SIGKILL))
	assert.Eventually(t, "the server has noticed", func() bool { return conns[1].Ping(t.Context()) != nil })
	c.Pool.Reset()
	assert.Eventually(t, "the server has recovered", func() bool { return c.Pool.Ping(t.Context()) == nil })
}

// lose asks for an order until one is lost, and returns the number that it had, the answer that is still to come, and what
// lets the engine find out. Until then only its callers can read.
func (c *crash) lose(t *testing.T, in func(orderID string) engine.Input) (orderID string, number int64, answers <-chan answer, goOn func()) {
	t.Helper()
	for try := 1; ; try++ {
		orderID = fmt.Sprint("lost ", try)
		c.reads.Store(0)
		arrived, release := c.proxy.stall(t, func(statement string) bool {
			if statement == "OrdersByID" {
				c.reads.Add(1)
			}
			return statement == "OrdersCharge" || statement == "OrdersByNo"
		})
		answers = ask(t, c.behind, in(orderID))
		assert.Eventually(t, "it is admitted", func() bool { return arrived.Load() > 0 })
		number = value[int64](t, c.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
		c.kill(t)
		if value[int](t, c.Pool, `SELECT count(*) FROM orders WHERE order_id = $1`, orderID) == 0 {
			return orderID, number, answers, release
		}
		release() // its log was flushed all the same
		isNow(t, (<-answers).order, fsm.Completed)
	}
}

// TestOrderLostInACrash takes an order from the engine that drives it, which has told nobody of it. What the engine remembers
// of it is worth nothing: others may have been asked for an order with that id meanwhile.
func TestOrderLostInACrash(t *testing.T) {
	t.Parallel()
	plain := request
	with := func(key string) func(string) engine.Input {
		return func(orderID string) engine.Input { return keyed(request(orderID), key) }
	}
	other := func(orderID string) engine.Input {
		in := request(orderID)
		in.Amount = decimal.MustParse("5")
		return in
	}
	for name, c := range map[string]struct {
		lost, meanwhile func(orderID string) engine.Input
		conflict        bool
	}{
		"it is admitted anew":                        {plain, nil, false},
		"with its key":                               {with("k"), nil, false},
		"another replica was asked for the same":     {plain, plain, false},
		"another replica was asked for another":      {plain, other, true},
		"with a key, and another for the same":       {with("k"), plain, false},
		"with a key, and another for another":        {with("k"), other, true},
		"without, and another for the same with one": {plain, with("k"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setupCrash(t)
			orderID, number, answers, goOn := s.lose(t, c.lost)
			if c.meanwhile != nil {
				assert.Eventually(t, "another replica completes it", func() bool {
					order, err := deref(s.engine.Process(t.Context(), c.meanwhile(orderID)))
					return err == nil && order.Status == fsm.Completed
				})
			}
			goOn()
			a := <-answers
			told := a.order
			if conflict, ok := errors.AsType[*orders.Conflict](a.err); ok && c.conflict {
				told = conflict.Order
			} else {
				assert.NoError(t, a.err)
				assert.Equal(t, c.conflict, false)
			}
			stored := value[int64](t, s.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
			assert.Equal(t, told.OrderNo, stored)
			if stored < number+1_000_000_000 {
				t.Errorf("order_no %d comes after %d, which was lost", stored, number)
			}
			assert.Equal(t, told.Status, fsm.Completed)
			proveBooks(t, s.Pool)
		})
	}
}

// TestCallersOfALostOrder join the run of an order while it is lost, each with a request of its own.
func TestCallersOfALostOrder(t *testing.T) {
	t.Parallel()
	s := setupCrash(t)
	orderID, _, first, goOn := s.lose(t, request)
	in := request(orderID)
	in.Item = "sofa"
	different := ask(t, s.behind, in)
	withKey := ask(t, s.behind, keyed(request(orderID), "k"))
	assert.Eventually(t, "one is about to report a conflict, and one could not keep its key", func() bool { return s.reads.Load() >= 2 })
	assert.Equal(t, value[int](t, s.Pool, `SELECT count(*) FROM idempotency_keys`), 0, "keys of an order that is not there")
	goOn()
	told := map[string]int{}
	for _, answers := range []<-chan answer{first, different, withKey} {
		a := <-answers
		if _, ok := errors.AsType[*orders.Conflict](a.err); ok {
			told["conflict"]++
			continue
		}
		assert.NoError(t, a.err)
		told[string(a.order.Status)]++
	}
	// Which of them is first now decides what the order is about.
	if told["conflict"] == 0 || told["completed"] == 0 || told["conflict"]+told["completed"] != 3 {
		t.Error(told)
	}
	proveBooks(t, s.Pool)
}
