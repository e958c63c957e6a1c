package step_test

import (
	"net/http"
	"strconv"
	"testing"

	"pawl/fsm"
	"pawl/policy"
	"pawl/step"
)

// TestStripeConforms holds the charge by Stripe to what every executor is held to.
func TestStripeConforms(t *testing.T) {
	t.Parallel()
	for _, capture := range []string{policy.CaptureImmediately, policy.CaptureOnConfirm} {
		t.Run(capture, func(t *testing.T) {
			t.Parallel()
			conform(t, func(t *testing.T, serve func(http.Handler) string) subject {
				t.Helper()
				f := newStripeFake(t)
				unkept := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Connection", "close") // on a kept one net/http sends again what was cut
					f.ServeHTTP(w, r)
				})
				executor, err := step.New(&policy.Step{
					Executor: policy.Stripe, URL: serve(unkept), Secret: secretOf(t, "sk_test_123"), Capture: capture,
				}, fsm.Charge)
				if err != nil {
					t.Fatal(err)
				}
				return subject{
					Executor: executor, of: fsm.Charge, books: f.booksOf,
					decline: func(c *step.Call) { c.PaymentMethod = "pm_declined" },
				}
			})
		})
	}
}

// booksOf are the charges of a call; money that is only authorized counts.
func (f *stripeFake) booksOf(c *step.Call) (b books) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, intent := range f.intents {
		if intent.form.Get("metadata[pawl_order]") != c.OrderID || intent.form.Get("metadata[pawl_generation]") != strconv.Itoa(int(c.Generation)) {
			continue
		}
		if intent.charged {
			b.made++
		}
		if intent.charged && intent.status != "canceled" && !intent.refunded {
			b.standing++
		}
	}
	return b
}
