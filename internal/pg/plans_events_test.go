package pg_test

import (
	"regexp"
	"strings"
	"testing"

	"pawl/test/dbtest"
)

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
