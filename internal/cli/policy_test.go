package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/db"
	"pawl/internal/policy"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const (
	firstPolicy  = "# the shop\nreservationTtl: 30m\ncompleteWithin: 24h\n"
	secondPolicy = "# the shop\nreservationTtl: 45m\ncompleteWithin: 24h\nconfirm: {executor: http, url: 'http://127.0.0.1:1/'}\n"
)

// served uses policies as `serve --policy` does, and returns what it logs.
func served(t *testing.T, query *db.Queries, text string) string {
	t.Helper()
	var said bytes.Buffer
	source, err := loadPolicy(policyFile(t, text))
	assert.NoError(t, err)
	bounds := policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, AllowPrivate: true}
	assert.NoError(t, usePolicy(t.Context(), query, newPolicy{source, bounds}, slog.New(slog.NewTextHandler(&said, nil))))
	return said.String()
}

func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	query := db.New(database.Pool)
	run := func(args ...string) string {
		t.Helper()
		return printed(t, append(append([]string{"policy"}, args...), "--database-url", database.URL)...)
	}
	head := `version +stored +last activated +by +charge +reserve +confirm *\n`
	at := `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	matches(t, run("list"), head)

	served(t, query, firstPolicy)
	matches(t, run("list"), head+`1\* +`+at+` +`+at+` +"serve" +ledger +ledger +ledger *\n`)
	served(t, query, secondPolicy)
	matches(t, run("list"), head+`1 +`+at+` +`+at+` +"serve" .*\n2\* +`+at+` +`+at+` +"serve" +ledger +ledger +http *\n`)

	line := `\{"version":%d,"active":%t,"createdAt":"\S+Z","activatedAt":"\S+Z","activatedBy":"serve","executors":\{"charge":"ledger","confirm":%q,"reserve":"ledger"\}\}\n`
	matches(t, run("list", "-o", "json"), fmt.Sprintf(line, 1, false, "ledger")+fmt.Sprintf(line, 2, true, "http"))

	assert.Equal(t, run("show", "1"), firstPolicy, "show")
	const diff = "--- policy 1\n+++ policy 2\n@@ -1,3 +1,4 @@\n # the shop\n-reservationTtl: 30m\n+reservationTtl: 45m\n completeWithin: 24h\n" +
		"+confirm: {executor: http, url: 'http://127.0.0.1:1/'}\n"
	assert.Equal(t, run("diff", "1", "2"), diff, "diff")
	assert.Equal(t, run("diff", "2", "2"), "", "diff")
	matches(t, run("activate", "1", "--actor", "ann"), `policy 1 is active; .*\n`)
	matches(t, run("list"), head+`1\* +`+at+` +`+at+` +"ann" .*\n2 +.*"serve".*\n`)

	for _, line := range []string{"show 3", "diff 1 3", "activate 3"} {
		_, err := execute(t, append(strings.Fields("policy "+line), "--database-url", database.URL)...)
		assert.True(t, exitCode(err) == exitFailure && strings.Contains(fmt.Sprint(err), "there is no policy 3"), "policy", line, err)
	}
	assert.Equal(t, exitCode(assert.Err(execute(t, "policy", "activate", "1", "--actor=", "--database-url", database.URL))), exitUsage, "by nobody")
	_, err := execute(t, "policy", "list", "--database-url", dbtest.Empty(t))
	assert.Contains(t, fmt.Sprint(err), "pawl migrate up", "without a table", err)
}

func TestServePolicy(t *testing.T) {
	t.Parallel()
	t.Run("an old file does not push a new one aside, and says so", func(t *testing.T) {
		t.Parallel()
		query := db.New(dbtest.New(t).Pool)
		said := served(t, query, firstPolicy)
		assert.True(t, strings.Contains(said, "the policy is active") && !strings.Contains(said, "WARN"), said)
		served(t, query, secondPolicy)
		assert.Equal(t, served(t, query, secondPolicy), "", "nothing is new")
		said = served(t, query, firstPolicy)
		for _, part := range []string{"level=WARN", "version=1 active=2", `"pawl policy activate 1"`} {
			assert.Contains(t, said, part)
		}
	})
	t.Run("warns of a secret that can't be read", func(t *testing.T) {
		t.Parallel()
		said := served(t, db.New(dbtest.New(t).Pool), "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_NO_SUCH_SECRET'}\n")
		assert.True(t, strings.Contains(said, "level=WARN") && strings.Contains(said, "step=charge") && strings.Contains(said, "PAWL_SECRET_TEST_NO_SUCH_SECRET"),
			said)
	})
	t.Run("warns where stock is tracked that does not count", func(t *testing.T) {
		t.Parallel()
		database := dbtest.New(t)
		const remote = "reserve: {executor: simulator, url: 'https://warehouse.example'}\n"
		said := served(t, db.New(database.Pool), remote)
		assert.True(t, !strings.Contains(said, "level=WARN"), said)
		_, err := database.Pool.Exec(t.Context(), `INSERT INTO inventory (item, on_hand, tracked) VALUES ('tracked', 1, true)`)
		assert.NoError(t, err)
		said = served(t, db.New(database.Pool), remote)
		assert.True(t, strings.Contains(said, "level=WARN") && strings.Contains(said, "may be oversold"), said)
		said = printed(t, "policy", "activate", "1", "--database-url", database.AdminURL)
		assert.Contains(t, said, "warning: reserve is not done by the ledger")
	})
	t.Run("no file is no policy", func(t *testing.T) {
		t.Parallel()
		source, err := loadPolicy("")
		assert.True(t, source == nil && err == nil && usePolicy(t.Context(), nil, newPolicy{}, nil) == nil, source, err)
	})
	t.Run("a bad file is a bad setting", func(t *testing.T) {
		t.Parallel()
		for text, says := range map[string]string{"charge: {executor: paypal}": "line 1, column 20: charge.executor: must be", "": "is empty"} {
			_, err := execute(t, "serve", "--policy", policyFile(t, text), "--database-url", "postgres://127.0.0.1:1/none")
			assert.True(t, exitCode(err) == exitConfig && strings.Contains(fmt.Sprint(err), says),
				"exit code", exitCode(err), err)
		}
		_, err := execute(t, "serve", "--policy", "/nonexistent")
		assert.Equal(t, exitCode(err), exitConfig, "exit code", err)
	})
}

func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	t.Run("names every mistake where editors find it", func(t *testing.T) {
		t.Parallel()
		path := policyFile(t, "charge:\n  executor: http\n  url: payments\n  undoUrl: http://a/undo\nlimit: 5\n")
		out, err := execute(t, "policy", "check", path)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		assert.True(t, exitCode(err) == exitFailure && len(lines) == 2 &&
			strings.HasPrefix(lines[0], path+":3:8: charge.url: must be") &&
			strings.HasPrefix(lines[1], path+":5:1: unknown key limit"), "error", err, "printed", out)
	})
	t.Run("says what a good one comes to, and what lacks here", func(t *testing.T) {
		t.Parallel()
		path := policyFile(t, "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_NO_SUCH_SECRET'}\n")
		matches(t, printed(t, "policy", "check", path), `.*/shop.yaml is valid: charge stripe, reserve ledger, confirm ledger\n`+
			`not usable with these settings: use stripe of charge: read secret: env:PAWL_SECRET_TEST_NO_SUCH_SECRET is empty or not set\n`)
	})
	t.Run("needs a file", func(t *testing.T) {
		t.Parallel()
		_, err := execute(t, "policy", "check", "/nonexistent")
		assert.Equal(t, exitCode(err), exitFailure, "error", err)
	})
}

const triedPolicy = `
charge: {executor: stripe, secret: "env:PAWL_SECRET_TEST_NO_SUCH_SECRET", capture: on_confirm}
reserve: {executor: http, url: "http://warehouse.internal/r", undoUrl: "http://warehouse.internal/u"}
confirm: {executor: stripe}
approval:
  - {customers: [mallory]}
  - {amountOver: 500, currency: USD, timeout: 24h, onTimeout: approve}
