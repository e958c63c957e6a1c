package simulator

import (
	"slices"
	"strings"

	"github.com/govalues/decimal"
)

// Currencies that Stripe does not count in hundredths, or not all of them:
// https://docs.stripe.com/currencies. The table is not the service's, which it judges.
var (
	withoutDecimals = strings.Fields("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf")
	threeDecimals   = strings.Fields("bhd jod kwd omr tnd") // the last is to be 0
	zeroDecimals    = strings.Fields("isk ugx")             // two, and both are to be 0
)

// stripeDecimal is an amount in Stripe's units as a decimal number.
func stripeDecimal(units int64, currency string) decimal.Decimal {
	scale := 2
	switch {
	case slices.Contains(withoutDecimals, currency):
		scale = 0
	case slices.Contains(threeDecimals, currency):
		scale = 3
	}
	return decimal.MustNew(units, scale)
}

// checkAmount refuses what Stripe can't charge. The least and the most are known here for
// US dollars alone.
func checkAmount(units int64, currency string) *stripeFault {
	switch {
	case units < 1:
		return invalid("parameter_invalid_integer", "amount", "This value must be greater than or equal to 1.")
	case currency == "usd" && units < 50:
		return invalid("amount_too_small", "amount", "Amount must be at least $0.50 usd")
	case currency == "usd" && units > 999_999_99:
		return invalid("amount_too_large", "amount", "Amount must be no more than $999,999.99")
	case slices.Contains(threeDecimals, currency) && units%10 != 0, slices.Contains(zeroDecimals, currency) && units%100 != 0:
		return invalid("", "amount", "Invalid amount for "+strings.ToUpper(currency)+".")
	}
	return nil
}
