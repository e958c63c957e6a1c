package provider

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The longest texts that are kept, in characters.
const (
	maxWords     = 200 // of a code or detail
	maxReference = 255
)

// Text makes the words of others fit to be stored, logged and shown: up to 200 characters that print, with *** in place of
// each text that must be withheld. What does not print becomes a blank: control characters forge lines of a log, and those
// that change the direction of text forge what a line says.
func Text(words string, withheld ...string) string {
	words = printable(words)
	for _, secret := range withheld {
		if secret = printable(secret); secret != "" {
			words = strings.ReplaceAll(words, secret, "***")
		}
	}
	count := 0
	for i := range words {
		if count++; count > maxWords {
			return words[:i]
		}
	}
	return words
}

func printable(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, words)
}

// Code is Text for a code: one that tells what must be withheld is empty as a whole. Short names of payment methods such as
// "card" are words of many codes, and tell nothing.
func Code(code string, withheld ...string) string {
	code = Text(code)
	for _, secret := range withheld {
		if code == secret || len(secret) >= 8 && strings.Contains(code, secret) {
			return ""
		}
	}
	return code
}

// CheckReference returns nil for what can be kept as the name that a provider has for something.
func CheckReference(reference string) error {
	if utf8.RuneCountInString(reference) > maxReference || strings.ContainsFunc(reference, unicode.IsControl) {
		return errors.New("reference is too long or has control characters")
	}
	return nil
}
