package engine_test

import (
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/simulator"
)

// A thousand orders past their deadline whose undoing waits (for a person, for a provider that is
// down) are found first each time: no other deadline is ever kept.
func TestDeadlineBehindAThousandThatAreBeingUndone(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.exec(t, `SET session_replication_role = replica; INSERT INTO orders (order_id, status, hold, outcome, stop_requested, complete_by, currency, item, amount, seq, generation)
		SELECT 'stuck ' || i, 'refunding', 'attention', 'canceled', 'deadline', now() - interval '1 hour', 'USD', 'x', 1, 1, 0
		FROM generate_series(1, 1000) AS i; SET session_replication_role = origin`)
	s.use(t, allAtTheSimulator+`approval: [{items: [widget]}]`)
	in := request("late")
	in.CompleteBy = time.Now().Add(50 * time.Millisecond)
	s.admit(t, in)
	s.until(t, "late", "canceled")
	s.exec(t, `SET session_replication_role = replica; DELETE FROM orders WHERE order_id LIKE 'stuck %'; SET session_replication_role = origin`)
}

// One late effect at a provider that does not answer keeps deadlines of all orders waiting.
func TestDeadlineWhileALateEffectIsUndone(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, engine.Config{RecoveryInterval: often})
	s.use(t, strings.Replace(allAtTheSimulator, "url: SIM", "url: SIM, timeout: 10m", 1)) // longer than anybody looks
	s.faults(t, simulator.Rule{Fault: simulator.Decline, Step: "reserve", OrderPrefix: "old"})
	for _, id := range []string{"old 1", "old 2", "old 3"} {
		s.process(t, request(id))
	}
	s.faults(t, simulator.Rule{Fault: simulator.Hang, Step: "charge", Operation: "undo"})
	s.use(t, allAtTheSimulator+`approval: [{items: [widget]}]`)
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders`)
	eventually(t, "a late effect is being undone", func() bool { return value[int](t, s.Pool, `SELECT max(claims) FROM late_undos`) > 0 })
	in := request("late")
	in.CompleteBy = time.Now().Add(50 * time.Millisecond)
	s.admit(t, in)
	s.until(t, "late", "canceled") // while the undo hangs, for as long as its time-out
	s.faults(t)
}
