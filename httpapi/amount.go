package httpapi

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/govalues/decimal"

	"pawl/internal/iso4217"
)

// maxWhole is the maximum number of integer digits of an amount. With the four fraction digits that a currency can
// have, every amount fits the 19 digits of a decimal.Decimal.
const maxWhole = 15

const tooManyDigits = "too_many_fraction_digits"

// amountIn reads an amount in a currency. The result has exactly the fraction digits of the currency, so an amount
// looks the same wherever it is stored, returned or sent.
func amountIn(text []byte, currency iso4217.Currency) (amount decimal.Decimal, code, detail string) {
	amount, code, detail = parseAmount(text, currency.Digits)
	if code == tooManyDigits && currency.Code != "" {
		detail += " in " + currency.Code
	}
	return amount, code, detail
}

// parseAmount reads an amount with the given number of fraction digits from the text of a JSON number, never through
// a float. An empty text is not a number. A fault is returned as code and detail.
func parseAmount(text []byte, digits int) (amount decimal.Decimal, code, detail string) {
	if len(text) == 0 {
		return amount, "not_decimal", "must be a decimal number"
	}
	if text[0] == '-' {
		return amount, "negative", "must be 0 or more"
	}
	coefficient, scale := split(make([]byte, 0, 24), text)
	for scale > digits && len(coefficient) > 0 && coefficient[len(coefficient)-1] == '0' {
		scale--
		coefficient = coefficient[:len(coefficient)-1]
	}
	if len(coefficient) == 0 { // zero, however it is written
		coefficient, scale = append(coefficient, '0'), digits
	}
	switch {
	case len(coefficient)-scale > maxWhole:
		return amount, "too_large", "must have at most " + strconv.Itoa(maxWhole) + " digits before the decimal point"
	case scale > digits:
		return amount, tooManyDigits, "must have at most " + strconv.Itoa(digits) + " digits after the decimal point"
	}
	for ; scale < digits; scale++ {
		coefficient = append(coefficient, '0')
	}
	return decimalOf(coefficient, scale), "", ""
}

// amountInput is the text of a number, or of a string with one; empty if the string has none. It is nil if there is
// no amount, or a faulty one.
type amountInput []byte

func (a *amountInput) read(d *decoder, pointer string) {
	switch d.kind() {
	case '"':
		*a = numberIn(bytes.Clone(d.string()))
	case '0':
		*a = bytes.Clone(d.scalar())
	default:
		d.fault(pointer, "wrong_type", "must be a number or a decimal string")
		d.skip()
	}
}

// Schema takes a decimal in a string, or a number.
func (amountInput) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		amount{}.Schema(r),
		named(r, "Number", &huma.Schema{
			Type: huma.TypeNumber, Format: "double", Minimum: new(0.0), // without the format, Go clients send a float32
			Description: "A decimal number. Floating-point types may round it.",
		}),
	}}
}

// numberIn returns a text that is a JSON number without surrounding white space, and an empty one for any other text.
func numberIn(text []byte) []byte {
	value := jsontext.Value(text)
	if value.Kind() != '0' || len(bytes.TrimSpace(text)) < len(text) || !value.IsValid() {
		return []byte{}
	}
	return text
}

// split splits a JSON number without sign: it appends its digits without leading zeros to coefficient, and returns
// how many of them are after the point. The scale is negative if zeros must be added, and saturates far outside of
// what an amount can be.
func split(coefficient, text []byte) (_ []byte, scale int) {
	fraction := false
	for i, c := range text {
		switch c {
		case '.':
			fraction = true
			continue
		case 'e', 'E':
			return coefficient, scale - exponent(text[i+1:])
		}
		if fraction {
			scale++
		}
		if c != '0' || len(coefficient) > 0 {
			coefficient = append(coefficient, c)
		}
	}
	return coefficient, scale
}

// exponent saturates at 24 bits: no body is long enough for digits that could compensate for more, and with 32 bits a
// scale could overflow.
func exponent(text []byte) int {
	n, _ := strconv.ParseInt(string(text), 10, 24)
	return int(n)
}

// decimalOf needs at most 19 digits and a scale of at most 4; both are checked.
func decimalOf(coefficient []byte, scale int) decimal.Decimal {
	if value, err := strconv.ParseInt(string(coefficient), 10, 64); err == nil {
		return decimal.MustNew(value, scale)
	}
	point := len(coefficient) - scale
	return decimal.MustParse(string(coefficient[:point]) + "." + string(coefficient[point:]))
}

// amountBound is the lower or upper amount of a filter, as text. It is empty if there is none.
type amountBound string

var amountForm = regexp.MustCompile(amountPattern)

// check reports a fault if the bound is not an amount.
func (b amountBound) check(d *decoder, pointer string) {
	if b != "" && !amountForm.MatchString(string(b)) {
		d.fault(pointer, "not_decimal", "must be "+anAmount)
	}
}

// decimal is nil if there is no bound, or one that the schema or check has rejected.
func (b amountBound) decimal() *decimal.Decimal {
	amount, code, _ := parseAmount([]byte(b), iso4217.MostDigits)
	if code != "" {
		return nil
	}
	return &amount
}
