package pg_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/test/dbtest"
)

// statement is one of queries/, prepared on a connection of its own, so that its plan can be looked at: the one made
// for its arguments and the generic one, which PostgreSQL may take from the sixth execution on.
type statement struct {
	conn       *pgx.Conn
	name       string
	parameters []string // by their place
	args       []string // as SQL, by their place
}

var parameter = regexp.MustCompile(`@(\w+)|sqlc\.narg\('(\w+)'\)`)

// prepare prepares a statement of a file of queries. Arguments are SQL text by name; without any it is not ready to be run.
func prepare(t testing.TB, conn *pgx.Conn, name string, args map[string]string) statement {
	t.Helper()
	s := statement{conn: conn, name: strings.ToLower(name)}
	text := parameter.ReplaceAllStringFunc(queryText(t, name), func(match string) string {
		parts := parameter.FindStringSubmatch(match)
		parameter := parts[1] + parts[2]
		if !slices.Contains(s.parameters, parameter) {
			s.parameters = append(s.parameters, parameter)
		}
		return fmt.Sprintf("$%d", slices.Index(s.parameters, parameter)+1)
	})
	if _, err := conn.Exec(t.Context(), "PREPARE "+s.name+" AS "+text); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if args == nil {
		return s
	}
	return s.with(t, args)
}

// with is the statement with other arguments.
func (s statement) with(t testing.TB, args map[string]string) statement {
	t.Helper()
	s.args = nil
	for _, parameter := range s.parameters {
		arg, ok := args[parameter]
		if !ok {
			t.Fatalf("%s: no argument for %s", s.name, parameter)
		}
		s.args = append(s.args, arg)
	}
	return s
}

func (s statement) deallocate(t testing.TB) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), "DEALLOCATE "+s.name); err != nil {
		t.Fatal(err)
	}
}

// queryText finds a statement in the files of queries.
func queryText(t testing.TB, name string) string {
	t.Helper()
	for _, file := range []string{"order_lists", "orders", "leases", "inventory", "transitions", "calls", "stats", "error_groups", "webhook_deliveries", "events"} {
		all, err := os.ReadFile("../../queries/" + file + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range strings.Split(string(all), "-- name: ")[1:] {
			if strings.HasPrefix(one, name+" ") {
				_, text, _ := strings.Cut(one, "\n")
				return text[:strings.LastIndex(text, ";")]
			}
		}
	}
	t.Fatalf("no statement is called %s", name)
	return ""
}

// buffers runs the statement with a plan of one kind (force_custom_plan, force_generic_plan) and says how many pages it
// looked at, and if that is too many, how.
func (s statement) buffers(t testing.TB, kind string, most int) (pages int, plan string) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), "SET plan_cache_mode = "+kind); err != nil {
		t.Fatal(err)
	}
	execute := "EXECUTE " + s.name + "(" + strings.Join(s.args, ", ") + ")"
	var text string
	if err := s.conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+execute).Scan(&text); err != nil {
		t.Fatalf("%s: %v", execute, err)
	}
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(text), &explained); err != nil {
		t.Fatal(err)
	}
	if pages = explained[0].Plan.Hit + explained[0].Plan.Read; pages < most {
		return pages, ""
	}
	rows, err := s.conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+execute)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return pages, strings.Join(lines, "\n")
}

