package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/test/assert"
)

func parse(t *testing.T, source string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(source))
	assert.NoError(t, err, source)
	return p
}

func same(t *testing.T, got, want any) {
	t.Helper()
	assert.Equal(t, got, want)
}

// remote is a step of which nothing was given but the executor.
func remote(executor policy.Executor, timeout time.Duration, maxRetries int) policy.Step {
	return policy.Step{
		Executor: executor, Timeout: timeout, KeyRetention: 24 * time.Hour, CallbackTimeout: time.Hour, InFlight: 256, Queue: 10_000,
		Retry:   policy.Retry{Initial: 200 * time.Millisecond, Factor: 2, Cap: time.Minute, MaxRetries: maxRetries, Budget: 15 * time.Minute},
		Breaker: policy.Breaker{Failures: 20, Open: 5 * time.Second},
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	ledger := policy.Step{Executor: policy.Ledger}
	t.Run("nothing given is the ledger for every step", func(t *testing.T) {
		t.Parallel()
		for _, source := range []string{"{}", "charge: {}\nreserve: {executor: ledger}\n", "# a comment\n---\n{}\n...\n"} {
			same(t, parse(t, source), &policy.Policy{Charge: ledger, Reserve: ledger, Confirm: ledger})
		}
	})
	t.Run("simulator", func(t *testing.T) {
		t.Parallel()
		p := parse(t, "charge: &a {executor: simulator, url: 'http://a'}\nreserve: {executor: simulator, url: 'http://b'}\nconfirm: {executor: simulator, url: 'http://c'}\n")
		charge := remote(policy.Simulator, 30*time.Second, 7)
		charge.URL = "http://a"
		reserve := remote(policy.Simulator, 5*time.Second, 19)
		reserve.URL = "http://b"
		confirm := remote(policy.Simulator, 10*time.Second, 19)
		confirm.URL = "http://c"
		same(t, p, &policy.Policy{Charge: charge, Reserve: reserve, Confirm: confirm})
	})
	t.Run("stripe takes the money at once", func(t *testing.T) {
		t.Parallel()
		charge := remote(policy.Stripe, 30*time.Second, 7)
		charge.Secret, charge.Capture = "env:KEY", policy.CaptureImmediately
		same(t, parse(t, "charge: {executor: stripe, secret: 'env:KEY'}"), &policy.Policy{Charge: charge, Reserve: ledger, Confirm: ledger})
	})
	t.Run("stripe captures in the account of the charge", func(t *testing.T) {
		t.Parallel()
		p := parse(t, `
charge: {executor: stripe, url: "http://127.0.0.1:12111", secret: "file:/run/secrets/key", webhookSecret: "env:HOOK", capture: on_confirm}
confirm: {executor: stripe, timeout: 20s}`)
		confirm := remote(policy.Stripe, 20*time.Second, 19)
		confirm.URL, confirm.Secret, confirm.WebhookSecret = "http://127.0.0.1:12111", "file:/run/secrets/key", "env:HOOK"
		same(t, p.Confirm, confirm)
	})
	t.Run("a rule cancels when its time is over", func(t *testing.T) {
		t.Parallel()
		same(t, parse(t, "approval: [{}]").Approval, []policy.Approval{{OnTimeout: policy.ApprovalCancel}})
	})
}

func TestAllThatCanBeGiven(t *testing.T) {
	t.Parallel()
	p := parse(t, `
charge:
  executor: http
  url: https://payments.internal/charges?shop=1
  undoUrl: https://payments.internal/undo
  refundUrl: https://payments.internal/refunds
  lookupUrl: https://payments.internal/charges
  secret: env:PAYMENTS_SECRET
  timeout: 1m30s
  keyRetention: 72h
  callbackTimeout: 48h
  inFlight: 10000
  queue: 1
  retry: {initial: 1s, factor: 1.5, cap: 30m, maxRetries: 2, budget: 0s, nonRetryable: [card_declined, "402"]}
  breaker: {failures: 1, open: 1h}
reservationTtl: 30m
completeWithin: 24h
approval:
  - {amountOver: 500.50, currency: USD, items: [car], customers: ["17", bob], approver: another, timeout: 2h, onTimeout: approve}
  - {currency: VED}
concurrency: {by: concurrencyKey, limit: 1000000}`)
	over := decimal.MustParse("500.50")
	same(t, p, &policy.Policy{
		Charge: policy.Step{
			Executor: policy.HTTP, URL: "https://payments.internal/charges?shop=1", UndoURL: "https://payments.internal/undo",
			RefundURL: "https://payments.internal/refunds",
			LookupURL: "https://payments.internal/charges", Secret: "env:PAYMENTS_SECRET",
			Timeout: 90 * time.Second, KeyRetention: 72 * time.Hour, CallbackTimeout: 48 * time.Hour, InFlight: 10_000, Queue: 1,
			Retry: policy.Retry{Initial: time.Second, Factor: 1.5, Cap: 30 * time.Minute, MaxRetries: 2, Budget: 0,
				NonRetryable: []string{"card_declined", "402"}},
			Breaker: policy.Breaker{Failures: 1, Open: time.Hour},
		},
		Reserve: policy.Step{Executor: policy.Ledger}, Confirm: policy.Step{Executor: policy.Ledger},
		ReservationTTL: 30 * time.Minute, CompleteWithin: 24 * time.Hour,
		Approval: []policy.Approval{
			{AmountOver: &over, Currency: "USD", Items: []string{"car"}, Customers: []string{"17", "bob"}, ByAnother: true, Timeout: 2 * time.Hour, OnTimeout: policy.ApprovalApprove},
			{Currency: "VED", OnTimeout: policy.ApprovalCancel},
		},
		Concurrency: &policy.Concurrency{By: policy.ByKey, Limit: 1_000_000},
	})
}

func TestKeyRetentionAtItsLimit(t *testing.T) {
	t.Parallel()
	parse(t, http("url: http://a/do\n  keyRetention: 2h15m"))
	parse(t, http("url: http://a/do\n  callbackTimeout: 22h45m"))
}

func TestLongest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		retry policy.Retry
		want  time.Duration
	}{
		{"the budget", policy.Retry{Initial: time.Second, Factor: 2, Cap: time.Minute, MaxRetries: 1, Budget: time.Hour}, time.Hour},
		{"the retries", policy.Retry{Initial: time.Second, Factor: 2, Cap: 3 * time.Second, MaxRetries: 3}, 4*10*time.Second + 9*time.Second},
		{"the retries without growth", policy.Retry{Initial: time.Second, Factor: 1, Cap: time.Hour, MaxRetries: 999}, 11_000 * time.Second},
		{"the most there can be", policy.Retry{Initial: 30 * time.Minute, Factor: 10, Cap: 30 * time.Minute, MaxRetries: 999}, 10_000*time.Second + 500*time.Hour},
	} {
		assert.Equal(t, c.retry.Longest(10*time.Second), c.want, c.name)
	}
}

