package books_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/books"
)

// restock refunds one cent of a completed order, and puts a unit back.
func (s *shop) restock(id string) {
	s.Helper()
	o := s.order(id)
	one, request := int32(1), "ticket-1"
	rows, err := s.q.RefundAsk(s.ctx, db.RefundAskParams{
		OrderNo: o.OrderNo, Seq: o.Seq, Amount: decimal.MustParse("0.01"), Restock: &one, Verb: "refund", RequestID: &request})
	s.must(err)
	if len(rows) != 1 {
		s.Fatalf("order %q was not refunded", id)
	}
}

// What refunds put back is in the stock as they say. Where no stock is counted, nothing is put back, and none is missing
// when it is counted later.
func TestRestocksAreProved(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	const earlier = "UPDATE stock_movements SET at = at - interval '2 minutes' WHERE kind = 'set' AND item = 'lamp'; "
	const made = "kind = 'restock' AND item = 'lamp'"
	restocked := newShop(t)
	restocked.stock("lamp", 10)
	for id, item := range map[string]string{"sold": "lamp", "uncounted": "rug"} {
		restocked.admit(id, item)
		restocked.moveTo(id, fsm.Completed)
		restocked.restock(id)
	}
	restocked.stock("rug", 7)
	for name, fault := range map[string]struct { //nolint:paralleltest // as above
		plant string
		want  found
	}{
		"as they should be":             {"", found{}},
		"of another refund":             {"UPDATE stock_movements SET request_id = 'refund 2 of sold' WHERE " + made, found{"stock": {"lamp"}}},
		"another number":                {"UPDATE refunds SET restock = 2 WHERE number = 1 AND" + of("sold"), found{"stock": {"lamp"}}},
		"never asked for":               {"UPDATE refunds SET restock = NULL WHERE number = 1 AND" + of("sold"), found{"stock": {"lamp"}}},
		"an adjustment after all":       {"UPDATE stock_movements SET kind = 'adjustment' WHERE " + made, found{"stock": {"lamp"}}},
		"refund says so, not the stock": {"UPDATE inventory SET on_hand = on_hand - 1 WHERE item = 'lamp'; DELETE FROM stock_movements WHERE " + made, found{"stock": {"lamp"}}},
	} {
		t.Run(name, func(t *testing.T) {
			report := restocked.in(t).verifyWith(noGuards+earlier+fault.plant, books.Options{})
			if got := offenders(report); !reflect.DeepEqual(got, fault.want) {
				t.Errorf("found %v, want %v", got, fault.want)
			}
			for _, check := range report.Checks {
				for _, o := range check.Offenders {
					if !strings.Contains(o.Fault, "units of refund ") {
						t.Errorf("says %q", o.Fault)
					}
				}
			}
		})
	}
}
