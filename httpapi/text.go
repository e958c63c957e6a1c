package httpapi

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is the maximum length of an order id or an item, in characters.
const maxText = 255

// checkText checks an id or another short text: 1 to limit characters, and no control characters (PostgreSQL cannot
// store U+0000, and the others make two ids look the same). A fault is returned as code and detail.
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

// checkVisible rejects characters in a name that people cannot see or distinguish: a copied or typed name would be a
// different one.
func checkVisible(text string) (code, detail string) {
	first, _ := utf8.DecodeRuneInString(text)
	last, _ := utf8.DecodeLastRuneInString(text)
	switch {
	case unicode.IsSpace(first) || unicode.IsSpace(last):
		return "outer_blank", "must not begin or end with white space"
	case !legible(text):
		return "invisible_character", "must not contain white space other than U+0020, or zero-width, bidirectional, " +
			"private-use, unassigned or other invisible characters"
	}
	return "", ""
}

// legible reports whether all characters of a text are visible everywhere.
func legible(text string) bool {
	before := rune(-1)
	for i, c := range text {
		if c > unicode.MaxASCII && !shows(c) {
			_, size := utf8.DecodeRuneInString(text[i:]) // an invalid byte is U+FFFD in c, which has three bytes
			after, _ := utf8.DecodeRuneInString(text[i+size:])
			if !inEmoji(before, c, after) {
				return false
			}
		}
		before = c
	}
	return true
}

// shows reports whether a character is visible by itself. Characters unknown to unicode.IsPrint are blanks, control,
// format and private characters, and those of a later version of Unicode.
func shows(c rune) bool {
	if unicode.Is(unicode.Prepended_Concatenation_Mark, c) { // visible format characters
		return true
	}
	return unicode.IsPrint(c) && !unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, blank)
}

// inEmoji reports whether an invisible character is a part of an emoji: U+FE0F after one, or after the digit of a
// keycap, and U+200D between two.
func inEmoji(before, c, after rune) bool {
	const style, joiner, keycap = '\uFE0F', '\u200D', '\u20E3'
	switch c {
	case style:
		return unicode.Is(emoji, before) || after == keycap && strings.ContainsRune("0123456789#*", before)
	case joiner:
		return (before == style || unicode.Is(emoji, before)) && unicode.Is(emoji, after)
	}
	return false
}

// blank are characters that are letters or symbols by their category but are invisible, or that replace lost
// characters: empty braille and music, fillers of Khitan and Egyptian, U+FFFC and U+FFFD.
var blank = &unicode.RangeTable{
	R16: []unicode.Range16{{0x2800, 0x2800, 1}, {0xfffc, 0xfffd, 1}},
	R32: []unicode.Range32{{0x13441, 0x13442, 1}, {0x16fe4, 0x16fe4, 1}, {0x1d159, 0x1d159, 1}},
}

