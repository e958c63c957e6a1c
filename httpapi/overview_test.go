package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// TestOverviewOnTheWire: what the engine's tests have looked at comes to the caller.
func TestOverviewOnTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "held", nil)
	b.process(t, `{"orderId":"done","amount":1,"item":"widget"}`).wantStatus(t, http.StatusOK)
	for target, wants := range map[string][]string{
		"/api/overview":          {`{"status":"completed","orders":1,"more":false}`, `"hold":"attention","orders":`, `"oldest":{"orderId":"held"`, `"replicas":[]`, `"providerSteps":[]`},
		"/api/overview/activity": {`"replica":"`, `"points":[`}, // the first comes after ten seconds
		"/api/error-groups":      {`"groups":[`, `"more":false`},
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
