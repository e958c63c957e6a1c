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

// Text makes the words of others fit to be stored, logged and shown: up to 200 characters that print. What does not print
// becomes a blank: control characters forge lines of a log, and those that change the direction of text forge what a line
// says. Where they may repeat what must be withheld, they go through Withheld.Text.
func Text(words string) string {
	words = printable(words)
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

// CheckReference returns nil for what can be kept as the name that a provider has for something.
func CheckReference(reference string) error {
	if utf8.RuneCountInString(reference) > maxReference || strings.ContainsFunc(reference, unicode.IsControl) {
		return errors.New("reference is too long or has control characters")
	}
	return nil
}
