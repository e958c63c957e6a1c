package iso4217

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/test/assert"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for digits, codes := range map[int]string{
		0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
		2: "USD EUR GBP MGA MRU" + // their coins are fifths, and they have two digits all the same
			" BGN CUC ANG XCG SLE STN VED VES ZWG" + // old and new
			" BOV CHE CHW COU MXV USN", // units of account
		3: "BHD IQD JOD KWD LYD OMR TND",
		4: "CLF UYW",
	} {
		for code := range strings.FieldsSeq(codes) {
			found, ok := Find(code)
			assert.True(t, ok && found == (Currency{code, digits}) && Known(code), code, found, ok, digits, "digits")
		}
	}
}

func TestWhatIsNoCurrency(t *testing.T) {
	t.Parallel()
	for _, codes := range []string{
		"BYR EEK GHC HRK LTL LVL RUR SKK SLL STD TRL VEF ZWD ZWL", // withdrawn
		"GGP IMP JEP CNH BTC", // never in the standard
		"XAG XAU XPD XPT XBA XBB XBC XBD XDR XSU XUA XTS XXX", // without a minor unit
		"usd Usd US USDT 840 # list",
	} {
		for code := range strings.FieldsSeq(codes) {
			found, ok := Find(code)
			assert.True(t, !ok && !Known(code), code, "is", found)
		}
	}
	assert.True(t, !Known("") && !Known(" ") && !Known("USD "), "space is a currency")
}

// A line that does not look like the others, or comes twice, would be read as something else.
func TestListIsOneLineForEachCode(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^[A-Z]{3} [0-4]$`)
	var codes []string
	for line := range strings.Lines(list) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "# ") {
			continue
		}
		assert.True(t, shape.MatchString(line), "line", line)
		codes = append(codes, line[:3])
	}
	assert.Equal(t, codes, slices.Sorted(maps.Keys(currencies)), "the list is not in order, or has a code twice")
	const listed = 167 // in list one of 2024-06-25, with a minor unit, and XCG
	assert.Equal(t, len(codes), listed, "codes")
}

func TestMostDigitsIsTheMostOfAny(t *testing.T) {
	t.Parallel()
	most := 0
	for _, currency := range currencies {
		most = max(most, currency.Digits)
	}
	assert.Equal(t, most, MostDigits, "most digits")
}