func TestStep(t *testing.T) {
	t.Parallel()
	p := &policy.Policy{}
	for s, want := range map[fsm.Step]*policy.Step{fsm.Charge: &p.Charge, fsm.Reserve: &p.Reserve, fsm.Confirm: &p.Confirm} {
		if p.Step(s) != want {
			t.Errorf("%s is another step", s)
		}
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	p := parse(t, `
approval:
  - {amountOver: 500, currency: USD}
  - {items: [car, boat], currency: EUR}
  - {customers: [mallory]}`)
	for _, c := range []struct {
		name  string
		order policy.Order
		rule  int
	}{
		{"more than the amount", policy.Order{Amount: decimal.MustParse("500.01"), Currency: "USD"}, 0},
		{"the amount itself", policy.Order{Amount: decimal.MustParse("500.00"), Currency: "USD"}, -1},
		{"more in another currency", policy.Order{Amount: decimal.MustParse("501"), Currency: "JPY"}, -1},
		{"an item", policy.Order{Item: "boat", Currency: "EUR"}, 1},
		{"an item in another currency", policy.Order{Item: "boat", Currency: "USD"}, -1},
		{"a customer", policy.Order{CustomerID: "mallory"}, 2},
		{"nobody", policy.Order{}, -1},
		{"the first of two", policy.Order{Amount: decimal.MustParse("999"), Currency: "USD", CustomerID: "mallory"}, 0},
	} {
		rule, i := p.ApprovalOf(c.order)
		if i != c.rule || (rule == nil) != (i < 0) || rule != nil && rule != &p.Approval[i] {
			t.Errorf("%s: rule %d, want %d", c.name, i, c.rule)
		}
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	order := policy.Order{Item: "widget", CustomerID: "bob", ConcurrencyKey: "k"}
	for by, want := range map[string]string{policy.ByItem: "item:widget", policy.ByCustomer: "customerId:bob", policy.ByKey: "concurrencyKey:k"} {
		p := &policy.Policy{Concurrency: &policy.Concurrency{By: by, Limit: 1}}
		assert.Equal(t, p.Key(order), want, "by", by)
		assert.Equal(t, p.Key(policy.Order{}), "", "by", by, "of an order without")
	}
	assert.Equal(t, (&policy.Policy{}).Key(order), "", "without a limit")
}

// A policy is YAML. What it leaves out has its default.
func ExampleParse() {
	p, err := policy.Parse([]byte(`
charge: {executor: http, url: "https://payments.example/do", undoUrl: "https://payments.example/undo", timeout: 10s}
approval:
  - {amountOver: 500, currency: USD, timeout: 24h}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("charge by", p.Charge.Executor, "within", p.Charge.Timeout, "and", p.Charge.Retry.MaxRetries, "retries")
	fmt.Println("reserve by", p.Reserve.Executor, "and confirm by", p.Confirm.Executor)
	fmt.Println("a person must approve more than", p.Approval[0].AmountOver, p.Approval[0].Currency)

	_, err = policy.Parse([]byte("charge:\n  executor: http\n  url: https://payments.example/do\nlimit: 5\n"))
	fmt.Println(err)
	// Output:
	// charge by http within 10s and 7 retries
	// reserve by ledger and confirm by ledger
	// a person must approve more than 500 USD
	// line 2, column 13: charge.undoUrl: is missing; http needs it
	// line 4, column 1: unknown key limit; must be one of charge, reserve, confirm, approval, reservationTtl, completeWithin, concurrency
}
