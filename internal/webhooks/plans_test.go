package webhooks_test

import (
	"regexp"
	"strings"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestPlans: no statement reads all deliveries or all of the history, also in a database that is empty when it is planned.
func TestPlans(t *testing.T) {
	t.Parallel()
	conn, err := dbtest.New(t).Pool.Acquire(t.Context())
	assert.NoError(t, err)
	defer conn.Release()
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`)))
	whole := regexp.MustCompile(`Seq Scan on (webhook_deliveries|transitions|stock_movements|orders|refunds)`)
	seen := 0
	dbtest.Generated(t, []string{"../../db/webhooks.sql.go", "../../db/webhook_changes.sql.go", "../../db/events.sql.go"}, func(name, sql string) {
		if !strings.HasPrefix(name, "Webhook") && name != "EventsByKey" {
			return
		}
		seen++
		if plan, err := dbtest.Explain(t.Context(), conn.Conn(), name, sql); err != nil || whole.MatchString(plan) {
			t.Errorf("%s: %v\n%s", name, err, plan)
		}
	})
	if seen < 15 {
		t.Errorf("%d statements", seen)
	}
}
