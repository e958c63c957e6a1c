package policy_test

import (
	"errors"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/policy"
)

// FuzzParse looks for a source that ends the process, for a problem without a place, and
// for a policy that breaks what its readers rely on.
func FuzzParse(f *testing.F) {
	for _, c := range refusals {
		if len(c.source) < 1000 {
			f.Add([]byte(c.source))
		}
	}
	f.Add([]byte("charge: {executor: stripe, secret: 'env:KEY', capture: on_confirm}\nconfirm: {executor: stripe}\n"))
	f.Add([]byte("confirm: {executor: http, url: 'http://a/do', retry: {maxRetries: 2}}\napproval: [{amountOver: 5, currency: USD}]\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		p, err := policy.Parse(source)
		var all policy.Problems
		if (p == nil) == (err == nil) || err != nil && !errors.As(err, &all) {
			t.Fatalf("policy %v, error %v", p, err)
		}
		for _, problem := range all {
			if problem.Line < 1 || problem.Column < 1 || problem.Text == "" {
				t.Errorf("problem without a place: %+v", problem)
			}
		}
		if p == nil {
			return
		}
		for _, s := range fsm.Steps() {
			reliable(t, s, p.Step(s))
		}
		if p.ReservationTTL < 0 || p.CompleteWithin < 0 || p.Concurrency != nil && p.Concurrency.Limit < 1 {
			t.Errorf("%+v", p)
		}
	})
}

// reliable checks what everybody takes for granted of a step.
func reliable(t *testing.T, s fsm.Step, how *policy.Step) {
	t.Helper()
	if how.Executor == policy.Ledger {
		same(t, *how, policy.Step{Executor: policy.Ledger})
		return
	}
	r := how.Retry
	for what, holds := range map[string]bool{
		"an executor":                 how.Executor.Remote(),
		"a place":                     how.URL != "" || how.Executor == policy.Stripe,
		"a place to undo":             how.UndoURL != "" || how.Executor != policy.HTTP || s == fsm.Confirm,
		"a secret":                    how.Secret != "" || how.Executor != policy.Stripe,
		"a time-out":                  how.Timeout > 0 && how.Timeout <= 10*time.Minute,
		"room":                        how.InFlight >= 1 && how.Queue >= 1,
		"delays":                      r.Initial > 0 && r.Initial <= r.Cap && r.Factor >= 1 && r.MaxRetries >= 0,
		"a breaker":                   how.Breaker.Failures >= 1 && how.Breaker.Open > 0,
		"a key that is not forgotten": r.Longest(how.Timeout)+how.CallbackTimeout+time.Hour <= how.KeyRetention,
	} {
		if !holds {
			t.Errorf("%s without %s: %+v", s, what, how)
		}
	}
}
