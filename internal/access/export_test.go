package access

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
)

// Forget has the time pass for which tokens are valid.
func (c *Control) Forget() {
	for _, id := range c.tokens.last.Keys() {
		known, _ := c.tokens.last.Peek(id)
		known.at = time.Time{}
		c.tokens.last.Add(id, known)
	}
}

// TestTokenForm holds what scanners of source code know tokens by.
func TestTokenForm(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^pawl_[0-9A-Za-z]{59}$`)
	seen := map[string]bool{}
	for range 1000 {
		token, id := newToken()
		found, ok := tokenID(token)
		assert.Require(t, form.MatchString(token) && ok && found == id && !seen[id], token, "with the id", id, "found", found)
		seen[id] = true
	}
	token, _ := newToken()
	for at := range token { // any slip of a finger is found without the database
		other := "A"
		if token[at] == 'A' {
			other = "B"
		}
		_, ok := tokenID(token[:at] + other + token[at+1:])
		assert.True(t, !ok, token, "is taken with another character at", at)
	}
	for _, text := range []string{"", "pawl_", token[:len(token)-1], token + "0", strings.ToUpper(token), strings.Repeat("x", len(token))} {
		_, ok := tokenID(text)
		assert.True(t, !ok, text, "is taken for a token")
	}
}
