package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// executor is something that charges, with what it knows of that.
type executor struct {
	policy string
	// charged says how often it has charged an order, and how often it took that back.
	charged func(t *testing.T, s *shop, orderID string) (times, undone int)
}

// executors are all there are: the ledger, which charges in the commit of its move, and those that are remote. Stock is
// the ledger's, so that an order is refused after its charge wherever that was made.
func executors(t *testing.T, s *shop) map[string]executor {
	t.Helper()
	ofSimulator := func(_ *testing.T, s *shop, orderID string) (times, undone int) {
		for _, e := range s.sim.Books(orderID) {
			if e.Step != "charge" {
				continue
			}
			times += e.Effects
			if e.State == simulator.Undone {
				undone++
			}
		}
		return times, undone
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("sk_test_1"), 0o600); err != nil {
		t.Fatal(err)
	}
	stripe := fmt.Sprintf("charge: {executor: stripe, url: SIM, secret: %q", "file:"+key)
	return map[string]executor{
		"ledger": {"{}", func(t *testing.T, s *shop, orderID string) (times, undone int) {
			t.Helper()
			return value[int](t, s.Pool, `SELECT count(*) FROM books.charges WHERE order_id = $1`, orderID),
				value[int](t, s.Pool, `SELECT count(*) FROM books.refunds WHERE order_id = $1`, orderID)
		}},
		"simulator":                   {"charge: {executor: simulator, url: SIM}", ofSimulator},
		"http":                        {"charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: SIM/charge/refund}", ofSimulator},
		"stripe":                      {stripe + "}", ofSimulator},
		"stripe, captured on confirm": {stripe + ", capture: on_confirm}\nconfirm: {executor: stripe}", ofSimulator},
	}
}

// TestEveryExecutor runs whole orders: what an order is promised does not depend on who does its steps.
func TestEveryExecutor(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ledger", "simulator", "http", "stripe", "stripe, captured on confirm"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			x := executors(t, s)[name]
			s.use(t, x.policy)
			keeps(t, s, func(orderID string) (int, int) { return x.charged(t, s, orderID) })
			taken := map[string]int{"well": 1, "crowd": 1, "refused": 0}
			for _, e := range s.sim.Books("") { // what was only authorized is taken, of orders that were not refused
				if e.Step == "confirm" && (e.State != simulator.Live || e.Effects != taken[e.OrderID]) {
					t.Errorf("captured: %+v", e)
				}
			}
		})
	}
}

// keeps sends three orders: one that goes well and is sent again, one that fifty send at once, one that is refused.
func keeps(t *testing.T, s *shop, charged func(orderID string) (times, undone int)) {
	t.Helper()
	check := func(orderID string, o orders.Order, want fsm.State, wantUndone int) {
		if times, undone := charged(orderID); o.Status != want || times != 1 || undone != wantUndone {
			t.Errorf("%s: %s, charged %d times and undone %d times", orderID, brief(o), times, undone)
		}
	}
	well := paid("well")
	s.process(t, well)
	check("well", s.process(t, well), fsm.Completed, 0)

	crowd := paid("crowd")
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			o, err := s.engines[i%2].Process(t.Context(), crowd)
			if err != nil || o.Status != fsm.Completed {
				t.Errorf("one of a crowd: %v, %s", err, brief(o))
			}
		})
	}
	callers.Wait()
	check("crowd", s.get(t, "crowd"), fsm.Completed, 0)

	refused := paid("refused")
	refused.Item = fmt.Sprintf("gone for %s", t.Name())
	s.setStock(t, refused.Item, 0)
	check("refused", s.process(t, refused), fsm.Failed, 1)
}
