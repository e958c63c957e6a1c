// Package iso4217 knows the currencies an order can have. It is safe for concurrent use.
package iso4217

import "github.com/Rhymond/go-money"

// MostDigits is the largest number of fraction digits of any currency.
const MostDigits = 4

// currencies holds the number of fraction digits ("minor unit") of every currency
// an order can have: the table of github.com/Rhymond/go-money, corrected where it
// differs from list one of ISO 4217 (published 2024-06-25, with amendment 176).
// The minor units it has are those of the standard; what differs is which codes
// there are.
var currencies = corrected()

// notCurrencies are codes the library has and the list has not, or has without a
// minor unit: withdrawn currencies, private codes of the Channel Islands and the
// Isle of Man, metals and drawing rights.
var notCurrencies = []string{
	"BYR", "EEK", "GHC", "HRK", "LTL", "LVL", "RUR", "SKK", "SLL", "STD", "TRL", "VEF", "ZWD", "ZWL",
	"GGP", "IMP", "JEP",
	"XAG", "XAU", "XDR",
}

// moreCurrencies are codes of the list the library lacks: two currencies, and the
// units of account for funds.
var moreCurrencies = map[string]int{
	"VED": 2, "ZWG": 2,
	"BOV": 2, "CHE": 2, "CHW": 2, "COU": 2, "MXV": 2, "USN": 2, "UYI": 0, "UYW": 4,
}

// Currency is a code with its fraction digits.
type Currency struct {
	Code   string // the one string all orders share
	Digits int
}

func corrected() map[string]Currency {
	all := make(map[string]Currency, 200)
	for a := 'A'; a <= 'Z'; a++ {
		for b := 'A'; b <= 'Z'; b++ {
			for c := 'A'; c <= 'Z'; c++ {
				code := string([]rune{a, b, c})
				if known := money.GetCurrency(code); known != nil {
					all[code] = Currency{code, known.Fraction}
				}
			}
		}
	}
	for _, code := range notCurrencies {
		delete(all, code)
	}
	for code, digits := range moreCurrencies {
		all[code] = Currency{code, digits}
	}
	return all
}

// Find returns the currency of a code of ISO 4217 that has a minor unit; false when
// there is none. Codes are in capital letters.
func Find(code string) (Currency, bool) {
	found, ok := currencies[code]
	return found, ok
}

// Known reports whether there is such a currency.
func Known(code string) bool {
	_, known := currencies[code]
	return known
}
