package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// The reply of the move that begins the call of the confirmation is lost: no call was made
// under it, and this process knows. The first call is refused: a person is asked all the same.
func TestRefusalAfterALostBeginAsksNobody(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, simulator.Rule{Fault: simulator.Decline, Step: "confirm"})
	var lost atomic.Bool
	s.proxy.On(func(statement string) fate {
		if statement == "RemoteReserved" && !lost.Swap(true) {
			return loseReply
		}
		return passes
	})
	s.admit(t, request("one"))
	start := time.Now()
	eventually(t, "it is at rest", func() bool {
		return value[bool](t, s.Pool, `SELECT ended_as IS NOT NULL OR coalesce(hold = 'attention', false) FROM orders`)
	})
	if got := status(t, s.Pool, "one"); got != "failed" {
		t.Errorf("after %s %s, held: %s", time.Since(start), got, value[string](t, s.Pool, `SELECT coalesce(hold_reason, '') FROM orders`))
	}
	for _, row := range column[string](t, s.Pool, `SELECT format('%s %s %s %s', call, step, operation, outcome) FROM step_calls ORDER BY call`) {
		t.Log(row)
	}
}
