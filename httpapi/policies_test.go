package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"pawl/internal/access"
	"pawl/test/assert"
)

// policyBody is the body that stores a policy.
func policyBody(t testing.TB, source string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{"source": source})
	assert.NoError(t, err)
	return string(body)
}

// policyIn is a policy as an answer has it.
func policyIn(t testing.TB, a answer) (p policyVersion) {
	t.Helper()
	assert.Require(t, a.status == http.StatusOK, a.status, a.body)
	assert.NoError(t, json.Unmarshal([]byte(a.body), &p))
	return p
}

// TestPolicyOverHTTP: checked, stored, listed, read, and activated, each by a request of its own; and new orders go by it at once.
func TestPolicyOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const first, second = "reservationTtl: 30m\n", "completeWithin: 48h\nconfirm: {executor: http, url: 'http://127.0.0.1:1/', secret: 'env:DATABASE_URL'}\n"
	none := b.get(t, "/api/policies")
	assert.Equal(t, none.body, `{"policies":[]}`, "before the first")
	dry := b.call(t, "POST /api/policies?dryRun=true", policyBody(t, first))
	assert.True(t, dry.status == http.StatusOK && dry.body == `{"created":true,"steps":{"charge":"ledger","reserve":"ledger","confirm":"ledger"},"dryRun":true}`,
		dry.status, dry.body)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM policies`), 0, "a dry run has stored")
	for i, created := range []string{"true", "false"} {
		stored := b.call(t, "POST /api/policies", policyBody(t, first))
		assert.Equal(t, `{"version":1,"created":`+created+`,"steps":{"charge":"ledger","reserve":"ledger","confirm":"ledger"}}`, stored.body,
			"time", i+1)
	}
	stored := b.call(t, "POST /api/policies", policyBody(t, second))
	assert.True(t, strings.Contains(stored.body, `"version":2`) && strings.Contains(stored.body,
		`"warnings":["use http of confirm: read secret: env:DATABASE_URL may not be named by a policy`), stored.body)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM policy_activations`), 0, "storing has activated a policy")
	b.activatesPolicies(t, none.header.Get("ETag"))
	p := policyIn(t, b.get(t, "/api/policies/2"))
	assert.True(t, p.Source == second && !p.Active && p.Steps.Confirm == "http" && p.CreatedBy == access.Local.Name, p)
	list := b.get(t, "/api/policies?limit=1")
	assert.True(t, strings.HasPrefix(list.body, `{"policies":[{"version":2,"active":false`) &&
		strings.HasSuffix(list.body, `"active":1}`) && !strings.Contains(list.body, "source"), list.body)
	list = b.get(t, "/api/policies?before=2")
	assert.True(t, strings.HasPrefix(list.body, `{"policies":[{"version":1,"active":true`), list.body)
	n := b.count(t, `SELECT count(*) FROM books.access_log WHERE actor = 'local' AND (event = 'policy_stored' OR event = 'policy_activated' AND subject = '1' AND detail = 'agreed')`)
	assert.Equal(t, n, 3, "the access log has", "of 3 rows")
}

