package engine_test

import (
	"fmt"
	"testing"

	"pawl/internal/simulator"
)

// A stock row that somebody holds stalls no other item, also where the confirmation is remote and the stock ours.
func TestLockedStockRowRemote(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, "charge: {executor: simulator, url: SIM}\nconfirm: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 20ms}, breaker: {open: 10ms}}\n")
	s.faults(t, simulator.Rule{Fault: simulator.RefuseConnection, Step: "confirm"})
	for i := range 20 {
		in := request(fmt.Sprintf("order %d", i))
		in.Item = "free"
		if i%5 == 0 {
			in.Item = "locked"
		}
		s.admit(t, in)
	}
	eventually(t, "all are reserved", func() bool {
		return value[int](t, s.Pool, `SELECT count(*) FROM orders WHERE status = 'confirming'`) == 20
	})
	tx, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM inventory WHERE item = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	s.faults(t)
	completed := func(item string) int {
		return value[int](t, s.Pool, `SELECT count(*) FROM orders WHERE item = $1 AND status = 'completed'`, item)
	}
	eventually(t, "those of the free item are completed", func() bool { return completed("free") == 16 })
	if n := completed("locked"); n > 0 {
		t.Errorf("%d completed although their stock was locked", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others are, too", func() bool { return completed("locked") == 4 })
}
