package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestVerification(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setup(t)
	if got := b.verified(t, b.get(t, "/api/verification")); got.State != "none" || got.Report != nil {
		t.Errorf("before the first one: %+v", got)
	}
	b.process(t, `{"orderId":"v-1","amount":"9.99","item":"lamp"}`).wantStatus(t, http.StatusOK)
	started := b.call(t, "POST /api/verification", "")
	if started.wantStatus(t, http.StatusAccepted); b.verified(t, started).StartedBy != "local" {
		t.Errorf("started: %s", started.body)
	}
	right := b.proved(t)
	if !right.Report.Right || right.Report.Orders["completed"] != 1 || right.Report.Money[0].Kept != "9.99" || right.Done != 2 || right.Total != 2 {
		t.Errorf("report: %+v", right)
	}

	b.exec(t, `SET session_replication_role = replica; UPDATE inventory SET reserved = 7 WHERE item = 'lamp'; RESET session_replication_role`)
	b.call(t, "POST /api/verification", "").wantStatus(t, http.StatusAccepted)
	wrong := b.proved(t)
	for _, check := range wrong.Report.Checks {
		if check.Name == "stock" && (check.About != "items" || len(check.Offenders) != 1 || check.Offenders[0].ID != "lamp") ||
			check.Name != "stock" && check.Violations > 0 {
			t.Errorf("check: %+v", check)
		}
	}
	if wrong.Report.Right {
		t.Error("the books are called right")
	}
	b.books.Stop()
	b.call(t, "POST /api/verification", "").wantProblem(t, http.StatusServiceUnavailable, "stopping")
}

func (b *bundle) verified(t *testing.T, a answer) (out verification) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(a.body), &out), a.body)
	return out
}

// proved waits for the end of the verification that is running.
func (b *bundle) proved(t *testing.T) (out verification) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if out = b.verified(t, b.get(t, "/api/verification")); out.State == "done" {
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("no end: %+v", out)
		}
	}
}

// TestOverviewOnTheWire: what the engine's tests have looked at comes to the caller.
func TestOverviewOnTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "held", nil)
	b.process(t, `{"orderId":"done","amount":1,"item":"widget"}`).wantStatus(t, http.StatusOK)
	for target, wants := range map[string][]string{
		"/api/overview": {`{"status":"completed","orders":1,"more":false}`, `"hold":"attention","orders":`,
			`"oldest":{"orderId":"held"`, `"replicas":[]`, `"providerSteps":[]`},
		"/api/error-groups": {`"groups":[`, `"more":false`},
	} {
		a := b.get(t, target)
		a.wantStatus(t, http.StatusOK)
		for _, want := range wants {
			if !strings.Contains(a.body, want) {
				t.Errorf("%s: %s is not in %s", target, want, a.body)
			}
		}
	}
}
