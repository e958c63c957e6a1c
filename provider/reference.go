package provider

import (
	"github.com/govalues/decimal"

	"pawl/policy"
)

// ByName reports whether the undo of a step goes by the provider's own name for what was
// done, so that it finds it also when the key is forgotten. Of Stripe only the id of a
// payment intent is one, and a charge of nothing needs none: it was never made.
func ByName(how policy.Executor, reference string, amount decimal.Decimal) bool {
	if how == policy.Stripe {
		return amount.IsZero() || chargeOf(&Call{Reference: reference}) != ""
	}
	return reference != ""
}
