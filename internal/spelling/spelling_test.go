package spelling_test

import (
	"testing"

	"pawl/internal/spelling"
	"pawl/test/assert"
)

func TestMeant(t *testing.T) {
	t.Parallel()
	known := []string{"status", "failed", "holdReason", "to"}
	for given, want := range map[string]string{
		"faild": "failed", "failled": "failed", "fialed": "failed", "foiled": "failed", "Failed": "failed",
		"fled": "", "stats": "status", "holdreason": "holdReason", "": "", "t": "to", "x": "",
	} {
		assert.Equal(t, spelling.Meant(given, known), want, given)
	}
}
