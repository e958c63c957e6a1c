package faults

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// TestPausedInACall stops a replica in the middle of calls to its provider, lets another one finish the orders, and wakes
// it up: the answers it finds then are too late. They are kept, counted, and move nothing.
func TestPausedInACall(t *testing.T) {
	build(t)
	t.Parallel()
	for round := range rounds(t, 1) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			t.Parallel()
			pausedInACall(t)
		})
	}
}

func pausedInACall(t *testing.T) {
	t.Helper()
	const late = `SELECT count(*) FROM books.step_calls AS a WHERE a.order_id = $1 AND a.step = $2 AND a.fence = 1 AND a.fenced`
	s := openShop(t, looking, 10*time.Second)
	steps := []string{"charge", "reserve", "confirm"}
	var rules []simulator.Rule
	for _, step := range steps {
		rules = append(rules, simulator.Rule{Fault: simulator.Slow, Delay: overlong, Times: 1, Step: step, OrderPrefix: "paused-" + step})
	}
	s.faults(rules...)
	sleeps := s.open(1)
	for _, step := range steps {
		s.order("paused-" + step)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, step := range steps {
		_, err := s.provider.Await(ctx, func(r simulator.Request) bool { return r.OrderID == "paused-"+step && r.Step == step })
		if err != nil {
			t.Fatal(err)
		}
	}
	sleeps.all[0].signal(syscall.SIGSTOP)
	s.open(1)
	took := s.settle(3 * patience)
	sleeps.all[0].signal(syscall.SIGCONT)
	for _, step := range steps {
		eventually(t, patience, "the late answer is kept", func() bool { return count(t, s.database.URL, late, "paused-"+step, step) == 1 })
		for _, o := range s.provider.Books("paused-" + step) {
			if o.Effects != 1 {
				t.Errorf("%s happened %d times\n%s", o.Step, o.Effects, s.trace(o.OrderID))
			}
		}
	}
	if n := metric(t, sleeps.addresses()[0], "pawl_step_answers_fenced_total"); n != int64(len(steps)) {
		t.Errorf("%d answers were fenced, want %d", n, len(steps))
	}
	for id, o := range s.outcomes() {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, s.trace(id))
		}
	}
	s.prove()
	t.Logf("taken over and finished in %s; late answers: %v", took, query[string](t, s.database.URL,
		`SELECT format('%s %s %s', a.order_id, a.outcome, a.code) FROM books.step_calls AS a WHERE a.fenced`))
}