// connectPlainly opens a connection without a cache of statements.
func connectPlainly(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// TestClaimScan looks for due orders after 60,000 were finished within an hour, up to now, and none of their entries
// could be taken out of the index, because somebody still reads what was before.
func TestClaimScan(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).AdminURL
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
		SELECT n::text, 'charging', now() + interval '10 seconds' - make_interval(secs => (60000 - n) * 0.06), 'USD', 'widget', 1
		FROM generate_series(1, 60000) AS n`)
	if _, err := reader.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orders LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	run(`UPDATE orders SET status = 'completed', ended_as = 'completed', due_at = NULL`)
	run(`INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('left behind', 'charging', now(), 'USD', 'widget', 1)`)
	for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
		s := prepare(t, conn, "LeasesDue", map[string]string{"floor": "now() - interval '1 minute'", "most": "500"})
		if pages, plan := s.buffers(t, kind, 300); pages >= 300 {
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

// TestShortenScan looks for waits that are too long among 120,000 orders that wait for long, as they may. Only the index is read, and
// not their rows.
func TestShortenScan(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	if _, err := conn.Exec(t.Context(), `ALTER TABLE orders DISABLE TRIGGER USER;
		INSERT INTO orders (order_id, status, hold, due_at, currency, item, amount)
		SELECT n::text, 'pending', CASE WHEN n % 2 = 0 THEN 'callback' ELSE 'scheduled' END, now() + make_interval(secs => n * 0.025 * CASE WHEN n % 2 = 0 THEN 1 ELSE 100 END),
			'USD', 'widget', 1 FROM generate_series(1, 120000) AS n ORDER BY hashint4(n);
		INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('far', 'charging', now() + interval '1 day', 'USD', 'widget', 1)`); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
		s := prepare(t, conn, "LeasesShorten", map[string]string{"holds": "ARRAY['', 'retry', 'callback', 'approval']",
			"seconds": "ARRAY[31, 960, 3600, 7200]", "policies": "ARRAY[1]", "most": "10000"})
		if pages, plan := s.buffers(t, kind, 15_000); pages >= 15_000 {
			t.Errorf("%d pages\n%s", pages, plan)
		} else {
			t.Logf("%d pages", pages)
		}
		s.deallocate(t)
	}
	var left int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM orders WHERE hold IS NULL AND due_at < now() + interval '1 minute'`).Scan(&left); err != nil || left != 1 {
		t.Errorf("%d orders were found: %v", left, err)
	}
}

