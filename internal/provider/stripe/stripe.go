// Package stripe does the charge at Stripe, by its payment intents, and the confirm step that captures what the charge
// authorized. It also reads what Stripe sends to a webhook.
//
// The engine makes an executor for each step whose policy names stripe, and calls it. It never decides what an order does
// next, and believes nothing of an event but which order to ask Stripe about.
package stripe

import (
	"strings"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// New makes the executor of the charge or of the confirm step as a policy has it. New calls nobody, and reads no secret:
// that is done with every call, so that it can be replaced.
func New(s *policy.Step, of fsm.Step, within policy.Bounds) provider.Looker {
	if of == fsm.Confirm {
		return &capture{newAPI(s, within)}
	}
	return &charge{newAPI(s, within), s.Capture == policy.CaptureOnConfirm}
}

// The operations by which Stripe is asked, each with a key of its own.
const (
	opCreate  provider.Operation = "create"
	opConfirm provider.Operation = "confirm"
	opCapture provider.Operation = "capture"
	opCancel  provider.Operation = "cancel"
	opRefund                     = provider.Refund // of all that is left, in an undo, or of a part
)

// EffectKey is the key by which the effect of a call is found: that of the request which made the payment intent, or which
// captured it, whatever keys were used on it since; of a refund its own.
func EffectKey(c *provider.Call) string {
	if c.RefundID != "" {
		return c.Key(opRefund)
	}
	if c.Step == fsm.Confirm {
		return c.Key(opCapture)
	}
	return c.Key(opCreate)
}

// FoundByReference reports whether an undo finds what was charged also when Stripe has forgotten its key: the reference is
// the id of a payment intent, or there is nothing to find, because a charge of nothing was never made.
func FoundByReference(reference string, amount decimal.Decimal) bool {
	return amount.IsZero() || isIntent(reference)
}

// isIntent reports whether a reference is the id of a payment intent. It may also be what a person wrote down.
func isIntent(reference string) bool { return strings.HasPrefix(reference, "pi_") }
