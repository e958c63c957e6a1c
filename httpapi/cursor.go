package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
)

// A cursor is the position behind which the next page begins, and a sum over it
// and the filters of the list. It is no secret: it opens nothing that the list
// does not show. The sum finds cursors that were cut, changed, or belong to other
// filters, which would skip orders silently.
const sumLength = 9

var cursorText = base64.RawURLEncoding.Strict()

func sealCursor(binding []string, position string) string {
	return cursorText.EncodeToString(append(cursorSum(binding, position), position...))
}

// openCursor returns the position; ok is false when the cursor is not one that
// sealCursor made for this binding.
func openCursor(binding []string, cursor string) (position string, ok bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) <= sumLength {
		return "", false
	}
	position = string(raw[sumLength:])
	return position, string(cursorSum(binding, position)) == string(raw[:sumLength])
}

func cursorSum(binding []string, position string) []byte {
	var text []byte
	for _, part := range append(binding, position) {
		text = strconv.AppendQuote(text, part) // so that two lists never look like one
	}
	sum := sha256.Sum256(text)
	return sum[:sumLength]
}

func errCursor() error {
	return invalidParameter("cursor", "invalid", "must be the nextCursor of a page with the same filters")
}
