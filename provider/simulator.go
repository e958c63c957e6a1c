package provider

import (
	"fmt"

	"pawl/fsm"
	"pawl/policy"
)

// newSimulator makes an executor of a step at `pawl simulate`, which answers as an http
// provider does under addresses below its base URL.
func newSimulator(s *policy.Step, of fsm.Step) (Executor, error) {
	base, err := policy.ParseURL(s.URL)
	if err != nil {
		return nil, fmt.Errorf("simulator of %s: %w", of, err)
	}
	at := *s
	at.URL = base.JoinPath(string(of)).String()
	at.LookupURL = base.JoinPath("lookup").String()
	at.UndoURL = ""
	if of != fsm.Confirm {
		at.UndoURL = base.JoinPath(string(of), "undo").String()
	}
	return newHTTP(&at, of)
}
