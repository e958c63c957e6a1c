package pg_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/dbtest"
)

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
