package pg_test

import (
	"cmp"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// stats reads what the metrics show, from a database in use: it must not read a table for that, every few seconds.
func stats(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const history = `
SET session_replication_role = replica;
INSERT INTO transitions (order_no, fence, seq, to_status) SELECT order_no, 1, seq, status FROM orders
WHERE order_no > (SELECT coalesce(max(order_no), 0) FROM transitions);
RESET session_replication_role;
VACUUM (ANALYZE) transitions;`
	for _, part := range strings.SplitAfter(history, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	most := map[string]int{"ordersended": 3000, "errorgroups": 3000} // 20,000 orders; 2,000 of them that failed, far apart
	looksAtFewPages(t, conn, most)
	// A provider fails, and 30,000 orders wait for a person: of all that wait nearly all do, so the planner expects to come across
	// them along any way.
	for _, part := range strings.SplitAfter(waiting+"\n"+history, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	most = map[string]int{"ordersended": 3000, "errorgroups": 4000, "ordersheldstats": 6000, "ordersunfinished": 1500}
	looksAtFewPages(t, conn, most)
	listsOfWaiting(t, conn)
}

// listsOfWaiting finds many orders among those that wait, and few beside those that will be tried again.
func listsOfWaiting(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	args := wanted("uncompleted", "''", every)
	args["looks"] = "1000"
	maps.Copy(args, span(t, conn, "", ""))
	for _, oldest := range []string{"false", "true"} {
		args["oldest"] = oldest
		s := prepare(t, conn, "OrdersFind", args)
		s.isCheap(t, 6000) // three pages of an index lead to each of 1,000 orders
		s.deallocate(t)
	}
	for _, part := range strings.SplitAfter(triedAgain, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	// None of an item: what costs is to see that nobody drives the others.
	args["by"], args["name"], args["holds"], args["looks"] = "'item'", "'nobody''s'", "'{}'", "50"
	s := prepare(t, conn, "OrdersFind", args)
	s.isCheap(t, 500)
	s.walks(t, "Index Scan using orders_due on orders u ")
	s.deallocate(t)
	s = prepare(t, conn, "OrdersUnfinished", map[string]string{"most": "10000"})
	s.walks(t, "Index Scan using orders_due on orders d ")
	s.deallocate(t)
}

// walks fails the test if the plan that is kept for all arguments has no such scan. While orders are placed, a bitmap scan would read the
// entries of all that have ended since the last vacuum, every time anew, and a table scan all orders: the pages of a database at
// rest don't tell.
func (s statement) walks(t *testing.T, scan string) {
	t.Helper()
	if _, plan := s.buffers(t, "force_generic_plan", 0); !strings.Contains(plan, scan) {
		t.Errorf("%s has no %q:\n%s", s.name, scan, plan)
	}
}

// waiting adds orders that wait for a person.
const waiting = `
SET session_replication_role = replica;
INSERT INTO orders (order_id, created_at, currency, item, amount, status, seq, fence, hold, hold_reason)
SELECT 'waits ' || n, now() + make_interval(secs => n), 'USD', 'hot', 10, 'charging', 4, 1, 'attention', 'retries_exhausted' FROM generate_series(1, 30000) AS n;
RESET session_replication_role;
VACUUM (ANALYZE) orders;`

// triedAgain adds as many that wait for a retry, and so are due some time.
const triedAgain = `
SET session_replication_role = replica;
INSERT INTO orders (order_id, created_at, currency, item, amount, status, seq, fence, hold, due_at)
SELECT 'tried again ' || n, now() + make_interval(secs => n), 'USD', 'hot', 10, 'charging', 4, 1, 'retry', now() + make_interval(secs => 3600 + n * 7919 % 30000) FROM generate_series(1, 30000) AS n;
RESET session_replication_role;
VACUUM (ANALYZE) orders;`

func looksAtFewPages(t *testing.T, conn *pgx.Conn, most map[string]int) {
	t.Helper()
	for _, s := range []statement{
		prepare(t, conn, "OrdersHeldStats", map[string]string{"most": "10000", "oldest": "1000"}),
		prepare(t, conn, "OrderAge", map[string]string{"order_no": "1000"}),
		prepare(t, conn, "LateUndosCount", map[string]string{"most": "10000"}),
		prepare(t, conn, "OrdersUnfinished", map[string]string{"most": "10000"}),
		prepare(t, conn, "OrdersEnded", map[string]string{"most": "10000", "newest": "20000"}),
		prepare(t, conn, "ErrorGroups", map[string]string{"most": "10000", "groups": "200"}),
	} {
		s.isCheap(t, cmp.Or(most[s.name], 500))
		s.deallocate(t)
	}
}

// isCheap fails the test if the statement looks at too many pages, with a plan of either kind.
func (s statement) isCheap(t *testing.T, most int) {
	t.Helper()
	for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
		if pages, plan := s.buffers(t, kind, most); plan != "" {
			t.Errorf("%s with a %s looks at %d pages:\n%s", s.name, kind, pages, plan)
		}
	}
}
