// Package stripe runs the charge step at Stripe, with payment intents, and the confirm step that captures an authorized
// charge. It also reads the events that Stripe sends to a webhook.
//
// The engine makes an executor for each step whose policy names stripe. An executor never decides what an order does
// next, and uses an event only to find out which order to look up at Stripe.
package stripe

import (
	"math"
	"strings"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// New returns the executor of the charge or the confirm step. It sends and reads nothing: secrets are read at every
// call, so that they can be replaced.
func New(s *policy.Step, of fsm.Step, within policy.Bounds) provider.Looker {
	if of == fsm.Confirm {
		return &capture{newAPI(s, within)}
	}
	return &charge{newAPI(s, within), s.Capture}
}

// The operations at Stripe, each with a key of its own.
const (
	opCreate  provider.Operation = "create"
	opConfirm provider.Operation = "confirm"
	opCapture                    = provider.Capture
	opCancel  provider.Operation = "cancel"
	opRefund                     = provider.Refund // of all that is left (undo), or of a part
)

// EffectKey is the key under which the effect of a call is found: that of the request that created the payment intent,
// or captured it, whatever keys were used on it since. A charge operation has a key of its own.
func EffectKey(c *provider.Call) string {
	switch {
	case c.OperationID != "" && c.OperationKind == provider.Void:
		return c.Key(opCancel)
	case c.OperationID != "":
		return c.Key(c.OperationKind)
	}
	if c.Step == fsm.Confirm {
		return c.Key(opCapture)
	}
	return c.Key(opCreate)
}

// FoundByReference reports whether an undo finds the charge even if Stripe has forgotten the key: the reference is that
// of a payment intent, or the amount was zero, which is never charged.
func FoundByReference(reference string, amount decimal.Decimal) bool {
	return amount.IsZero() || isIntent(reference)
}

// isIntent reports whether a reference is the ID of a payment intent. It may be one that a person entered.
func isIntent(reference string) bool { return strings.HasPrefix(reference, "pi_") }

// currencyUnit says how Stripe counts a currency: the number of decimals, and what amounts must be a multiple of.
type currencyUnit struct {
	digits   int
	multiple int64
}

// currencyUnits has the currencies that are not counted in hundredths, by https://docs.stripe.com/currencies and not by
// ISO 4217: MGA has no decimals; ISK and UGX have two, which must be zero (UGX is also listed as a zero-decimal
// currency, but the section on special cases is what the API does); the last of three decimals must be zero. A mistake
// here charges ten or a hundred times the price.
var currencyUnits = map[string]currencyUnit{
	"BIF": {0, 1}, "CLP": {0, 1}, "DJF": {0, 1}, "GNF": {0, 1}, "JPY": {0, 1}, "KMF": {0, 1}, "KRW": {0, 1}, "MGA": {0, 1},
	"PYG": {0, 1}, "RWF": {0, 1}, "VND": {0, 1}, "VUV": {0, 1}, "XAF": {0, 1}, "XOF": {0, 1}, "XPF": {0, 1},

	"BHD": {3, 10}, "JOD": {3, 10}, "KWD": {3, 10}, "OMR": {3, 10}, "TND": {3, 10},

	"ISK": {2, 100}, "UGX": {2, 100},

	// Not in hundredths in ISO 4217, and not in Stripe's list: it is unknown how Stripe would count them.
	"IQD": {}, "LYD": {}, "CLF": {}, "UYI": {}, "UYW": {},
}

// minorUnits is an amount in the units of Stripe; currency is an ISO 4217 code in upper case. It is not ok if the
// amount would have to be rounded.
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
