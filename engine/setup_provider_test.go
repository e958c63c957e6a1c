package engine_test

import (
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/policy/store"
	"pawl/internal/simulator"
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
		err = store.Activate(t.Context(), query, store.Activation{Version: used.Version, Actor: "test"})
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
