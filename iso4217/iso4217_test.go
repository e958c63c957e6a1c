package iso4217

import (
	_ "embed"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/iso4217.txt
var iso4217 string

// The list is a second source: it comes from the standard's own file, not from the
// library.
func TestCurrenciesAreThoseOfISO4217(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for line := range strings.Lines(iso4217) {
		code, unit, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		known, is := currencies[code]
		if unit == "-" {
			if is {
				t.Errorf("%s has no minor unit, and can't be the currency of an order", code)
			}
			continue
		}
		listed[code] = true
		if !is || known.Code != code || strconv.Itoa(known.Digits) != unit {
			t.Errorf("%s: %+v, want %s digits", code, known, unit)
		}
		if known.Digits > MostDigits {
			t.Errorf("%s has %d digits: amounts of 15 integer digits do not fit any more", code, known.Digits)
		}
	}
	for code := range currencies {
		if !listed[code] {
			t.Errorf("%s is not in the list", code)
		}
	}
}

func TestKnown(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"USD": true, "UYW": true, "usd": false, "XAU": false, "": false} {
		if Known(code) != want {
			t.Errorf("Known(%q) = %v", code, !want)
		}
	}
}
