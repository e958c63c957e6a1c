package pg_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// args are SQL expressions by the name of the parameter.
type args = map[string]string

var (
	parameter   = regexp.MustCompile(`@(\w+)|sqlc\.narg\('(\w+)'\)`)
	buffersRead = regexp.MustCompile(`Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`)
)

// queryText finds a statement in queries/.
func queryText(t testing.TB, name string) string {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	assert.NoError(t, err)
	for _, file := range files {
		all, err := os.ReadFile(file)
		assert.NoError(t, err)
		if _, rest, found := strings.Cut(string(all), "-- name: "+name+" "); found {
			rest, _, _ = strings.Cut(rest, "-- name: ")
			_, text, _ := strings.Cut(rest, "\n")
			return text[:strings.LastIndex(text, ";")]
		}
	}
	t.Fatalf("there is no statement %s", name)
	return ""
}

// planner is a connection without a cache of statements.
type planner struct{ *pgx.Conn }

// explanation is the kind of a plan, force_custom_plan or force_generic_plan, and the options of EXPLAIN. PostgreSQL may
// use the generic plan from the sixth execution on.
type explanation struct{ kind, options string }

// explain prepares a statement of queries/ and explains its plan.
func (conn planner) explain(t testing.TB, how explanation, name string, values args) string {
	t.Helper()
	var parameters, given []string
	text := parameter.ReplaceAllStringFunc(queryText(t, name), func(match string) string {
		parameter := strings.Join(parameter.FindStringSubmatch(match)[1:], "")
		if !slices.Contains(parameters, parameter) {
			parameters = append(parameters, parameter)
			given = append(given, values[parameter])
		}
		return fmt.Sprintf("$%d", slices.Index(parameters, parameter)+1)
	})
	assert.Require(t, !slices.Contains(given, ""), name, "arguments are missing", given, "for", parameters)
	exec(t, conn, "PREPARE explained AS "+text, "SET plan_cache_mode = "+how.kind)
	rows, err := conn.Query(t.Context(), fmt.Sprintf("EXPLAIN (%s) EXECUTE explained(%s)", how.options, strings.Join(given, ", ")))
	assert.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	assert.NoError(t, err, name, values)
	exec(t, conn, "DEALLOCATE explained")
	return strings.Join(lines, "\n")
}

// cheap runs a statement with both kinds of plans and fails the test if one reads as many pages as most. It returns the
// generic plan.
func (conn planner) cheap(t testing.TB, most int, name string, values args) (generic string) {
	t.Helper()
	for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
		generic = conn.explain(t, explanation{kind, "ANALYZE, BUFFERS, TIMING OFF"}, name, values)
		execution, _, _ := strings.Cut(generic, "\nPlanning:")
		pages := 0
		if read := buffersRead.FindStringSubmatch(execution); read != nil { // the first is that of all nodes together
			hit, _ := strconv.Atoi(read[1])
			missed, _ := strconv.Atoi(read[2])
			pages = hit + missed
		}
		assert.True(t, pages < most, name, values, "reads", pages, "pages with a", kind, generic)
	}
	return generic
}

func exec(t testing.TB, conn planner, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), statement)), statement)
	}
}

// script runs the statements of a text, each in a transaction of its own.
func script(t testing.TB, conn planner, text string) {
	t.Helper()
	exec(t, conn, strings.SplitAfter(text, ";\n")...)
}

func connectPlainly(t testing.TB, url string) planner {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	assert.NoError(t, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), config)
	assert.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return planner{conn}
}

// stored makes 200,000 orders as they lie in a database in use: half of them for one item, nearly all completed, one in
// fifty failed or canceled, the latter all for one item, and some under way or held; one came every five seconds. A
// third of them is of one customer, a third of customers with a few orders, and a third of none. No trigger looks at
// them, nor a foreign key.
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

// listed are the lists, by the index that finds them.
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

// pagesOfList bounds the pages read to find fifty orders, measure and read them, each by a few pages of an index.
const pagesOfList = 900

// TestPlansInUse checks the plans of lists and of metrics in one database in use, because creating it takes most of the
// time.
func TestPlansInUse(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	script(t, conn, stored)
	lists(t, conn)
	stats(t, conn)
	searches(t, conn)
}

