package policy

import (
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

const wantSecret = "env:NAME or file:/absolute/path, where to find the secret; a policy is kept for ever and must not hold one"

var envSecret = regexp.MustCompile(`^env:[A-Za-z_][A-Za-z0-9_]*$`)

// valid reports whether the secret names a place.
func (s Secret) valid() bool {
	path, isFile := strings.CutPrefix(string(s), "file:")
	return envSecret.MatchString(string(s)) ||
		isFile && filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && len(path) <= 4096 &&
			!strings.ContainsFunc(path, unicode.IsControl)
}
