package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPagesOfLargeOrders lists orders that are as large as they can be: a page ends before it has all it was asked for.
func TestPagesOfLargeOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const number, page = 34, 17 // a page ends with the order that is over a megabyte
	b.exec(t, `WITH o AS (
		INSERT INTO pawl.orders (order_id, status, fence, hold, hold_reason, amount, currency, item, customer_id, metadata)
		SELECT 'large-' || n, 'charging', 1, 'attention', 'look at me', 1, 'USD', 'i', 'c', jsonb_build_object('a', repeat('x', 64000))
		FROM generate_series(1, $1::int) AS n RETURNING order_no)
		INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence) SELECT o.order_no, 1, 'pending', 'charging', 1 FROM o`, number)
	for _, filter := range []string{"", "&item=i", "&customerId=c", "&hold=attention", "&status=charging"} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			var ids []string
			cursor := ""
			for range number/page + 1 {
				a := b.get(t, "/api/orders?limit=200"+filter+cursor)
				listed := a.decoded(t)
				if len(listed.Orders) != page || len(a.body) > 5<<18 {
					t.Errorf("a page has %d orders, %d bytes", len(listed.Orders), len(a.body))
				}
				for _, o := range listed.Orders {
					ids = append(ids, o.OrderID)
				}
				if cursor = "&cursor=" + listed.NextCursor; listed.NextCursor == "" {
					break
				}
			}
			slices.Sort(ids)
			if n := len(slices.Compact(ids)); n != number || len(ids) != number {
				t.Errorf("%d orders, %d of them different", len(ids), n)
			}
		})
	}
	t.Run("many of them in bulk", func(t *testing.T) {
		t.Parallel()
		for _, limit := range []int{page - 1, page + 1, 2 * number} {
			a := b.call(t, "POST /api/bulk/cancel?dryRun=true", fmt.Sprintf(`{"filter":{"item":"i","limit":%d}}`, limit))
			if want := fmt.Sprintf(`"matched":%d,"applied":%d,`, min(limit, number), min(limit, number)); !strings.Contains(a.body, want) {
				t.Errorf("%.200s, want %s", a.body, want)
			}
		}
	})
}
