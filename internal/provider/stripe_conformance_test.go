package provider_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// TestStripeConforms holds the charge by Stripe to what every executor is held to.
func TestStripeConforms(t *testing.T) {
	t.Parallel()
	for _, capture := range []string{policy.CaptureImmediately, policy.CaptureOnConfirm} {
		t.Run(capture, func(t *testing.T) {
			t.Parallel()
			conform(t, func(t *testing.T, serve func(http.Handler) string) subject {
				t.Helper()
				sim := newSimulator(t, simulator.Config{})
				unkept := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Connection", "close") // on a kept one net/http sends again what was cut
					sim.ServeHTTP(w, r)
				})
				how := policy.Step{Executor: policy.Stripe, URL: serve(unkept), Secret: secretOf(t, "sk_test_123"), Capture: capture}
				return subject{
					Executor: stripe.New(&how, fsm.Charge, local), of: fsm.Charge,
					decline: func(c *provider.Call) { c.PaymentMethod = "pm_card_visa_chargeDeclinedInsufficientFunds" },
					books:   counted(t, sim, stripe.EffectKey),
				}
			})
		})
	}
}

// TestStripeCaptureConforms holds the capture to the same, but for undo, which it has none of.
func TestStripeCaptureConforms(t *testing.T) {
	t.Parallel()
	conform(t, func(t *testing.T, serve func(http.Handler) string) subject {
		t.Helper()
		sim := newSimulator(t, simulator.Config{})
		direct := httptest.NewServer(sim) // the charges are not what is tried
		t.Cleanup(direct.Close)
		how := policy.Step{Executor: policy.Stripe, URL: direct.URL, Secret: secretOf(t, "sk_test_123"), Capture: policy.CaptureOnConfirm}
		charge := stripe.New(&how, fsm.Charge, local)
		how.URL = serve(sim)
		return subject{
			Executor: stripe.New(&how, fsm.Confirm, local), of: fsm.Confirm,
			prepare: func(c *provider.Call) {
				asCharge := *c
				asCharge.Step = fsm.Charge
				done, ok := charge.Do(t.Context(), &asCharge).(provider.Done)
				assert.Require(t, ok, "nothing was authorized")
				c.Reference = done.Reference
			},
			decline: func(c *provider.Call) {
				assert.NoError(t, sim.Happen(c.Reference, simulator.Expired, ""))
			},
			books: counted(t, sim, stripe.EffectKey),
		}
	})
}