// emoji are the characters with Unicode's property Emoji beyond ASCII (emoji-data.txt of 14.0, and the block that new ones get).
var emoji = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xa9, 0xa9, 1}, {0xae, 0xae, 1}, {0x203c, 0x203c, 1}, {0x2049, 0x2049, 1}, {0x2122, 0x2122, 1}, {0x2139, 0x2139, 1},
		{0x2194, 0x2199, 1}, {0x21a9, 0x21aa, 1}, {0x231a, 0x231b, 1}, {0x2328, 0x2328, 1}, {0x23cf, 0x23cf, 1}, {0x23e9, 0x23f3, 1},
		{0x23f8, 0x23fa, 1}, {0x24c2, 0x24c2, 1}, {0x25aa, 0x25ab, 1}, {0x25b6, 0x25b6, 1}, {0x25c0, 0x25c0, 1}, {0x25fb, 0x25fe, 1},
		{0x2600, 0x2604, 1}, {0x260e, 0x260e, 1}, {0x2611, 0x2611, 1}, {0x2614, 0x2615, 1}, {0x2618, 0x2618, 1}, {0x261d, 0x261d, 1},
		{0x2620, 0x2620, 1}, {0x2622, 0x2623, 1}, {0x2626, 0x2626, 1}, {0x262a, 0x262a, 1}, {0x262e, 0x262f, 1}, {0x2638, 0x263a, 1},
		{0x2640, 0x2640, 1}, {0x2642, 0x2642, 1}, {0x2648, 0x2653, 1}, {0x265f, 0x2660, 1}, {0x2663, 0x2663, 1}, {0x2665, 0x2666, 1},
		{0x2668, 0x2668, 1}, {0x267b, 0x267b, 1}, {0x267e, 0x267f, 1}, {0x2692, 0x2697, 1}, {0x2699, 0x2699, 1}, {0x269b, 0x269c, 1},
		{0x26a0, 0x26a1, 1}, {0x26a7, 0x26a7, 1}, {0x26aa, 0x26ab, 1}, {0x26b0, 0x26b1, 1}, {0x26bd, 0x26be, 1}, {0x26c4, 0x26c5, 1},
		{0x26c8, 0x26c8, 1}, {0x26ce, 0x26cf, 1}, {0x26d1, 0x26d1, 1}, {0x26d3, 0x26d4, 1}, {0x26e9, 0x26ea, 1}, {0x26f0, 0x26f5, 1},
		{0x26f7, 0x26fa, 1}, {0x26fd, 0x26fd, 1}, {0x2702, 0x2702, 1}, {0x2705, 0x2705, 1}, {0x2708, 0x270d, 1}, {0x270f, 0x270f, 1},
		{0x2712, 0x2712, 1}, {0x2714, 0x2714, 1}, {0x2716, 0x2716, 1}, {0x271d, 0x271d, 1}, {0x2721, 0x2721, 1}, {0x2728, 0x2728, 1},
		{0x2733, 0x2734, 1}, {0x2744, 0x2744, 1}, {0x2747, 0x2747, 1}, {0x274c, 0x274c, 1}, {0x274e, 0x274e, 1}, {0x2753, 0x2755, 1},
		{0x2757, 0x2757, 1}, {0x2763, 0x2764, 1}, {0x2795, 0x2797, 1}, {0x27a1, 0x27a1, 1}, {0x27b0, 0x27b0, 1}, {0x27bf, 0x27bf, 1},
		{0x2934, 0x2935, 1}, {0x2b05, 0x2b07, 1}, {0x2b1b, 0x2b1c, 1}, {0x2b50, 0x2b50, 1}, {0x2b55, 0x2b55, 1}, {0x3030, 0x3030, 1},
		{0x303d, 0x303d, 1}, {0x3297, 0x3297, 1}, {0x3299, 0x3299, 1},
	},
	R32: []unicode.Range32{
		{0x1f004, 0x1f004, 1}, {0x1f0cf, 0x1f0cf, 1}, {0x1f170, 0x1f171, 1}, {0x1f17e, 0x1f17f, 1}, {0x1f18e, 0x1f18e, 1},
		{0x1f191, 0x1f19a, 1}, {0x1f1e6, 0x1f1ff, 1}, {0x1f201, 0x1f202, 1}, {0x1f21a, 0x1f21a, 1}, {0x1f22f, 0x1f22f, 1},
		{0x1f232, 0x1f23a, 1}, {0x1f250, 0x1f251, 1}, {0x1f300, 0x1f321, 1}, {0x1f324, 0x1f393, 1}, {0x1f396, 0x1f397, 1},
		{0x1f399, 0x1f39b, 1}, {0x1f39e, 0x1f3f0, 1}, {0x1f3f3, 0x1f3f5, 1}, {0x1f3f7, 0x1f4fd, 1}, {0x1f4ff, 0x1f53d, 1},
		{0x1f549, 0x1f54e, 1}, {0x1f550, 0x1f567, 1}, {0x1f56f, 0x1f570, 1}, {0x1f573, 0x1f57a, 1}, {0x1f587, 0x1f587, 1},
		{0x1f58a, 0x1f58d, 1}, {0x1f590, 0x1f590, 1}, {0x1f595, 0x1f596, 1}, {0x1f5a4, 0x1f5a5, 1}, {0x1f5a8, 0x1f5a8, 1},
		{0x1f5b1, 0x1f5b2, 1}, {0x1f5bc, 0x1f5bc, 1}, {0x1f5c2, 0x1f5c4, 1}, {0x1f5d1, 0x1f5d3, 1}, {0x1f5dc, 0x1f5de, 1},
		{0x1f5e1, 0x1f5e1, 1}, {0x1f5e3, 0x1f5e3, 1}, {0x1f5e8, 0x1f5e8, 1}, {0x1f5ef, 0x1f5ef, 1}, {0x1f5f3, 0x1f5f3, 1},
		{0x1f5fa, 0x1f64f, 1}, {0x1f680, 0x1f6c5, 1}, {0x1f6cb, 0x1f6d2, 1}, {0x1f6d5, 0x1f6d7, 1}, {0x1f6dd, 0x1f6e5, 1},
		{0x1f6e9, 0x1f6e9, 1}, {0x1f6eb, 0x1f6ec, 1}, {0x1f6f0, 0x1f6f0, 1}, {0x1f6f3, 0x1f6fc, 1}, {0x1f7e0, 0x1f7eb, 1},
		{0x1f7f0, 0x1f7f0, 1}, {0x1f90c, 0x1f93a, 1}, {0x1f93c, 0x1f945, 1}, {0x1f947, 0x1f9ff, 1}, {0x1fa70, 0x1faff, 1},
	},
}

// possible reports whether an order or item can have this name. Other names in a path or query are answered as not
// found without asking the database, which would return an error.
func possible(name string) bool {
	code, _ := checkVisible(name)
	return code == "" && storable(name)
}

// storable reports whether the database can hold a text.
func storable(text string) bool {
	code, _ := checkText([]byte(text), maxText)
	return code == "" && utf8.ValidString(text)
}

// parseInteger reads the text of a JSON number; ok is false if it is not written as an integer. Numbers that are too
// large saturate.
func parseInteger(text []byte) (value int64, ok bool) {
	for i, c := range text {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return 0, false
		}
	}
	value, _ = strconv.ParseInt(string(text), 10, 64)
	return value, true
}

// digits is the number of digits at the beginning of a text.
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
