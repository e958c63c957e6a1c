// Package stripe does the charge at Stripe, by its payment intents, and the confirm step that captures what the charge
// authorized. It also reads what Stripe sends to a webhook.
//
// The engine makes an executor for each step whose policy names stripe, and calls it. It never decides what an order does
// next, and believes nothing of an event but which order to ask Stripe about.
package stripe

import (
	"math"
	"strings"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// New makes the executor of the charge or of the confirm step as a policy has it. New sends and reads nothing:
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

// currencyUnit says how Stripe counts a currency: with how many decimals, and what an
// amount in them must be a multiple of.
type currencyUnit struct {
	digits   int
	multiple int64
}

// currencyUnits has the currencies that are not counted in hundredths. It follows
// https://docs.stripe.com/currencies and not ISO 4217: MGA has no decimals there, ISK and
// UGX have two that must be zero (UGX is named among the zero-decimal currencies too; the
// section on special cases is what the API does), and the last of three decimals must be
// zero. A digit wrong here is an order charged at ten or a hundred times its price.
var currencyUnits = map[string]currencyUnit{
	"BIF": {0, 1}, "CLP": {0, 1}, "DJF": {0, 1}, "GNF": {0, 1}, "JPY": {0, 1}, "KMF": {0, 1}, "KRW": {0, 1}, "MGA": {0, 1},
	"PYG": {0, 1}, "RWF": {0, 1}, "VND": {0, 1}, "VUV": {0, 1}, "XAF": {0, 1}, "XOF": {0, 1}, "XPF": {0, 1},

	"BHD": {3, 10}, "JOD": {3, 10}, "KWD": {3, 10}, "OMR": {3, 10}, "TND": {3, 10},

	"ISK": {2, 100}, "UGX": {2, 100},

	// Not in hundredths in ISO 4217, and not in Stripe's list: how it would count them is
	// not known.
	"IQD": {}, "LYD": {}, "CLF": {}, "UYI": {}, "UYW": {},
}

// minorUnits is an amount as Stripe counts it; currency is an ISO 4217 code in upper case.
// It is not ok for an amount that can't be charged to the last digit: nothing is rounded.
func minorUnits(amount decimal.Decimal, currency string) (units int64, ok bool) {
	unit, special := currencyUnits[currency]
	if !special {
		unit = currencyUnit{2, 1}
	}
	if unit.multiple == 0 || amount.IsNeg() || amount.MinScale() > unit.digits {
		return 0, false
	}
	whole, fraction, ok := amount.Int64(unit.digits)
	scale := int64(math.Pow10(unit.digits))
	if !ok || whole > (math.MaxInt64-fraction)/scale {
		return 0, false
	}
	units = whole*scale + fraction
	return units, units%unit.multiple == 0
}
