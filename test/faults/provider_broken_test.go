package faults

import (
	"strings"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// TestProviderThatBreaksTheContract charges an order after its key was undone. Nothing that the service does can keep it
// from that; the comparison of the books names the order.
func TestProviderThatBreaksTheContract(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, looking, callLimit)
	s.faults(simulator.Rule{Fault: simulator.LateAfterVoid, Step: "charge", Delay: 10 * time.Second, OrderPrefix: "late"})
	s.open(1)
	s.order("good")
	s.order("late")
	s.lateCharge()
}

// lateCharge cancels an order that is charged afterwards.
func (s *shop) lateCharge() {
	s.t.Helper()
	t := s.t
	eventually(t, patience, "the order is canceled", func() bool { return s.ask("cancel", "late") })
	s.settle(3 * patience)
	if o := s.outcomes()["late"]; o.Status != "canceled" {
		t.Fatalf("%s\n%s", o, s.trace("late"))
	}
	eventually(t, patience, "it is charged all the same", func() bool { k := s.books()["late"]; return k != nil && k.live["charge"] == 1 })
	code, said := run(t, "verify", "--database-url", s.database.URL, "--provider", s.url)
	if code != 1 || !strings.Contains(said, `"late": canceled, charge of generation 0: undone here, live at the provider`) {
		t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace("late"))
	}
	if strings.Contains(said, `"good"`) {
		t.Errorf("the good order is named:\n%s", said)
	}
	verify(t, s.database.URL) // ours are in order
}
