package policy

import (
	"slices"

	"github.com/govalues/decimal"
)

// Order is what a policy asks of an order.
type Order struct {
	Amount         decimal.Decimal
	Currency, Item string
	CustomerID     string // empty: not given
	ConcurrencyKey string // empty: not given
}

// ApprovalOf returns the first rule that fits the order and its place in the list, or
// nil if the order needs nobody's approval.
func (p *Policy) ApprovalOf(o Order) (*Approval, int) {
	for i := range p.Approval {
		if p.Approval[i].fits(o) {
			return &p.Approval[i], i
		}
	}
	return nil, -1
}

// fits reports whether all that the rule gives is true of the order. A rule that gives
// nothing fits every order; one with customers does not fit an order without.
func (a *Approval) fits(o Order) bool {
	return (a.AmountOver == nil || o.Amount.Cmp(*a.AmountOver) > 0) &&
		(a.Currency == "" || a.Currency == o.Currency) &&
		(a.Items == nil || slices.Contains(a.Items, o.Item)) &&
		(a.Customers == nil || slices.Contains(a.Customers, o.CustomerID))
}

// Key is what the order shares with those it must not be under way with: kind and value,
// as item:widget. Empty: no limit holds for it, because the policy has none or the order
// does not have what the limit goes by.
func (p *Policy) Key(o Order) string {
	if p.Concurrency == nil {
		return ""
	}
	value := map[string]string{ByItem: o.Item, ByCustomer: o.CustomerID, ByKey: o.ConcurrencyKey}[p.Concurrency.By]
	if value == "" {
		return ""
	}
	return p.Concurrency.By + ":" + value
}