// activatesPolicies makes version 1 the active one, with the ETag that was read before anything was active.
func (b *bundle) activatesPolicies(t *testing.T, tag string) {
	t.Helper()
	dry := b.call(t, "POST /api/policies/1/activate?dryRun=true", "", "If-Match", tag)
	p := policyIn(t, dry)
	assert.True(t, !p.Active && p.DryRun && dry.header.Get("ETag") == tag, dry.header, dry.body)
	done := b.call(t, "POST /api/policies/1/activate", `{"reason":"agreed"}`, "If-Match", tag)
	if p := policyIn(t, done); !p.Active || p.ActivatedBy != "local" || p.Reason != "agreed" || done.header.Get("ETag") == tag {
		t.Errorf("%v %s", done.header, done.body)
	}
	o := b.process(t, `{"orderId":"by-policy-1","amount":1,"item":"i"}`)
	assert.Contains(t, o.body, `"policy":1`, "the next order does not go by it")
	policyIn(t, b.call(t, "POST /api/policies/1/activate", "", "If-Match", tag)) // it came again
	b.call(t, "POST /api/policies/2/activate", "", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "precondition_failed")
	b.call(t, "POST /api/policies/2/activate?dryRun=true", "", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "precondition_failed")
	warned := policyIn(t, b.call(t, "POST /api/policies/2/activate?dryRun=true", ""))
	assert.True(t, len(warned.Warnings) == 1 && strings.Contains(warned.Warnings[0], "confirm"), "warnings", warned.Warnings)
	b.ignoresStock(t)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM policy_activations`), 1, "activations")
}

// TestPoliciesThatAreRefused: each mistake with its place, and nothing of a value that may be a secret.
func TestPoliciesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO policies (source, hash, created_by) VALUES ('teleport: {}', sha256('teleport: {}'), 'a newer release')`)
	for _, target := range []string{"POST /api/policies", "POST /api/policies?dryRun=true"} {
		p := b.call(t, target, policyBody(t, "charge:\n  executor: paypal\n  secret: sk_live_1234\n")).wantProblem(t,
			http.StatusUnprocessableEntity, "invalid_policy")
		assert.True(t, len(p.Errors) != 0 && p.Errors[0].Line == 2 && p.Errors[0].Column == 13 &&
			strings.HasPrefix(p.Errors[0].Detail, "charge.executor: must be "), p.Errors)
		for _, source := range []string{"", "charge: [", "teleport: {}", "a: \x00", strings.Repeat("x: 1\n", 1000)} {
			p := b.call(t, target, policyBody(t, source)).wantProblem(t, http.StatusUnprocessableEntity, "invalid_policy")
			assert.True(t, len(p.Errors) != 0 && len(p.Errors) <= maxFaults, source, len(p.Errors), "mistakes")
		}
		b.call(t, target, `{}`).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
		b.call(t, target, policyBody(t, "# "+strings.Repeat("x", maxBody))).wantProblem(t, http.StatusRequestEntityTooLarge, "body_too_large")
	}
	b.call(t, "POST /api/policies/1/activate", "").wantProblem(t, http.StatusUnprocessableEntity, "invalid_policy")
	for _, version := range []string{"2", "0", "x", "2147483647", "99999999999999999999"} {
		b.call(t, "POST /api/policies/"+version+"/activate", "").wantProblem(t, http.StatusNotFound, "not_found")
	}
	b.get(t, "/api/policies/2").wantProblem(t, http.StatusNotFound, "not_found")
	p := policyIn(t, b.get(t, "/api/policies/1"))
	assert.True(t, p.Steps == nil && p.Source == "teleport: {}", p)
	assert.Equal(t, b.count(t, `SELECT (SELECT count(*) FROM policies) + (SELECT count(*) FROM policy_activations)`), 1, "rows")
}

// TestPoliciesAreForAdmins: who may read sees how orders are done, and only an admin says it.
func TestPoliciesAreForAdmins(t *testing.T) {
	t.Parallel()
	b, sent, control := guarded(t)
	b.call(t, "POST /api/policies", policyBody(t, "reservationTtl: 1m\n"), "Authorization", sent["admin"])
	b.call(t, "POST /api/policies/1/activate", `{"onBehalfOf":"maria"}`, "Authorization", sent["admin"]).wantProblem(t,
		http.StatusForbidden, "forbidden")
	b.call(t, "POST /api/policies/1/activate", "", "Authorization", sent["operate"]).wantProblem(t, http.StatusForbidden, "forbidden")
	policyIn(t, b.call(t, "POST /api/policies/1/activate", "", "Authorization", sent["admin"]))
	p := policyIn(t, b.get(t, "/api/policies/1", "Authorization", sent["read"]))
	assert.True(t, p.CreatedBy == "token:only-admin" && p.ActivatedBy == "token:only-admin", p)
	control.Stop()
	n := b.count(t, `SELECT count(*) FROM books.access_log WHERE event = 'forbidden' AND operation = 'activatePolicy' AND subject = '1'`)
	assert.Equal(t, n, 1, "denials are logged")
}

// ignoresStock looks at the warning that stock is tracked here and reserved elsewhere, so that nothing would keep it from being oversold.
func (b *bundle) ignoresStock(t *testing.T) {
	t.Helper()
	store := func(source string) string {
		return b.call(t, "POST /api/policies?dryRun=true", `{"source":"`+source+`"}`).body
	}
	const remote, local = "reserve: {executor: simulator, url: 'http://127.0.0.1:1'}", "reserve: {executor: ledger}"
	said := store(remote)
	assert.True(t, !strings.Contains(said, "warnings"), "no stock is tracked", said)
	b.exec(t, `INSERT INTO inventory (item, on_hand, tracked) VALUES ('tracked', 1, true)`)
	assert.Contains(t, store(remote), `"warnings":["reserve is not done by the ledger`)
	said = store(local)
	assert.True(t, !strings.Contains(said, "warnings"), said)
}
