package pg_test

import (
	"cmp"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/dbtest"
)

// stored makes 200,000 orders as they lie in a database in use: half of them for one item, nearly all completed, one in
// fifty failed or canceled, the latter all for one item, and some under way or held; one came every five seconds. A third
// of them is of one customer, a third of customers with a few orders, and a third of none. No trigger looks at them, nor a
// foreign key.
const stored = `
SET session_replication_role = replica;
INSERT INTO orders (order_id, created_at, currency, item, amount, status, seq, fence, ended_as, finished_at, due_at, hold, outcome, customer_id)
SELECT md5(n::text), now() - make_interval(secs => (200000 - n) * 5), 'USD',
  CASE WHEN n IN (7, 50, 100001, 150000, 199999) THEN 'rare' WHEN n % 100 = 50 THEN 'withdrawn' WHEN n % 2 = 0 THEN 'hot' ELSE 'item ' || n % 10000 END, 10,
  status, 4, 1, ended, CASE WHEN ended <> '' THEN now() END, CASE WHEN ended IS NULL AND hold IS NULL THEN now() + interval '1 hour' END,
  hold, CASE WHEN ended <> 'completed' THEN ended END, (ARRAY['large', 'customer ' || n % 20000])[n % 3]
FROM generate_series(1, 200000) AS n, LATERAL (SELECT CASE WHEN n % 100 = 0 THEN 'failed' WHEN n % 100 = 50 THEN 'canceled'
    WHEN n > 199980 THEN 'charging' WHEN n % 10000 = 4 THEN 'reserving' ELSE 'completed' END) AS s(status),
  LATERAL (SELECT CASE WHEN status IN ('failed', 'canceled', 'completed') THEN status END,
    CASE WHEN status = 'reserving' THEN 'attention' END) AS e(ended, hold);
INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE status <> 'charging';
INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, 1 FROM orders WHERE status = 'completed';
RESET session_replication_role;
VACUUM (ANALYZE, INDEX_CLEANUP ON);`

// listed says which lists are found in which way.
var listed = []struct {
	by, statuses string
	names        []string
}{
	{"number", every, nil}, {"number", "'{completed}'", nil}, {"number", "'{failed,completed}'", nil},
	{"uncompleted", "'{failed}'", nil}, {"uncompleted", "'{canceled}'", nil}, {"uncompleted", "'{failed,canceled}'", nil},
	{"uncompleted", "'{charging}'", nil}, {"uncompleted", "'{reserving,releasing}'", nil}, {"uncompleted", "'{failed,charging}'", nil},
	{"item", every, someItems}, {"item", "'{completed}'", someItems}, {"item", "'{completed,failed}'", someItems},
	{"item", "'{failed}'", someItems}, {"item", "'{canceled,failed}'", someItems}, {"item", "'{charging}'", someItems},
	{"hold", every, []string{"'attention'", "'retry'"}}, {"customer", every, []string{"'large'", "'customer 7'", "'nobody'"}},
}

const every = "'{pending,charging,reserving,confirming,completed,releasing,refunding,failed,canceled}'"

var someItems = []string{"'hot'", "'withdrawn'", "'rare'", "'item 77'", "'nobody''s'"}

// pagesOfList is more than the way to fifty orders takes that are found, measured and read, each by a few pages of an index.
const pagesOfList = 900

// TestPlansInUse looks at the plans of lists and of what the metrics show, in one database in use: to make it is what takes
// the time.
func TestPlansInUse(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	for _, part := range strings.SplitAfter(stored, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	lists(t, conn)
	stats(t, conn)
}

// lists finds fifty orders of every list, for the newest, the oldest and a window in between, from either end, and reads a
// page of them.
func lists(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	windows := []map[string]string{
		span(t, conn, "", ""), span(t, conn, "1 day", ""), span(t, conn, "", "11 days"), span(t, conn, "6 days", "5 days"),
		span(t, conn, "6 days", "6 days"), span(t, conn, "-1 day", "-2 days"),
	}
	worst := map[string]int{}
	look := func(by string, s statement) {
		for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
			pages, plan := s.buffers(t, kind, pagesOfList)
			if pages >= pagesOfList {
				t.Errorf("%s by %s %v reads %d pages with %s\n%s", s.name, by, s.args, pages, kind, plan)
			}
			worst[by] = max(worst[by], pages)
		}
	}
	find := prepare(t, conn, "OrdersFind", nil)
	for _, list := range listed {
		for _, name := range append(list.names[:len(list.names):len(list.names)], "''")[:max(1, len(list.names))] {
			for _, window := range windows {
				for _, oldest := range []string{"false", "true"} {
					args := wanted(list.by, name, list.statuses)
					args["oldest"] = oldest
					maps.Copy(args, window)
					look(list.by, find.with(t, args))
				}
			}
		}
	}
	find.deallocate(t)
	read := prepare(t, conn, "OrdersRead", map[string]string{"order_nos": "'{199950,190000,180050,170000,160050,150000,140050,130000,120050,110000}'", "bytes": "1048576"})
	look("read", read)
	read.deallocate(t)
	t.Logf("pages read at most: %v", worst)
}

// wanted are arguments for fifty orders of a list, without a window.
func wanted(by, name, statuses string) map[string]string {
	args := map[string]string{"by": "'" + by + "'", "name": name, "statuses": statuses, "looks": "50",
		"item": "''", "customer_id": "''", "reason": "''", "amount_from": "0", "amount_to": "1000", "failure_step": "''", "failure_code": "''"}
	args["holds"], args["unfinished"] = waitsOf(by, name, statuses)
	return args
}

// waitsOf says which holds a list goes through, and whether unfinished orders are among them.
func waitsOf(by, name, statuses string) (holds, unfinished string) {
	switch {
	case by == "hold":
		return "'{" + strings.Trim(name, "'") + "}'", "false"
	case !strings.Contains(statuses, "ing"): // as all states end that are not the last
		return "'{}'", "false"
	case by == "uncompleted":
		return "'{retry,callback,scheduled,queued,approval,paused,attention}'", "true"
	case by == "item":
		return "'{}'", "true"
	default:
		return "'{}'", "false"
	}
}

// span is a window of time that began and ended that long ago, with the numbers the engine finds for it.
func span(t testing.TB, conn *pgx.Conn, began, ended string) map[string]string {
	t.Helper()
	w := map[string]string{"after": "0", "before": "9223372036854775807", "created_from": "'-infinity'", "created_to": "'infinity'"}
	if began != "" {
		w["created_from"] = "now() - interval '" + began + "'"
		w["after"] = numberAt(t, conn, w["created_from"]+" - interval '35 seconds'", "last_before")
	}
	if ended != "" {
		w["created_to"] = "now() - interval '" + ended + "'"
		w["before"] = numberAt(t, conn, w["created_to"]+" + interval '35 seconds'", "first_after")
	}
	return w
}

func numberAt(t testing.TB, conn *pgx.Conn, at, what string) (no string) {
	t.Helper()
	s := prepare(t, conn, "OrderNoAt", map[string]string{"at": at})
	if pages, plan := s.buffers(t, "force_generic_plan", 200); pages >= 200 {
		t.Errorf("OrderNoAt reads %d pages\n%s", pages, plan)
	}
	s.deallocate(t)
	find := "SELECT " + what + "::text FROM (" + strings.ReplaceAll(queryText(t, "OrderNoAt"), "@at", at) + ") AS found"
	if err := conn.QueryRow(t.Context(), find).Scan(&no); err != nil {
		t.Fatal(err)
	}
	return no
}

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