// findable adds orders of a remote provider, with metadata of which one key can be searched. A tenth of them has the same
// value, and an index has no statistics yet when it is new.
const findable = `
SET session_replication_role = replica;
WITH o AS (
  INSERT INTO orders (order_id, created_at, currency, item, amount, status, seq, fence, ended_as, finished_at, metadata)
  SELECT 'found ' || n, now() + make_interval(secs => 100000 + n), 'USD', 'hot', 10, 'completed', 4, 1, 'completed', now(),
    jsonb_build_object('email', CASE WHEN n % 10 = 0 THEN 'same' ELSE 'user ' || n END, 'note', repeat('x', 100)) FROM generate_series(1, 30000) AS n
  RETURNING order_no)
INSERT INTO charges (order_no, generation, currency, amount, executor, reference) SELECT o.order_no, 0, 'USD', 10, 'http', 'ch_' || o.order_no % 20000 FROM o;
RESET session_replication_role;
VACUUM (ANALYZE) orders;
VACUUM (ANALYZE) charges;
CREATE INDEX orders_metadata_0c83f57c786a ON orders ((left(metadata ->> 'email', 255) COLLATE "C"), order_no) WHERE metadata ? 'email';
COMMENT ON INDEX orders_metadata_0c83f57c786a IS 'email';`

// requested adds the rows of a hundred bulk requests, each of a hundred orders.
const requested = `
SET session_replication_role = replica;
INSERT INTO transitions (order_no, fence, seq, to_status, verb, actor, request_id)
SELECT o.order_no, 1, o.seq + 1, o.status, 'retry', 'local', 'bulk ' || row_number() OVER () % 100 FROM orders AS o WHERE o.order_no % 20 = 0 LIMIT 10000;
RESET session_replication_role;
VACUUM (ANALYZE) transitions;`

// searches finds orders by one term, whatever it matches, and however many.
func searches(t *testing.T, conn planner) {
	t.Helper()
	script(t, conn, findable)
	for _, term := range []string{"a", "found 77", "found", "large", "customer 7", "ch_7", "same", "user 77", "nobody", "'\U0010ffff'"} {
		conn.cheap(t, 500, "OrdersSearch", args{"terms": "ARRAY['" + strings.Trim(term, "'") + "']", "most": "51", "after_id": "''", "before": "9223372036854775807"})
	}
	for _, before := range []string{"9223372036854775807", "100000"} { // it reads 20,000 orders, and their charges and reservations
		conn.cheap(t, 3000, "OrdersSearchParts", args{"words": "'{nobody}'", "term": "'nobody'", "amount": "'7.77'", "currency": "''", "keys": "'{email}'", "before": before, "looks": "10000", "most": "51"})
	}
	script(t, conn, requested)
	for id, most := range map[string]int{"'bulk 7'": 500, "'nothing'": 20} {
		conn.cheap(t, most, "RequestPage", args{"request_id": id, "after": "0", "most": "51"})
		conn.cheap(t, 2*most, "RequestTotals", args{"request_id": id, "most": "10000"})
	}
}

// lists finds fifty orders of every list, for the newest, the oldest and a window in between, from either end, and
// reads a page of them.
func lists(t *testing.T, conn planner) {
	t.Helper()
	windows := []args{
		span(t, conn, "", ""), span(t, conn, "1 day", ""), span(t, conn, "", "11 days"), span(t, conn, "6 days", "5 days"),
		span(t, conn, "6 days", "6 days"), span(t, conn, "-1 day", "-2 days"),
	}
	for _, list := range listed {
		for _, name := range append(list.names[:len(list.names):len(list.names)], "''")[:max(1, len(list.names))] {
			for _, window := range windows {
				for _, oldest := range []string{"false", "true"} {
					values := wanted(list.by, name, list.statuses)
					values["oldest"] = oldest
					maps.Copy(values, window)
					conn.cheap(t, pagesOfList, "OrdersFind", values)
				}
			}
		}
	}
	for by, condition := range map[string]args{"open": {"refund": "'open'"}, "failed": {"failure_step": "'capture'"}, "dispute": {"dispute": "'open'"}} {
		values := wanted(by, "''", "'{completed}'")
		maps.Copy(values, condition)
		values["oldest"] = "false"
		maps.Copy(values, span(t, conn, "", ""))
		conn.cheap(t, pagesOfList, "OrdersFind", values)
	}
	const far = "'{199950,190000,180050,170000,160050,150000,140050,130000,120050,110000}'"
	conn.cheap(t, pagesOfList, "OrdersRead", args{"order_nos": far, "bytes": "1048576"})
	conn.cheap(t, 150, "OrdersMoney", args{"order_nos": far, "each": "true"})
	conn.cheap(t, 60, "OrderIDs", args{"order_nos": far, "oldest": "false"})
	conn.cheap(t, 200, "OrderFacts", args{"order_nos": far, "generations": "array_fill(0, ARRAY[10])",
		"steps": "array_fill('charge'::text, ARRAY[10])", "operations": "array_fill('do'::text, ARRAY[10])"})
	conn.cheap(t, 60, "TransitionsByRequest", args{"order_nos": far, "request_id": "'r'", "actor": "'local'", "verb": "'retry'", "durable": "false"})
}

