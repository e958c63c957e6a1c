package policy

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"pawl/internal/egress"
	"pawl/internal/signing"
)

// Bounds limits the secrets and addresses that policies may name. Others may store policies: without bounds, they could
// have any secret of the service sent to any address.
type Bounds struct {
	SecretEnvPrefix string // required prefix of the variables that a policy names; empty: no variables
	SecretsDir      string // folder of the files that a policy names; empty: no files
	AllowPrivate    bool   // allow calls to this machine and to private networks
}

// SecretEnvPrefix is the usual prefix of the variables that a policy can name.
const SecretEnvPrefix = "PAWL_SECRET_"

// maxSecret limits how much of a file is read, which may be the wrong one.
const maxSecret = 64 << 10

// Read returns the current value of a secret, which must be named, without surrounding blanks. The value is never
// empty. Errors name the place but contain nothing of the value. Read is safe for concurrent use.
func (b Bounds) Read(s Secret) (string, error) {
	if !s.valid() {
		return "", errors.New("read secret: must be " + wantSecret)
	}
	kind, name, _ := strings.Cut(string(s), ":")
	find := b.variable
	if kind == "file" {
		find = b.file
	}
	text, err := find(name)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", fmt.Errorf("read secret: %s is empty or not set", s)
	}
	return text, nil
}

func (b Bounds) variable(name string) (string, error) {
	if b.SecretEnvPrefix == "" || !strings.HasPrefix(name, b.SecretEnvPrefix) {
		return "", fmt.Errorf("env:%s may not be named by a policy: must be a variable that begins with %s (--secret-env-prefix)", name, b.SecretEnvPrefix)
	}
	return os.Getenv(name), nil
}

// file reads a file in the folder of secrets. Symbolic links can't lead out of it.
func (b Bounds) file(path string) (string, error) {
	name, err := filepath.Rel(b.SecretsDir, path)
	if b.SecretsDir == "" || err != nil || !filepath.IsLocal(name) {
		return "", fmt.Errorf("file:%s may not be named by a policy: must be a file in the folder of --secrets-dir", path)
	}
	folder, err := os.OpenRoot(b.SecretsDir)
	if err != nil {
		return "", err
	}
	defer folder.Close()
	info, err := folder.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // reading a pipe could block
		return "", fmt.Errorf("%s is not a file", path)
	}
	file, err := folder.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s has more than %d KiB", path, maxSecret>>10)
	}
	return string(text), err
}

// ReadKey is Read for the secret of a step, and empty if it has none. A live key of Stripe is read only for Stripe's
// own address: another receiver could use it at Stripe.
func (b Bounds) ReadKey(s *Step) (string, error) {
	if s.Secret == "" {
		return "", nil
	}
	key, err := b.Read(s.Secret)
	if err == nil && s.Executor == Stripe && !atStripe(s.URL) && !testKey(key) {
		return "", fmt.Errorf("read secret: %s is not a Stripe test key, and url is not Stripe's", s.Secret)
	}
	if err == nil && s.Executor != Stripe { // a signing key
		if _, err := signing.Key(key); err != nil {
			return "", fmt.Errorf("use %s: %w", s.Secret, err)
		}
	}
	return key, err
}

// ReadWebhookKey is Read for the secret that Stripe signs events with. Unlike other keys, it is used as it is, without
// decoding.
func (b Bounds) ReadWebhookKey(s Secret) (string, error) {
	key, err := b.Read(s)
	if err == nil && len(key) < signing.MinKey {
		return "", fmt.Errorf("read secret: %s has less than %d bytes", s, signing.MinKey)
	}
	return key, err
}

func atStripe(address string) bool {
	u, err := url.Parse(address)
	return address == "" || err == nil && u.Scheme == "https" && strings.EqualFold(u.Host, "api.stripe.com")
}

func testKey(key string) bool {
	return strings.HasPrefix(key, "sk_test_") || strings.HasPrefix(key, "rk_test_")
}

// Usable returns nil if the step of a place can be called now: its secrets can be read, and its addresses may be
// called. Names are resolved only when they are dialed. If it returns an error, the step must not be called.
func (b Bounds) Usable(p *Policy, at Place) error {
	how := p.Step(at.Step, at.Route)
	_, err := b.ReadKey(how)
	if err == nil && how.WebhookSecret != "" {
		_, err = b.ReadWebhookKey(how.WebhookSecret)
	}
	for _, address := range []string{how.URL, how.UndoURL, how.RefundURL, how.LookupURL} {
		if err == nil {
			err = b.reaches(address)
		}
	}
	if err != nil {
		return fmt.Errorf("use %s of %s: %w", how.Executor, at, err)
	}
	return nil
}

// reaches returns an error for a URL whose host is an address that may not be called. Names are checked when they are
// dialed.
func (b Bounds) reaches(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("read the URL of a step: %w", err)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		return egress.Check(ip, b.AllowPrivate)
	}
	return nil // a name
}
