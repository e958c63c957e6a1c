package httpapi

import "testing"

func TestParseAmount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		digits int
		want   string // the amount, or the code of the fault
	}{
		{"99.99", 2, "99.99"},
		{"99.9", 2, "99.90"},
		{"99.90", 2, "99.90"},
		{"99.990", 2, "99.99"},
		{"99.9000000000000000000000000000000000", 2, "99.90"},
		{"12345678901.23", 2, "12345678901.23"},
		{"999999999999999", 2, "999999999999999.00"},
		{"999999999999999.99", 2, "999999999999999.99"},
		{"999999999999999.9999", 4, "999999999999999.9999"},
		{"922337203685477.5807", 4, "922337203685477.5807"},
		{"922337203685477.5808", 4, "922337203685477.5808"},
		{"0", 2, "0.00"},
		{"0.0", 2, "0.00"},
		{"0.00000", 2, "0.00"},
		{"0e0", 2, "0.00"},
		{"0", 0, "0"},
		{"0.00", 0, "0"},
		{"0e99999999999999999999", 2, "0.00"},
		{"0E-99999999999999999999", 2, "0.00"},
		{"0.01", 2, "0.01"},
		{"0.10", 2, "0.10"},
		{"1e2", 2, "100.00"},
		{"1E+2", 2, "100.00"},
		{"1.50e1", 2, "15.00"},
		{"1.5e0", 2, "1.50"},
		{"150e-2", 2, "1.50"},
		{"1e-2", 2, "0.01"},
		{"1e14", 2, "100000000000000.00"},
		{"999999999999999", 4, "999999999999999.0000"},
		{"100.00", 0, "100"},
		{"1.234", 3, "1.234"},
		{"0.0001", 4, "0.0001"},

		{"1e15", 2, "too_large"},
		{"1000000000000000", 2, "too_large"},
		{"1000000000000000.0", 2, "too_large"},
		{"1e400", 2, "too_large"},
		{"1e99999999999999999999", 2, "too_large"},
		{"0.001", 2, "too_many_fraction_digits"},
		{"1e-3", 2, "too_many_fraction_digits"},
		{"1e-99999999999999999999", 2, "too_many_fraction_digits"},
		{"99.995", 2, "too_many_fraction_digits"},
		{"0.5", 0, "too_many_fraction_digits"},
		{"-1", 2, "negative"},
		{"-0", 2, "negative"},
		{"-0.00", 2, "negative"},
		{"-0e5", 2, "negative"},
		{"", 2, "not_decimal"},
		{"-", 2, "not_decimal"},
		{"+1", 2, "not_decimal"},
		{" 1", 2, "not_decimal"},
		{"1 ", 2, "not_decimal"},
		{"01", 2, "not_decimal"},
		{".5", 2, "not_decimal"},
		{"5.", 2, "not_decimal"},
		{"1,000", 2, "not_decimal"},
		{"1_000", 2, "not_decimal"},
		{"1e", 2, "not_decimal"},
		{"0x10", 2, "not_decimal"},
		{"NaN", 2, "not_decimal"},
		{"Infinity", 2, "not_decimal"},
		{"１", 2, "not_decimal"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			amount, code, _ := parseAmount(numberIn([]byte(c.text)), c.digits)
			got := code
			if code == "" {
				got = amount.String()
			}
			if got != c.want {
				t.Errorf("%s with %d digits: %s, want %s", c.text, c.digits, got, c.want)
			}
		})
	}
}
