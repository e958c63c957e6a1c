package httpapi

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is how many characters an order id or an item may have.
const maxText = 255

// checkText looks at an id or another short text: 1 to limit characters, no
// control characters (U+0000 can't be stored in PostgreSQL at all, the others
// make two ids look like one). A fault is returned as code and detail.
func checkText(text []byte, limit int) (code, detail string) {
	if len(text) == 0 {
		return "empty", "must not be empty"
	}
	if bytes.ContainsFunc(text, unicode.IsControl) {
		return "control_character", "must not contain control characters"
	}
	if len(text) > limit && utf8.RuneCount(text) > limit {
		return "too_long", "must have at most " + strconv.Itoa(limit) + " characters, not " + strconv.Itoa(utf8.RuneCount(text))
	}
	return "", ""
}

// checkVisible looks at what a name has beside the characters that people see. Who copies a
// name from a page or types it gets another one without them.
func checkVisible(text string) (code, detail string) {
	first, _ := utf8.DecodeRuneInString(text)
	last, _ := utf8.DecodeLastRuneInString(text)
	switch {
	case unicode.IsSpace(first) || unicode.IsSpace(last):
		return "outer_blank", "must not begin or end with a blank"
	case strings.ContainsFunc(text, invisible):
		return "invisible_character", "must not contain characters that show nothing, such as zero-width and bidirectional ones"
	}
	return "", ""
}

// invisible reports whether a character shows nothing of its own (Unicode's
// Default_Ignorable_Code_Point, and the rest of its format characters).
func invisible(c rune) bool {
	return c > unicode.MaxASCII && !unicode.Is(unicode.Prepended_Concatenation_Mark, c) &&
		unicode.In(c, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// possible reports whether an order or item with this name can exist. A name from
// a path or query that can't is answered like any other that does not, and never
// reaches the database, which would refuse it with an error.
func possible(name string) bool {
	code, _ := checkVisible(name)
	return code == "" && storable(name)
}

// storable reports whether the database can hold a text.
func storable(text string) bool {
	code, _ := checkText([]byte(text), maxText)
	return code == "" && utf8.ValidString(text)
}

// parseInteger reads the text of a JSON number; ok is false when it is not written
// as an integer. What does not fit saturates.
func parseInteger(text []byte) (value int64, ok bool) {
	for i, c := range text {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return 0, false
		}
	}
	value, _ = strconv.ParseInt(string(text), 10, 64)
	return value, true
}

// digits is how many digits a text begins with.
func digits(text []byte) int {
	for i, c := range text {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(text)
}

// shownNumber is the text of a number for a fault, unless it is long.
func shownNumber(text []byte) string {
	if len(text) > maxKey {
		return "a number of " + strconv.Itoa(len(text)) + " characters"
	}
	return string(text)
}

func decimalText(n int64) string { return strconv.FormatInt(n, 10) }
