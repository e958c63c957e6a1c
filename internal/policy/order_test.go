package policy_test

import (
	"testing"

	"github.com/govalues/decimal"

	"pawl/internal/policy"
)

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
		if got := p.Key(order); got != want {
			t.Errorf("by %s: %q", by, got)
		}
		if got := p.Key(policy.Order{}); got != "" {
			t.Errorf("by %s, of an order without: %q", by, got)
		}
	}
	if got := (&policy.Policy{}).Key(order); got != "" {
		t.Errorf("without a limit: %q", got)
	}
}
