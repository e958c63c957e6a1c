package engine_test

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

var planOrders = flag.Int64("plan-orders", int64(times(3_000, 10_000)), "orders of the test that looks for sequential scans")

// TestPlansFromTheFirstOrderOn fills an empty database by the engine alone. Plans that were made while it was empty must
// serve it when it is not.
func TestPlansFromTheFirstOrderOn(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := &bundle{Database: dbtest.New(t)}
	pool, err := pg.Open(t.Context(), b.URL, pg.Options{MaxConns: 8})
	assert.NoError(t, err)
	e := startOn(t, pool, engine.Config{Lease: time.Minute}) // nobody is turned away
	assert.NoError(t, assert.Err(setStock(t.Context(), e, "few", 10)))
	var n atomic.Int64
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for i := n.Add(1); i <= *planOrders; i = n.Add(1) {
				if err := orderForPlans(t, e, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	stop(t, e)
	pool.Close() // its connections tell what they did when they end
	eventually(t, "the connections of the engine have ended", b.answers(t, 0,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid <> pg_backend_pid()`))
	scans(t, b.Pool)
}

// orderForPlans sends one order: nearly always one that goes straight on, now and then one that is asked for twice, is
// out of stock, or is canceled.
func orderForPlans(t testing.TB, e *engine.Engine, i int64) error {
	t.Helper()
	in := request(fmt.Sprintf("%x", uint64(i)*0x9E3779B97F4A7C15)) // in no order
	in.Item = fmt.Sprintf("item %d", i%1000)
	if i%50 == 0 {
		in.Item = "few"
	}
	if i%100 == 1 {
		if _, err := e.Admit(t.Context(), in); err != nil {
			return err
		}
		_, _ = e.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: in.OrderID, RequestID: "1"}) // may come too late
	}
	if i%25 == 7 {
		in = basket(in.OrderID, units(in.Item, 1), units("few", 1), units(fmt.Sprintf("item %d", i%7), 2))
	}
	if i%10 == 3 {
		in = keyed(in, in.OrderID)
	}
	if _, err := e.Process(t.Context(), in); err != nil {
		return err
	}
	if i%100 == 4 {
		in = keyed(in, in.OrderID+" again")
	}
	if i%20 == 2 || i%20 == 3 || i%20 == 4 {
		_, err := e.Process(t.Context(), in)
		return err
	}
	return nil
}

func scans(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range []string{"orders", "charges", "reservations", "inventory", "transitions", "charge_operations", "late_undos", "idempotency_keys"} {
		n := value[int](t, pool, `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1`, table)
		assert.True(t, n == 0, table, "was read from end to end", n, "times")
	}
	inserted := value[int64](t, pool, `SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'orders'`)
	assert.Equal(t, inserted, *planOrders, "statistics of orders")
	// Of the three moves of an order only the last changes what an index holds; the others stay, as far as there is room.
	hot := value[float64](t, pool, `SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'orders'`)
	if hot < 0.4 {
		t.Errorf("%.0f %% of the updates stayed on their page", hot*100)
	}
	t.Logf("%.0f %% of the updates stayed on their page", hot*100)
}
