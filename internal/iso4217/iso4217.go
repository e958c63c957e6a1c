// Package iso4217 has the currencies of ISO 4217. It is safe for concurrent use.
package iso4217

import (
	_ "embed"
	"strings"
)

// MostDigits is the largest number of fraction digits of any currency.
const MostDigits = 4

// Currency is a currency.
type Currency struct {
	Code   string // shared by all orders, which saves memory
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

// Find returns the currency with a code in capital letters; false if there is none with a minor unit.
func Find(code string) (Currency, bool) {
	found, ok := currencies[code]
	return found, ok
}

// Known reports whether Find finds a currency.
func Known(code string) bool {
	_, known := Find(code)
	return known
}
