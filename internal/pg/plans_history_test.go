package pg_test

import (
	"testing"

	"pawl/test/dbtest"
)

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
