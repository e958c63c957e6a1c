// Package iso4217 knows the currencies an order can have. It is safe for concurrent use.
package iso4217

import (
	_ "embed"
	"strings"
)

// MostDigits is the largest number of fraction digits of any currency.
const MostDigits = 4

// Currency is a code with its fraction digits.
type Currency struct {
	Code   string // the one string all orders share
	Digits int
}

//go:embed currencies.txt
var list string

var currencies = parse(list)

// parse reads lines of a code and one digit. Other lines are comments.
func parse(list string) map[string]Currency {
	all := make(map[string]Currency, 200)
	for line := range strings.Lines(list) {
		code, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if code != "#" {
			all[code] = Currency{code, int(digits[0] - '0')}
		}
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
	_, known := Find(code)
	return known
}
