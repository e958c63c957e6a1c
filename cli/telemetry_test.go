package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pawl/db"
	"pawl/dbtest"
	"pawl/engine"
	"pawl/policy/store"
)

func TestMetricsOfSteps(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	pool, err := db.Open(t.Context(), database.URL, db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	used, err := store.Use(t.Context(), db.New(pool), []byte(`
charge: {executor: http, url: "http://127.0.0.1:1/c", undoUrl: "http://127.0.0.1:1/u", breaker: {failures: 1, open: 1h}, retry: {initial: 1ms, cap: 1ms}}`), "test")
	if err != nil {
		t.Fatal(err)
	}
	orders := engine.New(pool, engine.Config{RecoveryInterval: 10 * time.Millisecond})
	orders.Start()
	t.Cleanup(func() {
		if err := orders.Stop(t.Context()); err != nil {
			t.Log(err) // the orders are held, or under way
		}
	})
	if _, err := orders.Admit(t.Context(), engine.Input{OrderID: "o", Amount: decimal.MustParse("1"), Item: "i"}); err != nil {
		t.Fatal(err)
	}
	registry := newMetrics(orders, pool)
	labels := fmt.Sprintf(`{policy="%d",step="charge"} `, used.Version)
	want := []string{
		`pawl_step_calls_total{operation="do",outcome="retry",step="charge"} 1`,
		"pawl_step_breaker_state" + labels + "2", "pawl_step_calls_in_flight" + labels + "0", "pawl_step_queue" + labels + "0",
		`pawl_orders_on_hold{hold="retry"} 1`, `pawl_orders_on_hold{hold="attention"} 0`, "pawl_late_undos_open 0", "pawl_refunds_open 0",
		"pawl_step_answers_fenced_total 0", "pawl_orders_expired_total 0", "pawl_orders_unknown_policy_total 0",
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		w := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		text := w.Body.String()
		missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return strings.Contains(text, "\n"+line+"\n") })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("missing %q in\n%s", missing, text)
		}
	}
}
