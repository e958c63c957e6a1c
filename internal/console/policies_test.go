package console_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/internal/access"
)

var etagField = regexp.MustCompile(`name="etag" value="([^"]*)"`)

// TestPolicyScreens: a text is written, checked, stored, compared and activated, each by a step of its own.
func TestPolicyScreens(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/policies").want(t, 200, `href="/console/policy?version=1"`, "active", "ledger", "by <bdi>test</bdi>")
	s.get(t, "/console/policy?version=1").want(t, 200, "approval: [{amountOver: 500").lacks(t, "Activate…")
	s.get(t, "/console/policy/new?from=1").want(t, 200, "<textarea", "approval: [{amountOver: 500")

	bad := s.post(t, "/console/policy/new", url.Values{"source": {"charge:\r\n  executor: <b>paypal\r\n"}})
	bad.want(t, 422, "Line 2, column 13: charge.executor: must be", "executor: &lt;b&gt;paypal").lacks(t, "<b>paypal", `name="store"`)

	source := "approval: [{amountOver: 700, currency: USD, timeout: 24h}] # <b>\r\nconfirm: {executor: http, url: 'http://127.0.0.1:1/', secret: 'env:HOME'}\r\n"
	good := s.post(t, "/console/policy/new", url.Values{"source": {source}}).
		want(t, 200, "No mistakes", "env:HOME may not be named", "<ins>&#43;approval: [{amountOver: 700", "<del>-approval: [{amountOver: 500", `name="store"`).lacks(t, "<b>")
	s.count(t, 1, `SELECT count(*) FROM policies`)
	if !strings.Contains(good.body, `name="checked"`) {
		t.Fatal(good.body)
	}
	// What was changed after it was checked is checked, and not stored.
	s.post(t, "/console/policy/new", url.Values{"source": {"reservationTtl: 1m\n"}, "checked": {source}, "store": {"yes"}}).want(t, 200, "No mistakes")
	s.count(t, 1, `SELECT count(*) FROM policies`)
	stored := s.post(t, "/console/policy/new", url.Values{"source": {source}, "checked": {source}, "store": {"yes"}}).want(t, 303)
	if to := stored.header.Get("Location"); to != "/console/policy?version=2" {
		t.Errorf("leads to %s", to)
	}
	s.get(t, "/console/policy?version=2").want(t, 200, "Activate…", "Compared with policy 1", "never").lacks(t, "<b>")
	s.get(t, "/console/policy?version=2&against=2").want(t, 200, "They are the same.")
	s.count(t, 1, `SELECT count(*) FROM policy_activations`)
	long := "# too long" + strings.Repeat(" ", 1<<20)
	if page := s.post(t, "/console/policy/new", url.Values{"source": {long}}); page.status < 400 || !strings.Contains(page.body, long) {
		t.Errorf("%d, and the text is gone", page.status)
	}
	s.activates(t)
	// A text must not look other than it reads.
	turned := "# \u202e }h1 :niWetelpmoc{ \u202c\ncompleteWithin: 2h\n"
	s.post(t, "/console/policy/new", url.Values{"source": {turned}, "checked": {turned}, "store": {"yes"}}).want(t, 303)
	s.get(t, "/console/policy?version=3").want(t, 200, `# \u202e`).lacks(t, "\u202e")
	for _, path := range []string{"/console/policy", "/console/policy?version=x", "/console/policy?version=9", "/console/policy/activate?version=9"} {
		s.get(t, path).want(t, 404)
	}
}

// activates makes policy 2 the active one, as two people want to who have seen the same.
func (s *service) activates(t *testing.T) {
	t.Helper()
	ask := s.get(t, "/console/policy/activate?version=2").want(t, 200, "Activate policy 2?", "env:HOME may not be named", "<ins>&#43;approval: [{amountOver: 700")
	seen := etagField.FindStringSubmatch(ask.body)
	if seen == nil {
		t.Fatal(ask.body)
	}
	form := url.Values{"etag": {strings.ReplaceAll(seen[1], "&#34;", `"`)}, "reason": {"agreed <i>"}}
	s.post(t, "/console/policy/activate?version=2", form).want(t, 303)
	s.post(t, "/console/policy/activate?version=2", form).want(t, 303) // the button was pressed twice
	s.post(t, "/console/policy/activate?version=1", form).want(t, 412, "Activate policy 1?", "another version was activated since you looked", `name="etag"`)
	s.count(t, 1, `SELECT count(*) FROM policy_activations WHERE version = 2 AND actor = 'local' AND reason = 'agreed <i>'`)
	s.count(t, 2, `SELECT count(*) FROM policy_activations`)
	s.get(t, "/console/policies").want(t, 200, "agreed &lt;i&gt;")
	s.get(t, "/console/policy/activate?version=2").want(t, 200, "active version already").lacks(t, "<button>Activate")
}

// count fails the test unless a query counts so many.
func (s *service) count(t *testing.T, want int, sql string) {
	t.Helper()
	n := 0
	if err := s.Pool.QueryRow(t.Context(), sql).Scan(&n); err != nil || n != want {
		t.Errorf("%s: %d, want %d (%v)", sql, n, want, err)
	}
}

// TestPoliciesByRoles: who may read looks, and is offered nothing else.
func TestPoliciesByRoles(t *testing.T) {
	t.Parallel()
	s := setup(t)
	name, value := s.token(t, "reader", access.Read)
	s.get(t, "/console/policies", name, value).want(t, 200, "active").lacks(t, "Write a new version")
	s.get(t, "/console/policy?version=1", name, value).want(t, 200).lacks(t, "Write a new version", "Activate…")
	s.get(t, "/console/policy/new?from=1", name, value).want(t, 403, "Your roles do not allow this.")
	s.post(t, "/console/policy/new", url.Values{"source": {"{}"}}, name, value).want(t, 403)
	s.post(t, "/console/policy/activate?version=1", url.Values{}, name, value).want(t, 403)
}

// TestNoPolicyYet: the screen says what a policy is for, and how to get one.
func TestNoPolicyYet(t *testing.T) {
	t.Parallel()
	s := setupWith(t, "")
	s.get(t, "/console/policies").want(t, 200, "There is no policy", "pawl serve --policy", `href="/console/policy/new"`)
	s.post(t, "/console/policy/new", url.Values{"source": {"completeWithin: 48h"}}).want(t, 200, "&#43;completeWithin: 48h").lacks(t, "the active one")
}
