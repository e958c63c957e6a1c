package provider

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The longest texts that are kept, in characters.
const (
	maxWords     = 200 // of a code or detail
	maxReference = 255
)

// code is the code of a reply, or the one given when it has none or one that tells what
// must be withheld. Short names of payment methods such as "card" are words of many codes.
func (a *answer) code(r *reply, otherwise string) string {
	code := cut(clean(string(r.Code)))
	for _, withheld := range a.withheld {
		if code == withheld || len(withheld) >= 8 && strings.Contains(code, withheld) {
			return otherwise
		}
	}
	return cmp.Or(code, otherwise)
}

// text makes the words of others fit to be stored, logged and shown: without the secret
// and the payment method, which an answer may repeat, and without control characters.
func (a *answer) text(words string) string {
	words = clean(words)
	for _, withheld := range a.withheld {
		if withheld = clean(withheld); withheld != "" {
			words = strings.ReplaceAll(words, withheld, "***")
		}
	}
	return cut(words)
}

// clean replaces what does not print by a blank: control characters forge lines of a log,
// those that change the direction of text forge what a line says.
func clean(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, words)
}

func cut(words string) string {
	count := 0
	for i := range words {
		if count++; count > maxWords {
			return words[:i]
		}
	}
	return words
}

func (a *answer) statusText() string {
	return strings.TrimSpace("HTTP " + strconv.Itoa(a.status) + " " + http.StatusText(a.status))
}

// maxRetryAfter bounds what an answer may ask for, so that it fits a duration.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter is how long the answer asks to wait (RFC 9110, section 10.2.3): seconds, or a
// date, read by the clock of the one who wrote it, else by the clock of the call. 0: nothing that can be read.
func (a *answer) retryAfter() time.Duration {
	text := a.header.Get("Retry-After")
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		now = a.received
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
