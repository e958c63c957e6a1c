package engine

import (
	"fmt"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/policy"
	"pawl/provider"
	"pawl/provider/endpoint"
	"pawl/provider/stripe"
)

// newExecutor makes the executor that a policy names for a remote step. Nothing that it withholds comes back from it.
func newExecutor(s *policy.Step, of fsm.Step, within policy.Bounds) (provider.Executor, error) {
	switch s.Executor {
	case policy.HTTP, policy.Simulator:
		return provider.Masking(endpoint.New(s, of, within)), nil
	case policy.Stripe:
		return provider.Masking(stripe.New(s, of, within)), nil
	default:
		return nil, fmt.Errorf("make executor: %q does no remote step", s.Executor)
	}
}

// foundByReference reports whether an undo finds what was done by the provider's own name for it, also when its key is
// forgotten.
func foundByReference(how policy.Executor, reference string, amount decimal.Decimal) bool {
	if how == policy.Stripe {
		return stripe.FoundByReference(reference, amount)
	}
	return reference != ""
}
