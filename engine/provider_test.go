package engine_test

import (
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/policy/store"
	"pawl/simulator"
)

// provider is a simulator that an engine reaches over HTTP.
type simulated struct {
	*simulator.Simulator
	door *door
	url  string
}

func newProvider(t testing.TB) *simulated {
	t.Helper()
	s := simulator.New()
	way := &door{behind: s}
	server := httptest.NewServer(way)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return &simulated{s, way, server.URL}
}

// quick is a policy with all steps at the provider, tried again at once. No call ends by its time-out.
func (p *simulated) quick(more string) string { return p.within(time.Minute, more) }

// within is quick with calls that may take so long.
func (p *simulated) within(timeout time.Duration, more string) string {
	text := more
	for _, step := range []string{"charge", "reserve", "confirm"} {
		text += fmt.Sprintf(`
%s:
  executor: simulator
  url: %s
  timeout: %s
  retry: {initial: 1ms, cap: 5ms, maxRetries: 7, budget: 5m}
`, step, p.url, timeout)
	}
	return text
}

// remote is an engine whose orders go by a policy.
func remote(t testing.TB, cfg engine.Config, policy string) *bundle {
	t.Helper()
	b := setupWith(t, cfg)
	b.activate(t, policy)
	return b
}

// activate makes a policy the active one, which the engine knows at once.
func (b *bundle) activate(t testing.TB, policy string) int32 {
	t.Helper()
	query := db.New(b.Pool)
	used, err := store.Use(t.Context(), query, []byte(policy), "test")
	if err == nil {
		err = store.Activate(t.Context(), query, used.Version, "test")
	}
	if err == nil {
		err = b.engine.LoadPolicies(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return used.Version
}

// standing is what the provider did for an order, net: how often each step stands.
func (p *simulated) standing(orderID string) string {
	n := map[string]int{}
	for _, e := range p.Books(orderID) {
		if e.State == simulator.Live {
			n[e.Step]++
		}
	}
	return fmt.Sprintf("charge %d reserve %d confirm %d", n["charge"], n["reserve"], n["confirm"])
}

func TestOrderAtAProvider(t *testing.T) {
	t.Parallel()
	const all, none = "charge 1 reserve 1 confirm 1", "charge 0 reserve 0 confirm 0"
	for _, test := range []struct {
		name   string
		rules  []simulator.Rule
		status fsm.State
		stands string
	}{
		{"everything goes well", nil, fsm.Completed, all},
		{"the charge is declined", rules("charge", simulator.Decline), fsm.Failed, none},
		{"the reservation is refused", rules("reserve", simulator.Decline), fsm.Failed, none},
		{"the confirmation is refused", rules("confirm", simulator.Decline), fsm.Failed, none},
		{"the charge fails twice", twice("charge", simulator.Error), fsm.Completed, all},
		{"the reservation is not answered, before its effect", twice("reserve", simulator.TimeoutBefore), fsm.Completed, all},
		{"the reservation is not answered, after its effect", twice("reserve", simulator.TimeoutAfter), fsm.Completed, all},
		{"the answer of the confirmation is cut off", twice("confirm", simulator.CutAfter), fsm.Completed, all},
		{"the connection is refused", twice("charge", simulator.RefuseConnection), fsm.Completed, all},
		{"nothing was done, twice", twice("charge", simulator.NotDone), fsm.Completed, all},
		{"the undo of the charge fails twice", append(rules("reserve", simulator.Decline),
			simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo", Times: 2}), fsm.Failed, none},
		{"the undo of the charge is not answered", append(rules("confirm", simulator.Decline),
			simulator.Rule{Fault: simulator.TimeoutAfter, Step: "charge", Operation: "undo", Times: 1}), fsm.Failed, none},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			if err := p.SetFaults(test.rules...); err != nil {
				t.Fatal(err)
			}
			b := remote(t, engine.Config{RecoveryInterval: 20 * time.Millisecond}, p.within(2*time.Second, "")) // some are never answered
			o := b.process(t, request("order 1"))
			if o.Status != test.status {
				t.Errorf("ended %s, want %s: %v", o.Status, test.status, o)
			}
			if got := p.standing("order 1"); got != test.stands {
				t.Errorf("at the provider: %s, want %s: %+v", got, test.stands, p.Books("order 1"))
			}
			if sum := p.Summary(); !sum.OK() {
				t.Errorf("something happened twice: %+v", sum)
			}
			b.settled(t)
		})
	}
}

func rules(step string, fault simulator.Fault) []simulator.Rule {
	return []simulator.Rule{{Fault: fault, Step: step}}
}

func twice(step string, fault simulator.Fault) []simulator.Rule {
	return []simulator.Rule{{Fault: fault, Step: step, Times: 2}}
}

// settled checks that the calls of all orders are closed and their histories whole.
func (b *bundle) settled(t testing.TB) {
	t.Helper()
	rows, err := b.Pool.Query(t.Context(), `SELECT format('%s: %s %s %s %s', order_id, step, operation, call, outcome)
		FROM books.step_calls WHERE finished_at IS NULL
		UNION ALL SELECT format('%s: %s history rows, seq %s', o.order_id, count(t), o.seq) FROM books.orders o
		LEFT JOIN books.transitions t USING (order_id) GROUP BY o.order_id, o.seq HAVING count(t) <> o.seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var fault string
		if err := rows.Scan(&fault); err != nil {
			t.Fatal(err)
		}
		t.Error(fault)
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
}
