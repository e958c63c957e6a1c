package db_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// stats reads what the metrics show, from a database in use: it must not read a table for that, every few seconds.
func stats(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const history = `INSERT INTO transitions (order_no, fence, seq, to_status) SELECT order_no, 1, seq, status FROM orders;
VACUUM (ANALYZE) transitions;`
	for _, part := range strings.SplitAfter(history, ";\n") {
		if _, err := conn.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	most := map[string]int{"ordersended": 3000, "errorgroups": 3000} // 20,000 orders; 2,000 of them that failed, far apart
	for _, s := range []statement{
		prepare(t, conn, "OrdersHeldStats", map[string]string{"most": "10000", "oldest": "1000"}),
		prepare(t, conn, "OrderAge", map[string]string{"order_no": "1000"}),
		prepare(t, conn, "LateUndosCount", map[string]string{"most": "10000"}),
		prepare(t, conn, "OrdersUnfinished", map[string]string{"most": "10000"}),
		prepare(t, conn, "OrdersEnded", map[string]string{"most": "10000", "newest": "20000"}),
		prepare(t, conn, "ErrorGroups", map[string]string{"most": "10000", "groups": "200"}),
	} {
		for _, kind := range []string{"force_custom_plan", "force_generic_plan"} {
			if pages, plan := s.buffers(t, kind, cmp.Or(most[s.name], 500)); plan != "" {
				t.Errorf("%s with a %s looks at %d pages:\n%s", s.name, kind, pages, plan)
			}
		}
	}
}