// wanted are arguments for fifty orders of a list, without a window.
func wanted(by, name, statuses string) args {
	values := args{
		"by": "'" + by + "'", "name": name, "statuses": statuses, "looks": "50", "item": "''", "customer_id": "''", "reason": "''",
		"amount_from": "0", "amount_to": "1000", "failure_step": "''", "failure_code": "''", "submitted_by": "''", "currency": "''",
		"charged": "false", "refunded": "false", "authorized": "false", "voided": "false", "refund": "''", "dispute": "''", "route": "''",
		"hold": "''", "holds": "'{}'", "unfinished": "false", "order_nos": "'{}'",
	}
	unfinished := strings.Contains(statuses, "ing") // the ending of all statuses that are not final
	switch {
	case by == "hold":
		values["hold"], values["holds"] = name, "'{"+strings.Trim(name, "'")+"}'"
	case by == "uncompleted" && unfinished:
		values["holds"], values["unfinished"] = "'{retry,callback,scheduled,queued,approval,paused,attention}'", "true"
	case by == "item" && unfinished:
		values["unfinished"] = "true"
	}
	return values
}

// span is a window of time that began and ended that long ago, with the numbers the engine finds for it.
func span(t testing.TB, conn planner, began, ended string) args {
	t.Helper()
	w := args{"after": "0", "before": "9223372036854775807", "created_from": "'-infinity'", "created_to": "'infinity'"}
	numberAt := func(at, what string) (no string) {
		conn.cheap(t, 200, "OrderNoAt", args{"at": at})
		find := "SELECT " + what + "::text FROM (" + strings.ReplaceAll(queryText(t, "OrderNoAt"), "@at", at) + ") AS found"
		assert.NoError(t, conn.QueryRow(t.Context(), find).Scan(&no))
		return no
	}
	if began != "" {
		w["created_from"] = "now() - interval '" + began + "'"
		w["after"] = numberAt(w["created_from"]+" - interval '35 seconds'", "last_before")
	}
	if ended != "" {
		w["created_to"] = "now() - interval '" + ended + "'"
		w["before"] = numberAt(w["created_to"]+" + interval '35 seconds'", "first_after")
	}
	return w
}

const history = `
SET session_replication_role = replica;
INSERT INTO transitions (order_no, fence, seq, to_status) SELECT order_no, 1, seq, status FROM orders
WHERE order_no > (SELECT coalesce(max(order_no), 0) FROM transitions);
RESET session_replication_role;
VACUUM (ANALYZE) transitions;`

// stats reads what the metrics show every few seconds, which must not read a whole table.
func stats(t *testing.T, conn planner) {
	t.Helper()
	script(t, conn, history)
	metrics := func(most map[string]int) {
		for name, values := range map[string]args{
			"OrdersHeldStats":   {"most": "10000", "oldest": "100"},
			"OpenWork":          {"order_no": "1000", "most": "10000"},
			"OrdersUnfinished":  {"most": "10000"},
			"OrdersEnded":       {"most": "10000", "newest": "20000"},
			"ErrorGroups":       {"most": "10000", "groups": "200"},
			"OrdersStatusSince": {"order_nos": "'{1,5000,10000,15000,20000}'"},
		} {
			conn.cheap(t, cmp.Or(most[name], 500), name, values)
		}
	}
	metrics(map[string]int{"OrdersEnded": 3000, "ErrorGroups": 3000}) // 20,000 orders; 2,000 of them failed, far apart
	// A provider fails, and 30,000 orders wait for a person. Nearly all held orders do, so the planner expects to find
	// them by any index.
	script(t, conn, waiting)
	script(t, conn, history)
	metrics(map[string]int{"OrdersEnded": 3000, "ErrorGroups": 4000, "OrdersHeldStats": 6000, "OrdersUnfinished": 1500})
	listsOfWaiting(t, conn)
}

