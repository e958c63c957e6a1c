package engine

import (
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
)

func TestUnknownExecutors(t *testing.T) {
	t.Parallel()
	for _, name := range []policy.Executor{policy.Ledger, "smoke", ""} {
		if e, err := newExecutor(&policy.Step{Executor: name, URL: "http://shop.example/do"}, fsm.Charge, policy.Bounds{}); err == nil {
			t.Errorf("%q is %v", name, e)
		}
	}
}