completeWithin: 48h
reservationTtl: 30m
concurrency: {by: customerId, limit: 5}
`

func TestPolicyCheckOfAnOrder(t *testing.T) {
	t.Parallel()
	path := policyFile(t, triedPolicy)
	for _, c := range []struct {
		name, order string
		says        []string
	}{
		{"that waits for a person", `{"amount": 700, "item": "car", "customerId": "bob"}`, []string{
			"reserve is done by http: orders do not use stock that is tracked here",
			"charge       stripe at its own address; timeout 30s; held for attention after 7 retries and 15m0s; captured on_confirm",
			"reserve      http at http://warehouse.internal/r; timeout 5s; held for attention after 19 retries and 15m0s",
			"confirm      stripe at its own address; timeout 10s; ",
			"approval     needed by rule 2, before the charge; after 24h0m0s: approve",
			`concurrency  at most 5 orders at a time with "customerId:bob"`,
			"deadline     48h0m0s after it is submitted",
			"reservation  must be confirmed within 30m0s",
		}},
		{"in another currency", `{"amount": 700, "item": "car", "currency": "JPY"}`, []string{"approval     not needed", "concurrency  no limit"}},
		{"of a customer", `{"amount": 1, "item": "car", "customerId": "mallory"}`, []string{"needed by rule 1, before the charge\n"}},
		{"with a deadline of its own", `{"orderId": "1", "amount": 1, "item": "car", "completeBy": "2030-01-02T03:04:05Z"}`,
			[]string{"deadline     2030-01-02T03:04:05Z"}},
		{"that is a whole request", `{"orderId": "1", "amount": "1.50", "item": "car", "quantity": 2, "metadata": {"a": "b"}, "paymentMethod": "pm", "startAt": "2030-01-02T03:04:05Z",
			"customerId": "bob", "concurrencyKey": "k", "reservationTtl": 60}`, []string{"reservation  must be confirmed within 1m0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := printed(t, "policy", "check", path, "--order", c.order)
			for _, part := range c.says {
				assert.Contains(t, out, part)
			}
		})
	}
	t.Run("without a policy to speak of", func(t *testing.T) {
		t.Parallel()
		out := printed(t, "policy", "check", policyFile(t, "{}\n"), "--order", `{"amount": 1, "item": "car"}`)
		for _, part := range []string{"charge       ledger, in the database", "approval     not needed",
			"deadline     none", "reservation  no limit for the confirmation"} {
			assert.Contains(t, out, part)
		}
	})
	for name, order := range map[string]string{
		"no JSON": "car", "no amount": `{"item": "car"}`, "a negative amount": `{"amount": -1, "item": "car"}`, "no item": `{"amount": 1}`,
		"an unknown field": `{"amount": 1, "item": "car", "colour": "red"}`, "two orders": `{"amount": 1, "item": "car"} {}`,
		"no currency there is": `{"amount": 1, "item": "car", "currency": "UDS"}`,
	} {
		t.Run("with "+name, func(t *testing.T) {
			t.Parallel()
			_, err := execute(t, "policy", "check", path, "--order", order)
			assert.Equal(t, exitCode(err), exitUsage, "exit code", err)
		})
	}
}
