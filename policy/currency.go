package policy

import (
	"slices"

	"github.com/Rhymond/go-money"
)

// moreCurrencies are codes of ISO 4217 that the library lacks.
var moreCurrencies = []string{"VED", "ZWG", "BOV", "CHE", "CHW", "COU", "MXV", "USN", "UYI", "UYW"}

// knownCurrency reports whether there is such a currency. A rule for one that is
// misspelt would fit nothing, and let every order pass.
func knownCurrency(code string) bool {
	known := money.GetCurrency(code)
	return known != nil && known.Code == code || slices.Contains(moreCurrencies, code)
}
