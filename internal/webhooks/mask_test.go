package webhooks

import (
	"strings"
	"testing"

	"pawl/internal/signing"
)

// TestMaskAtTheEnd: of an answer that is cut off within a secret, no part of the secret is kept.
func TestMaskAtTheEnd(t *testing.T) {
	t.Parallel()
	secret := signing.NewSecret()
	key := strings.TrimPrefix(secret, signing.Prefix)
	for seen := range len(key) {
		a := Attempt{Entry: Entry{Answer: strings.Repeat(" ", maxRead-seen) + key[:seen]}}
		if a.mask([]string{secret}); a.Answer != "" {
			t.Fatalf("%d characters of a secret are kept: %q", seen, a.Answer)
		}
	}
	a := Attempt{Entry: Entry{Answer: "the key is " + key}}
	if a.mask([]string{secret}); a.Answer != "the key is ***" {
		t.Error(a.Answer)
	}
}
