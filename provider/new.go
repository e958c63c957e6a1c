package provider

import (
	"fmt"

	"pawl/fsm"
	"pawl/policy"
)

// New makes the executor that a policy names for a step; it is a Looker if the other side
// can be asked. New checks addresses, calls nobody, and reads no secret: that is done with
// every call, so that it can be replaced.
func New(s *policy.Step, of fsm.Step) (Executor, error) {
	switch s.Executor {
	case policy.HTTP:
		return newHTTP(s, of)
	case policy.Simulator:
		return newSimulator(s, of)
	case policy.Stripe:
		return newStripe(s, of)
	default:
		return nil, fmt.Errorf("make executor: %q does nothing outside", s.Executor)
	}
}
