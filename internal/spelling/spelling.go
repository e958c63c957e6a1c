// Package spelling finds the word that somebody meant.
package spelling

import "strings"

// Meant returns the first of the known words that differs from an unknown one only in case, or in one letter: a
// Damerau-Levenshtein distance of 1. It returns an empty string if there is none.
func Meant(unknown string, known []string) (word string) {
	for _, k := range known {
		if strings.EqualFold(k, unknown) || oneEditApart(strings.ToLower(unknown), strings.ToLower(k)) {
			return k
		}
	}
	return ""
}

// Suggestion is the end of a message about an unknown word: "; did you mean word?", or nothing.
func Suggestion(unknown string, known []string) string {
	if word := Meant(unknown, known); word != "" {
		return "; did you mean " + word + "?"
	}
	return ""
}

// oneEditApart reports whether a becomes b if one character is added, removed or replaced, or two neighbors are
// exchanged.
func oneEditApart(a, b string) bool {
	x, y := []rune(a), []rune(b)
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	exchanged := len(x) == 2 && len(y) == 2 && x[0] == y[1] && x[1] == y[0]
	return exchanged || max(len(x), len(y)) == 1
}
