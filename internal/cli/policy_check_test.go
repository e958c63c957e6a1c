package cli

import (
	"strings"
	"testing"
)

func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	t.Run("names every mistake where editors find it", func(t *testing.T) {
		t.Parallel()
		path := policyFile(t, "charge:\n  executor: http\n  url: payments\n  undoUrl: http://a/undo\nlimit: 5\n")
		out, err := execute(t, "policy", "check", path)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if exitCode(err) != exitFailure || len(lines) != 2 || !strings.HasPrefix(lines[0], path+":3:8: charge.url: want") ||
			!strings.HasPrefix(lines[1], path+":5:1: unknown key limit") {
			t.Errorf("error %v, printed\n%s", err, out)
		}
	})
	t.Run("says what a good one comes to, and what lacks here", func(t *testing.T) {
		t.Parallel()
		path := policyFile(t, "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_NO_SUCH_SECRET'}\n")
		matches(t, printed(t, "policy", "check", path), `.*/shop.yaml is a policy: charge stripe, reserve ledger, confirm ledger\n`+
			`here it could not use stripe of charge: read secret: env:PAWL_SECRET_TEST_NO_SUCH_SECRET is empty or not set\n`)
	})
	t.Run("needs a file", func(t *testing.T) {
		t.Parallel()
		if _, err := execute(t, "policy", "check", "/nonexistent"); exitCode(err) != exitFailure {
			t.Errorf("error %v", err)
		}
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
			"reserve is done by http: orders take nothing from stock that is tracked here",
			"charge       stripe at its own address; a call takes up to 30s; a person is asked after 7 retries and 15m0s; captured on_confirm",
			"reserve      http at http://warehouse.internal/r; a call takes up to 5s; a person is asked after 19 retries and 15m0s",
			"confirm      stripe at its own address; a call takes up to 10s; ",
			"approval     rule 2 fits: waits for a person before the charge; after 24h0m0s: approve",
			`concurrency  at most 5 under way with "customerId:bob"`,
			"deadline     48h0m0s after it came",
			"reservation  waits for its confirmation for 30m0s",
		}},
		{"in another currency", `{"amount": 700, "item": "car", "currency": "JPY"}`, []string{"approval     none needed", "concurrency  no limit"}},
		{"of a customer", `{"amount": 1, "item": "car", "customerId": "mallory"}`, []string{"rule 1 fits: waits for a person before the charge\n"}},
		{"with a deadline of its own", `{"orderId": "1", "amount": 1, "item": "car", "completeBy": "2030-01-02T03:04:05Z"}`, []string{"deadline     2030-01-02T03:04:05Z"}},
		{"that is a whole request", `{"orderId": "1", "amount": "1.50", "item": "car", "quantity": 2, "metadata": {"a": "b"}, "paymentMethod": "pm", "startAt": "2030-01-02T03:04:05Z",
			"customerId": "bob", "concurrencyKey": "k", "reservationTtl": 60}`, []string{"reservation  waits for its confirmation for 1m0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := printed(t, "policy", "check", path, "--order", c.order)
			for _, part := range c.says {
				if !strings.Contains(out, part) {
					t.Errorf("%q is missing in\n%s", part, out)
				}
			}
		})
	}
	t.Run("without a policy to speak of", func(t *testing.T) {
		t.Parallel()
		out := printed(t, "policy", "check", policyFile(t, "{}\n"), "--order", `{"amount": 1, "item": "car"}`)
		for _, part := range []string{"charge       ledger, in the database", "approval     none needed", "deadline     none", "reservation  waits for its confirmation for ever"} {
			if !strings.Contains(out, part) {
				t.Errorf("%q is missing in\n%s", part, out)
			}
		}
	})
	for name, order := range map[string]string{
		"no JSON": "car", "no amount": `{"item": "car"}`, "a negative amount": `{"amount": -1, "item": "car"}`, "no item": `{"amount": 1}`,
		"an unknown field": `{"amount": 1, "item": "car", "colour": "red"}`, "two orders": `{"amount": 1, "item": "car"} {}`,
		"no currency there is": `{"amount": 1, "item": "car", "currency": "UDS"}`,
	} {
		t.Run("with "+name, func(t *testing.T) {
			t.Parallel()
			if _, err := execute(t, "policy", "check", path, "--order", order); exitCode(err) != exitUsage {
				t.Errorf("exit code %d, %v", exitCode(err), err)
			}
		})
	}
}
