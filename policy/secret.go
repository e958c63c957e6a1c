package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"pawl/fsm"
)

// maxSecret is the most that is read of a file named by mistake.
const maxSecret = 64 << 10

const wantSecret = "env:NAME or file:/absolute/path, where to find the secret; a policy is kept for ever and must not hold one"

var envSecret = regexp.MustCompile(`^env:[A-Za-z_][A-Za-z0-9_]*$`)

// valid reports whether the secret names a place.
func (s Secret) valid() bool {
	path, isFile := strings.CutPrefix(string(s), "file:")
	return envSecret.MatchString(string(s)) ||
		isFile && filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && len(path) <= 4096 &&
			!strings.ContainsFunc(path, unicode.IsControl)
}

// Read returns the secret as it is now, without blanks around it; it is never empty.
// Errors name the place and hold nothing of what was found there. Not to be called for
// an empty Secret. Safe for concurrent use.
func (s Secret) Read() (string, error) {
	if !s.valid() {
		return "", errors.New("read secret: want " + wantSecret)
	}
	kind, name, _ := strings.Cut(string(s), ":")
	text := os.Getenv(name)
	if kind == "file" {
		var err error
		if text, err = readSecretFile(name); err != nil {
			return "", fmt.Errorf("read secret: %w", err)
		}
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return "", fmt.Errorf("read secret: %s is empty or not set", s)
	}
	return text, nil
}

func readSecretFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // a pipe would hold up whoever needs the secret
		return "", fmt.Errorf("%s is not a file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s has more than %d KiB", name, maxSecret>>10)
	}
	return string(text), err
}

// Usable returns nil if the secrets of a step can be read now. With anything else the
// step must not be tried.
func (p *Policy) Usable(s fsm.Step) error {
	how := p.Step(s)
	for _, secret := range []Secret{how.Secret, how.WebhookSecret} {
		if secret == "" {
			continue
		}
		if _, err := secret.Read(); err != nil {
			return fmt.Errorf("use %s of %s: %w", how.Executor, s, err)
		}
	}
	return nil
}