// listsOfWaiting finds many orders among those on hold, and few among those that will be retried.
func listsOfWaiting(t *testing.T, conn planner) {
	t.Helper()
	values := wanted("uncompleted", "''", every)
	values["looks"] = "1000"
	maps.Copy(values, span(t, conn, "", ""))
	for _, oldest := range []string{"false", "true"} {
		values["oldest"] = oldest
		conn.cheap(t, 6000, "OrdersFind", values) // three pages of an index lead to each of 1,000 orders
	}
	script(t, conn, triedAgain)
	// None has this item: the cost is to see that the others are not being driven.
	values["by"], values["name"], values["holds"], values["looks"] = "'item'", "'nobody''s'", "'{}'", "50"
	// While orders are placed, a bitmap scan would read the entries of all that have ended since the last vacuum, every
	// time, and a table scan all orders. The pages of a database at rest do not show that.
	wantScan(t, conn.cheap(t, 500, "OrdersFind", values), "Index Scan using orders_due on orders u ")
	wantScan(t, conn.explain(t, explanation{"force_generic_plan", "ANALYZE"}, "OrdersUnfinished", args{"most": "10000"}), "Index Scan using orders_due on orders d ")
}

func wantScan(t *testing.T, plan, scan string) {
	t.Helper()
	assert.Contains(t, plan, scan)
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

// TestClaimScan looks for due orders after 60,000 have finished within an hour, while none of their index entries could
// be removed, because of an old snapshot.
func TestClaimScan(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	url := dbtest.New(t).AdminURL
	conn, reader := connectPlainly(t, url), connectPlainly(t, url)
	exec(t, conn, `ALTER TABLE orders SET (autovacuum_enabled = false);
		ALTER TABLE orders DISABLE TRIGGER USER;
		INSERT INTO orders (order_id, status, due_at, currency, item, amount)
		SELECT n::text, 'charging', now() + interval '10 seconds' - make_interval(secs => (60000 - n) * 0.06), 'USD', 'widget', 1
		FROM generate_series(1, 60000) AS n`)
	exec(t, reader, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orders LIMIT 1`)
	exec(t, conn, `UPDATE orders SET status = 'completed', ended_as = 'completed', due_at = NULL`,
		`INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('left behind', 'charging', now(), 'USD', 'widget', 1)`)
	conn.cheap(t, 300, "LeasesDue", args{"floor": "now() - interval '1 minute'", "most": "500"})
	found, err := db.New(conn).LeasesDue(t.Context(), db.LeasesDueParams{Most: 500})
	assert.True(t, err == nil && len(found) == 1, err, len(found), "due")
}

// TestShortenScan looks for waits that are too long among 120,000 orders that may wait long. It reads only the index.
func TestShortenScan(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	exec(t, conn, `ALTER TABLE orders DISABLE TRIGGER USER;
		INSERT INTO orders (order_id, status, hold, due_at, currency, item, amount)
		SELECT n::text, 'pending', CASE WHEN n % 2 = 0 THEN 'callback' ELSE 'scheduled' END,
			now() + make_interval(secs => n * 0.025 * CASE WHEN n % 2 = 0 THEN 1 ELSE 100 END),
			'USD', 'widget', 1 FROM generate_series(1, 120000) AS n ORDER BY hashint4(n);
		INSERT INTO orders (order_id, status, due_at, currency, item, amount)
		VALUES ('far', 'charging', now() + interval '1 day', 'USD', 'widget', 1)`)
	conn.cheap(t, 15_000, "LeasesShorten", args{"holds": "ARRAY['', 'retry', 'callback', 'approval']",
		"seconds": "ARRAY[31, 960, 3600, 7200]", "policies": "ARRAY[1]", "most": "10000"})
	var left int
	err := conn.QueryRow(t.Context(), `SELECT count(*) FROM orders WHERE hold IS NULL AND due_at < now() + interval '1 minute'`).Scan(&left)
	assert.True(t, err == nil && left == 1, left, "orders were found", err)
}

// TestPlansOfEvents: numbering and reading events finds rows by keys, in an empty database and in a large one, and is
// not expensive enough to be compiled (JIT), which takes longer than all of it.
func TestPlansOfEvents(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	for _, filled := range []bool{false, true} {
		if filled {
			exec(t, conn,
				`INSERT INTO orders (status, order_id, currency, item, amount, due_at)
					SELECT 'pending', 'order-' || n, 'EUR', 'widget', 9.99, now() FROM generate_series(1, 30000) AS n`,
				`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, position)
					SELECT order_no, s, 'charging', 'charging', 1, order_no + s FROM orders, generate_series(1, 5) AS s`,
				`INSERT INTO event_batches (first_event_no, last_event_no, position_from, position_to, epoch, whole)
					SELECT n * 500 + 1, n * 500 + 500, n * 100, n * 100 + 100, 1, false FROM generate_series(0, 100) AS n`,
				`ANALYZE orders, transitions, event_batches`)
		}
		for _, name := range []string{"EventBatchAdd", "EventBatchesFrom", "EventBatchesOfOrder", "EventsOfBatch"} {
			plan := conn.explain(t, explanation{"force_generic_plan", "COSTS"}, name, args{
				"owner": "'00000000-0000-0000-0000-000000000000'", "fence": "1", "first_event_no": "1", "after": "0", "most": "4000",
				"order_id": "'order-7'", "event_no": "17",
			})
			assert.Equal(t, regexp.MustCompile(`Seq Scan on (transitions|orders|refunds)\b|JIT:`).FindString(plan), "",
				name, "filled", filled, plan)
		}
	}
}

// TestHistoryPlans reads fifty rows of a history of 50,000, from either end and from the middle.
func TestHistoryPlans(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	exec(t, conn,
		`ALTER TABLE transitions DISABLE TRIGGER USER`,
		`INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
			SELECT 7, n, 'charging', 'charging', 1 FROM generate_series(1, 50000) AS n`,
		`INSERT INTO step_calls (order_no, call, fence, generation, step, operation)
			SELECT 7, n, 1, 0, 'charge', 'do' FROM generate_series(-25000, 25000) AS n`,
		`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id)
			SELECT 'lamp', n, 'adjustment', 1, n, 0, 'ann', 'r' || n FROM generate_series(1, 50000) AS n`,
		`VACUUM ANALYZE stock_movements`, `VACUUM ANALYZE transitions`, `VACUUM ANALYZE step_calls`)
	for _, name := range []string{"TransitionsOf", "TransitionsOfNewest", "CallsOf", "CallsOfNewest", "StockMovementsOf", "StockMovementsOfNewest"} {
		for _, span := range [][2]string{{"-2147483648", "2147483647"}, {"10000", "2147483647"}, {"-2147483648", "10000"}} {
			conn.cheap(t, 30, name, args{"order_no": "7", "item": "'lamp'", "after": span[0], "before": span[1], "most": "50", "durable": "false"})
		}
	}
}

// sent makes 100,000 deliveries of three endpoints, nearly all delivered; four of each order, and as many of one item
// as of all orders together.
const sent = `
INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, finished_at, due_at, attempted_at, body)
SELECT n % 3 + 1, n, 'order.completed', 'evt_' || n, CASE WHEN n % 2 = 0 THEN 'item hot' ELSE 'order ' || n / 12 END, state,
  CASE WHEN state IN ('delivered', 'skipped') THEN now() END, CASE WHEN state = 'pending' THEN now() END, now(), '{}'
