package webhooks_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/dbtest"
)

// TestPlans: no statement reads all deliveries or all of the history, also in a database that is empty when it is planned.
func TestPlans(t *testing.T) {
	t.Parallel()
	conn, err := dbtest.New(t).Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`Seq Scan on (webhook_deliveries|transitions|stock_movements|orders|refunds)`)
	seen := 0
	for _, file := range []string{"../../db/webhooks.sql.go", "../../db/events.sql.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile("(?s)= `-- name: (Webhook\\w+|EventsByKey) [^\n]*\n(.*?)\n`").FindAllStringSubmatch(string(source), -1) {
			seen++
			if plan := planOf(t, conn.Conn(), match[1], match[2]); whole.MatchString(plan) {
				t.Errorf("%s\n%s", match[1], plan)
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d statements", seen)
	}
}

func planOf(t *testing.T, conn *pgx.Conn, name, statement string) string {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "PREPARE "+name+" AS "+statement); err != nil {
		t.Fatal(name, err)
	}
	var parameters int
	if err := conn.QueryRow(t.Context(), `SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1`, strings.ToLower(name)).Scan(&parameters); err != nil {
		t.Fatal(name, err)
	}
	execute := "EXPLAIN (COSTS OFF) EXECUTE " + name
	if parameters > 0 {
		execute += "(" + strings.Repeat("NULL, ", parameters-1) + "NULL)"
	}
	rows, err := conn.Query(t.Context(), execute)
	if err != nil {
		t.Fatal(name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(name, err)
	}
	return strings.Join(lines, "\n")
}
