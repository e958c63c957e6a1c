package engine_test

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/dbtest"
	"pawl/engine"
)

var planOrders = flag.Int64("plan-orders", 10_000, "orders of the test that looks for sequential scans")

// TestPlansFromTheFirstOrderOn fills an empty database by the engine alone. Plans that were made while it was empty must
// serve it when it is not.
func TestPlansFromTheFirstOrderOn(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	pool, err := db.Open(t.Context(), database.URL, db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	e := startOn(t, pool, engine.Config{Lease: time.Minute}) // nobody is turned away
	if _, err := e.SetStock(t.Context(), "few", 10, nil); err != nil {
		t.Fatal(err)
	}
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
	eventually(t, "the connections of the engine have ended", func() bool {
		return value[int](t, database.Pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid <> pg_backend_pid()`) == 0
	})
	scans(t, database.Pool)
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
		_, _ = e.Do(t.Context(), engine.Request{Verb: engine.Cancel, OrderID: in.OrderID, RequestID: "1"}) // may come too late
	}
	if _, err := e.Process(t.Context(), in); err != nil {
		return err
	}
	if i%20 == 2 {
		_, err := e.Process(t.Context(), in)
		return err
	}
	return nil
}

func scans(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range []string{"orders", "charges", "reservations", "inventory", "transitions", "refunds"} {
		if n := value[int](t, pool, `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1`, table); n > 0 {
			t.Errorf("%s was read from end to end %d times", table, n)
		}
	}
	inserted := value[int64](t, pool, `SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'orders'`)
	if inserted != *planOrders {
		t.Errorf("statistics of %d orders, want %d", inserted, *planOrders)
	}
	// Of the three moves of an order only the last changes what an index holds; the others stay, as far as there is room.
	hot := value[float64](t, pool, `SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'orders'`)
	if hot < 0.4 {
		t.Errorf("%.0f %% of the updates stayed on their page", hot*100)
	}
	t.Logf("%.0f %% of the updates stayed on their page", hot*100)
}

// TestClaimScan looks for due orders after 300,000 were finished within an hour, up to now, and none of their entries
// could be taken out of the index, because somebody still reads what was before.
func TestClaimScan(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).URL
	conn, reader := connectPlainly(t, url), connectPlainly(t, url)
	run := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	run(`ALTER TABLE orders SET (autovacuum_enabled = false);
		ALTER TABLE orders DISABLE TRIGGER USER;
		INSERT INTO orders (order_id, status, due_at, currency, item, amount)
		SELECT n::text, 'charging', now() + interval '10 seconds' - make_interval(secs => (300000 - n) * 0.012), 'USD', 'widget', 1
		FROM generate_series(1, 300000) AS n`)
	if _, err := reader.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orders LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	run(`UPDATE orders SET status = 'completed', ended_as = 'completed', due_at = NULL`)
	run(`INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('left behind', 'charging', now(), 'USD', 'widget', 1)`)
	for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
		s := prepare(t, conn, "LeasesDue", map[string]string{"floor": "now() - interval '1 minute'", "most": "500"})
		if pages, plan := s.buffers(t, kind, 500); pages >= 500 {
			t.Errorf("%d pages\n%s", pages, plan)
		} else {
			t.Logf("%d pages", pages)
		}
		s.deallocate(t)
	}
	found, err := db.New(conn).LeasesDue(t.Context(), db.LeasesDueParams{Most: 500})
	if err != nil || len(found) != 1 {
		t.Errorf("%v, %d due", err, len(found))
	}
}