FROM generate_series(1, 100000) AS n, LATERAL (SELECT CASE WHEN n % 10000 = 7 THEN 'exhausted' WHEN n % 9973 = 0 THEN 'skipped'
  WHEN n > 99900 THEN 'pending' ELSE 'delivered' END) AS s(state);
VACUUM ANALYZE webhook_deliveries;
INSERT INTO webhook_endpoints (url, event_no, created_by, secret)
SELECT 'https://shop.example/', 0, 'test', 'whsec_' FROM generate_series(1, 3);`

// TestDeliveryListPlans reads a page of fifty deliveries by each filter, from the newest on and from the middle, and
// the newest of an order with many. Reading all would take thousands of pages.
func TestDeliveryListPlans(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	const most = 600
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	script(t, conn, sent)
	for _, filter := range [][2]string{
		{"''", "''"}, {"''", "'delivered'"}, {"''", "'pending'"}, {"''", "'exhausted'"}, {"''", "'skipped'"},
		{"'order 77'", "''"}, {"'item hot'", "''"}, {"'item hot'", "'delivered'"}, {"'order none'", "''"},
	} {
		for _, before := range []string{"9223372036854775807", "50000"} {
			conn.cheap(t, most, "WebhookDeliveriesList", args{
				"subject": filter[0], "state": filter[1], "endpoint_no": "2", "before": before, "most": "51",
			})
		}
		conn.cheap(t, most, "WebhookDeliveriesOfSubject", args{"subject": filter[0], "order_id": "'x'", "most": "50"})
	}
}