// TestPlansOfEvents: numbering and reading events looks at rows by keys, in an empty database and in one with many rows,
// and is cheap enough by the planner's measure not to be compiled (JIT), which takes longer than all of it.
func TestPlansOfEvents(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	arguments := map[string]string{"owner": "'00000000-0000-0000-0000-000000000000'", "fence": "1", "first_event_no": "1", "after": "0", "most": "4000",
		"order_id": "'order-7'", "event_no": "17"}
	for _, filled := range []bool{false, true} {
		if filled {
			for _, statement := range []string{
				`INSERT INTO orders (status, order_id, currency, item, amount, due_at) SELECT 'pending', 'order-' || n, 'EUR', 'widget', 9.99, now() FROM generate_series(1, 30000) AS n`,
				`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, position) SELECT order_no, s, 'charging', 'charging', 1, order_no + s FROM orders, generate_series(1, 5) AS s`,
				`INSERT INTO event_batches (first_event_no, last_event_no, position_from, position_to, epoch, whole)
					SELECT n * 500 + 1, n * 500 + 500, n * 100, n * 100 + 100, 1, false FROM generate_series(0, 100) AS n`,
				`ANALYZE orders, transitions, event_batches`,
			} {
				if _, err := conn.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, name := range []string{"EventBatchAdd", "EventBatchesFrom", "EventBatchesOfOrder", "EventsOfBatch"} {
			s := prepare(t, conn, name, arguments)
			if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan"); err != nil {
				t.Fatal(err)
			}
			var lines []string
			rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE "+s.name+"("+strings.Join(s.args, ", ")+")")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				lines = append(lines, string(rows.RawValues()[0]))
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			if read := regexp.MustCompile(`Seq Scan on (transitions|orders|refunds)\b`).FindString(plan); read != "" || strings.Contains(plan, "JIT:") {
				t.Errorf("%s, filled %t: %s\n%s", name, filled, read, plan)
			}
			s.deallocate(t)
		}
	}
}

// TestHistoryPlans reads fifty rows of a history of 50,000, from either end and from the middle.
func TestHistoryPlans(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	for _, statement := range []string{
		`ALTER TABLE transitions DISABLE TRIGGER USER`,
		`INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT 7, n, 'charging', 'charging', 1 FROM generate_series(1, 50000) AS n`,
		`INSERT INTO step_calls (order_no, call, fence, generation, step, operation) SELECT 7, n, 1, 0, 'charge', 'do' FROM generate_series(-25000, 25000) AS n`,
		`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) SELECT 'lamp', n, 'adjustment', 1, n, 0, 'ann', 'r' || n FROM generate_series(1, 50000) AS n`,
		`VACUUM ANALYZE stock_movements`, `VACUUM ANALYZE transitions`, `VACUUM ANALYZE step_calls`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	const pagesOfHistory = 30
	for _, name := range []string{"TransitionsOf", "TransitionsOfNewest", "CallsOf", "CallsOfNewest", "StockMovementsOf", "StockMovementsOfNewest"} {
		for _, span := range [][2]string{{"-2147483648", "2147483647"}, {"10000", "2147483647"}, {"-2147483648", "10000"}} {
			s := prepare(t, conn, name, map[string]string{"order_no": "7", "item": "'lamp'", "after": span[0], "before": span[1], "most": "50", "durable": "false"})
			for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
				if pages, plan := s.buffers(t, kind, pagesOfHistory); pages >= pagesOfHistory {
					t.Errorf("%s between %v, %s: %d pages\n%s", name, span, kind, pages, plan)
				}
			}
			s.deallocate(t)
		}
	}
}

// sent makes 100,000 deliveries of three endpoints, nearly all delivered; four of each order, and as many of one item as of all orders together.
const sent = `
INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, finished_at, due_at, attempted_at, body)
SELECT n % 3 + 1, n, 'order.completed', 'evt_' || n, CASE WHEN n % 2 = 0 THEN 'item hot' ELSE 'order ' || n / 12 END, state,
  CASE WHEN state IN ('delivered', 'skipped') THEN now() END, CASE WHEN state = 'pending' THEN now() END, now(), '{}'
FROM generate_series(1, 100000) AS n, LATERAL (SELECT CASE WHEN n % 10000 = 7 THEN 'exhausted' WHEN n % 9973 = 0 THEN 'skipped' WHEN n > 99900 THEN 'pending' ELSE 'delivered' END) AS s(state);
VACUUM ANALYZE webhook_deliveries;`

// TestDeliveryListPlans reads a page of fifty deliveries by each filter, from the newest on and from the middle.
func TestDeliveryListPlans(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).AdminURL)
	for _, part := range strings.SplitAfter(sent, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	for _, filter := range []struct{ subject, state string }{
		{"''", "''"}, {"''", "'delivered'"}, {"''", "'pending'"}, {"''", "'exhausted'"}, {"''", "'skipped'"},
		{"'order 77'", "''"}, {"'item hot'", "''"}, {"'item hot'", "'delivered'"}, {"'order none'", "''"},
	} {
		for _, before := range []string{"9223372036854775807", "50000"} {
			s := prepare(t, conn, "WebhookDeliveriesList", map[string]string{
				"subject": filter.subject, "state": filter.state, "endpoint_no": "2", "before": before, "most": "51"})
			for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
				if pages, plan := s.buffers(t, kind, pagesOfDeliveries); pages >= pagesOfDeliveries {
					t.Errorf("%v before %s, %s: %d pages\n%s", filter, before, kind, pages, plan)
				}
			}
			s.deallocate(t)
		}
	}
	deliveriesOfAnOrder(t, conn)
}

// deliveriesOfAnOrder: of an order with many deliveries at many endpoints, only the newest are read.
func deliveriesOfAnOrder(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `INSERT INTO webhook_endpoints (url, event_no, created_by, secret)
		SELECT 'https://shop.example/', 0, 'test', 'whsec_' FROM generate_series(1, 3)`); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"'order 77'", "'item hot'", "'order none'"} {
		s := prepare(t, conn, "WebhookDeliveriesOfSubject", map[string]string{"subject": subject, "order_id": "'x'", "most": "50"})
		for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
			if pages, plan := s.buffers(t, kind, pagesOfDeliveries); pages >= pagesOfDeliveries {
				t.Errorf("%s, %s: %d pages\n%s", subject, kind, pages, plan)
			}
		}
		s.deallocate(t)
	}
}

// pagesOfDeliveries is more than it takes to find fifty deliveries and to read each by its number. All would be thousands.
const pagesOfDeliveries = 600
