package stripe_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
)

// stripeShop is an order and what charges and captures it.
type stripeShop struct {
	t               *testing.T
	charge, confirm provider.Looker
	call            provider.Call
}

// local are the bounds of tests: their providers are on this machine, their secrets in its temporary folder.
var local = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}

func secretOf(t *testing.T) policy.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("sk_test_123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return policy.Secret("file:" + path)
}

func newStripeShop(t *testing.T, url, capture string) *stripeShop {
	t.Helper()
	shop := &stripeShop{t: t, call: provider.Call{
		Installation: uuid.MustParse("8c5b0d5e-5f0a-4f5c-9a54-2f1d1c7c9d11"), OrderID: "o'rder \"1\"", Generation: 2,
		Amount: decimal.MustParse("10.50"), Currency: "USD", PaymentMethod: "pm_card",
	}}
	how := policy.Step{Executor: policy.Stripe, URL: url, Secret: secretOf(t), Capture: capture, WebhookSecret: "env:PAWL_SECRET_TOLD"}
	shop.charge, shop.confirm = stripe.New(&how, fsm.Charge, local), stripe.New(&how, fsm.Confirm, local)
	return shop
}

// as returns the call of a step; every call gets one of its own.
func (s *stripeShop) as(of fsm.Step) *provider.Call {
	c := s.call
	c.Step = of
	return &c
}

func (s *stripeShop) do() string     { return words(s.charge.Do(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) undo() string   { return words(s.charge.Undo(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) lookup() string { return words(s.charge.Lookup(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) take() string   { return words(s.confirm.Do(s.t.Context(), s.as(fsm.Confirm))) }

// words is a result in short.
func words(r provider.Result) string {
	switch r := r.(type) {
	case provider.Done:
		return strings.TrimSpace("done " + r.Reference)
	case provider.Refused:
		return "refused " + r.Code
	case provider.Retry:
		return fmt.Sprintf("retry %s after %s, counts %v", r.Code, r.After, r.Counts)
	case provider.Waiting:
		return strings.TrimSpace("waiting " + r.Reference + " " + string(r.Action))
	case provider.Unknown:
		if r.After > 0 {
			return fmt.Sprintf("unknown %s after %s", r.Code, r.After)
		}
		return "unknown " + r.Code
	}
	return fmt.Sprintf("%#v", r)
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

const customerHasToAct = `waiting pi_1 {"type":"use_stripe_sdk","clientSecret":"pi_1_secret_simulated"}`

// Payment methods that Stripe has for tests.
const (
	poor     = "pm_card_visa_chargeDeclinedInsufficientFunds"
	careful  = "pm_card_authenticationRequired"
	slowBank = "pm_usBankAccount_processing"
)
