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

	"pawl/db"
	"pawl/test/dbtest"

	"github.com/jackc/pgx/v5"
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
