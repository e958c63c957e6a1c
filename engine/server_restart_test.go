package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// load is callers that send one order after the other and remember what they were told.
type load struct {
	acknowledged atomic.Int64 // told that it is completed
	unavailable  atomic.Int64 // told to ask again
	end          func()
}

// startLoad starts callers, whose orders go to the engines in turn. end stops them and waits for the last answers.
func startLoad(t *testing.T, callers int, engines ...*engine.Engine) *load {
	t.Helper()
	l := &load{}
	var stopped atomic.Bool
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := 0; !stopped.Load(); i++ {
				l.send(t, engines[i%len(engines)], fmt.Sprintf("caller %d order %d", c, i))
			}
		})
	}
	l.end = sync.OnceFunc(func() { stopped.Store(true); wg.Wait() })
	t.Cleanup(l.end)
	return l
}

// send asks for an order until it is told how it ended.
func (l *load) send(t *testing.T, e *engine.Engine, orderID string) {
	t.Helper()
	for {
		order, err := e.Process(context.WithoutCancel(t.Context()), request(orderID))
		switch {
		case err == nil && order.OrderID == orderID && order.Status == "completed":
			l.acknowledged.Add(1)
			return
		case errors.Is(err, orders.ErrUnavailable), errors.Is(err, orders.ErrOverloaded):
			l.unavailable.Add(1)
		default:
			t.Errorf("%s: told %s (held: %s): %v", orderID, order.Status, text(order.HoldReason), err)
			return
		}
	}
}

// more waits until so many more orders are acknowledged.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	enough := l.acknowledged.Load() + n
	eventually(t, fmt.Sprint(n, " more orders are acknowledged"), func() bool { return l.acknowledged.Load() >= enough || t.Failed() })
}

// allCompleted fails the test unless what was acknowledged, and whatever else was stored, is completed.
func (l *load) allCompleted(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "every order is completed", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM books.orders AS o WHERE o.status <> 'completed'`) == 0
	})
	if n := value[int64](t, pool, `SELECT count(*) FROM books.orders`); n != l.acknowledged.Load() {
		t.Errorf("%d orders are stored, %d were acknowledged", n, l.acknowledged.Load())
	}
	proveBooks(t, pool)
}

func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := dbtest.Restartable(t)
	one, two := startEngine(t, server.URL, engine.Config{}), startEngine(t, server.URL, engine.Config{})
	l := startLoad(t, 16, one, two)
	for _, end := range []func(testing.TB){server.Kill, server.Stop, server.Kill} {
		l.more(t, 100)
		end(t)
		server.Start(t)
	}
	l.more(t, 100)
	l.end()
	pool, err := pgxpool.New(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l.allCompleted(t, pool)
	t.Logf("%d orders acknowledged, %d times told to ask again, %d outcomes unknown", l.acknowledged.Load(), l.unavailable.Load(),
		one.Stats.UnknownOutcome.Load()+two.Stats.UnknownOutcome.Load())
}

func TestConnectionsKilled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	two := b.replica(t, engine.Config{})
	l := startLoad(t, 16, b.engine, two)
	killed := 0
	for range times(8, 25) {
		l.more(t, 20)
		killed += value[int](t, b.Pool, `SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid)) FROM pg_stat_activity AS a
			WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.query LIKE '-- name: %'`)
	}
	l.more(t, 20)
	l.end()
	l.allCompleted(t, b.Pool)
	t.Logf("%d connections killed, %d orders acknowledged, %d times told to ask again, %d outcomes unknown", killed,
		l.acknowledged.Load(), l.unavailable.Load(), b.engine.Stats.UnknownOutcome.Load()+two.Stats.UnknownOutcome.Load())
}
