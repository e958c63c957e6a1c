package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/dbtest"
)

// statement is one of queries/, prepared on a connection of its own, so that its plan can be looked at: the one made
// for its arguments and the generic one, which PostgreSQL may take from the sixth execution on.
type statement struct {
	conn *pgx.Conn
	name string
	args []string // as SQL, by their place
}

var parameter = regexp.MustCompile(`@(\w+)|sqlc\.narg\('(\w+)'\)`)

// prepare prepares a statement of a file of queries. Arguments are SQL text by name.
func prepare(t testing.TB, conn *pgx.Conn, name string, args map[string]string) statement {
	t.Helper()
	s := statement{conn: conn, name: strings.ToLower(name)}
	places := map[string]int{}
	text := parameter.ReplaceAllStringFunc(queryText(t, name), func(match string) string {
		parts := parameter.FindStringSubmatch(match)
		parameter := parts[1] + parts[2]
		if places[parameter] == 0 {
			arg, ok := args[parameter]
			if !ok {
				t.Fatalf("%s: no argument for %s", name, parameter)
			}
			s.args = append(s.args, arg)
			places[parameter] = len(s.args)
		}
		return fmt.Sprintf("$%d", places[parameter])
	})
	text = strings.ReplaceAll(text, "sqlc.embed(o)", "o.*")
	if _, err := conn.Exec(t.Context(), "PREPARE "+s.name+" AS "+text); err != nil {
		t.Fatalf("%s: %v", name, err)
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
	for _, file := range []string{"order_lists", "orders", "leases", "inventory", "transitions"} {
		all, err := os.ReadFile("../queries/" + file + ".sql")
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
	if err := s.conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+execute).Scan(&text); err != nil {
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

// stored makes 200,000 orders as they lie in a database in use: half of them for one item, nearly all completed, one in
// fifty failed or canceled, and some under way or held; one came every five seconds.
const stored = `
ALTER TABLE orders DISABLE TRIGGER USER;
INSERT INTO orders (order_id, created_at, currency, item, amount, status, seq, fence, ended_as, finished_at, due_at, hold, outcome)
SELECT md5(n::text), now() - make_interval(secs => (200000 - n) * 5), 'USD',
  CASE WHEN n IN (7, 50, 100001, 150000, 199999) THEN 'rare' WHEN n % 2 = 0 THEN 'hot' ELSE 'item ' || n % 10000 END, 10,
  status, 4, 1, ended, CASE WHEN ended <> '' THEN now() END, CASE WHEN ended IS NULL AND hold IS NULL THEN now() + interval '1 hour' END,
  hold, CASE WHEN ended <> 'completed' THEN ended END
FROM generate_series(1, 200000) AS n, LATERAL (SELECT CASE WHEN n % 100 = 0 THEN 'failed' WHEN n % 100 = 50 THEN 'canceled'
    WHEN n > 199980 THEN 'charging' WHEN n % 10000 = 4 THEN 'reserving' ELSE 'completed' END) AS s(status),
  LATERAL (SELECT CASE WHEN status IN ('failed', 'canceled', 'completed') THEN status END,
    CASE WHEN status = 'reserving' THEN 'attention' END) AS e(ended, hold);
ALTER TABLE orders ENABLE TRIGGER USER;
INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE status <> 'charging';
INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, 1 FROM orders WHERE status = 'completed';
VACUUM (ANALYZE, INDEX_CLEANUP ON);`

// listed says which statements serve which lists.
var listed = []struct {
	name, status string
	items        []string
}{
	{"OrdersList", "NULL", nil}, {"OrdersList", "'completed'", nil},
	{"OrdersListEnded", "'failed'", nil}, {"OrdersListEnded", "'canceled'", nil},
	{"OrdersListUnfinished", "'charging'", someItems}, {"OrdersListUnfinished", "'reserving'", someItems},
	{"OrdersListUnfinished", "'releasing'", append(someItems, "NULL")},
	{"OrdersListItem", "false", someItems}, {"OrdersListItem", "true", someItems},
	{"OrdersListItemEnded", "'failed'", someItems}, {"OrdersListItemEnded", "'canceled'", someItems},
}

var someItems = []string{"'hot'", "'rare'", "'item 77'", "'nobody''s'"}

// TestListPlans reads a page of fifty of every list, for the newest, the oldest and a window in between.
func TestListPlans(t *testing.T) {
	t.Parallel()
	conn := connectPlainly(t, dbtest.New(t).URL)
	for _, part := range strings.SplitAfter(stored, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	windows := []map[string]string{
		span(t, conn, "", ""), span(t, conn, "1 day", ""), span(t, conn, "", "11 days"), span(t, conn, "6 days", "5 days"),
		span(t, conn, "6 days", "6 days"), span(t, conn, "-1 day", "-2 days"),
	}
	worst := map[string]int{}
	for _, list := range listed {
		for _, item := range append(list.items[:len(list.items):len(list.items)], "NULL")[:max(1, len(list.items))] {
			for _, window := range windows {
				args := map[string]string{"status": list.status, "completed": list.status, "item": item, "most": "50"}
				maps.Copy(args, window)
				s := prepare(t, conn, list.name, args)
				for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
					pages, plan := s.buffers(t, kind, 1000)
					if pages >= 1000 {
						t.Errorf("%s %v reads %d pages with %s\n%s", list.name, s.args, pages, kind, plan)
					}
					worst[list.name] = max(worst[list.name], pages)
				}
				s.deallocate(t)
			}
		}
	}
	t.Logf("pages read at most: %v", worst)
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
