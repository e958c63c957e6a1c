package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"pawl/internal/access"
)

type callerShape struct {
	Name       string
	Roles      access.Roles
	Open       bool
	Operations []string
}

// whoAmI asks /api/me.
func whoAmI(t *testing.T, api http.Handler, from string, header ...string) (c callerShape) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/me", nil)
	r.RemoteAddr = from
	a := send(t, api, r, header...)
	if err := json.Unmarshal([]byte(a.body), &c); err != nil || a.status != http.StatusOK || c.Roles == nil || c.Operations == nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return c
}

// TestWhoAmI asks with each credential. What a caller is told that it may do follows from the rules, which another test holds
// the service to.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	b, sent, _ := guarded(t)
	for name, credential := range sent {
		var header []string
		if credential != "" {
			header = []string{"Authorization", credential}
		}
		c := whoAmI(t, b.api, fromHere, header...)
		want, as := access.Roles{}, "anonymous"
		if access.AllRoles.Has(access.Role(name)) {
			want, as = access.Roles{access.Role(name)}, "token:only-"+name
		}
		if c.Name != as || !slices.Equal(c.Roles, want) || c.Open {
			t.Errorf("with %s: %+v", name, c)
		}
		for operation, rule := range rules {
			may := len(want) > 0 && rule.roles.Has(want[0]) && operation != "GET /metrics" && operation != "health"
			if slices.Contains(c.Operations, operation) != may {
				t.Errorf("with %s: %s is %v in what it may do", name, operation, !may)
			}
		}
	}
	if n := b.count(t, `SELECT count(*) FROM books.access_log WHERE operation = 'getCaller'`); n != 0 {
		t.Error("a question was logged as denied")
	}
}

func TestWhoAmIOnAnOpenService(t *testing.T) {
	t.Parallel()
	api, forOperations := NewWithOperations(nil, Config{})
	here := whoAmI(t, api, fromHere)
	if here.Name != "local" || !slices.Equal(here.Roles, access.AllRoles) || !here.Open || !slices.Contains(here.Operations, "listOrders") {
		t.Errorf("%+v", here)
	}
	for handler, may := range map[http.Handler]bool{api: false, forOperations: true} {
		if c := whoAmI(t, handler, fromHere); slices.Contains(c.Operations, "createWebhookEndpoint") != may {
			t.Errorf("an operation that only the address for operations has: %v", c.Operations)
		}
	}
	elsewhere := whoAmI(t, api, "192.0.2.7:40000")
	if elsewhere.Name != "anonymous" || !slices.Equal(elsewhere.Operations, []string{"processOrder", "getOrder"}) {
		t.Errorf("%+v", elsewhere)
	}
	if c := whoAmI(t, api, fromHere, "X-Forwarded-For", "127.0.0.1"); len(c.Roles)+len(c.Operations) != 0 {
		t.Errorf("through a proxy here: %+v", c)
	}
}

// TestWhoAmIInABrowser: a cookie counts for what a page of the service asks.
func TestWhoAmIInABrowser(t *testing.T) {
	t.Parallel()
	b, cookie := signedIn(t)
	if c := whoAmI(t, b.api, fromHere, "Cookie", cookie, "Sec-Fetch-Site", "same-origin"); c.Name != "token:maria" || !slices.Contains(c.Operations, "pauseOrder") {
		t.Errorf("%+v", c)
	}
	if c := whoAmI(t, b.api, fromHere, "Cookie", cookie, "Sec-Fetch-Site", "cross-site"); c.Name != "anonymous" || len(c.Operations) != 0 {
		t.Errorf("for another site: %+v", c)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/me", nil)
	r.RemoteAddr = "192.0.2.7:40000"
	send(t, b.api, r, "Authorization", "Bearer x").wantProblem(t, http.StatusForbidden, "tls_required")
}
