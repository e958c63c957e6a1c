package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/test/assert"
)

func TestSecrets(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	within := policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, SecretsDir: folder}
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	assert.NoError(t, os.WriteFile(filepath.Join(outside, "key"), []byte("hidden"), 0o600))
	for link, to := range map[string]string{"inside": "key", "outside": filepath.Join(outside, "key"), "around": filepath.Join("..", filepath.Base(outside), "key")} {
		assert.NoError(t, os.Symlink(to, filepath.Join(folder, link)))
	}
	t.Setenv("DATABASE_URL", "hidden")
	t.Setenv("PAWL_SECRET_TEST_SECRET", " hidden\n")
	t.Setenv("PAWL_SECRET_TEST_BLANK", "\n")
	for secret, want := range map[string]string{
		"env:PAWL_SECRET_TEST_SECRET":                             "hidden",
		"file:" + write("key", "\thidden\r\n"):                    "hidden",
		"env:PAWL_SECRET_TEST_MISSING":                            "",
		"env:PAWL_SECRET_TEST_BLANK":                              "",
		"file:" + write("empty", ""):                              "",
		"file:" + filepath.Join(folder, "none"):                   "",
		"file:" + folder:                                          "",
		"file:" + write("long", strings.Repeat("hidden", 20_000)): "",
		"file:" + filepath.Join(folder, "inside"):                 "hidden",
		"file:" + filepath.Join(folder, "outside"):                "",
		"file:" + filepath.Join(folder, "around"):                 "",
		"file:" + filepath.Join(outside, "key"):                   "",
		"file:/etc/hostname":                                      "",
		"env:DATABASE_URL":                                        "",
		"env:PATH":                                                "",
		"file:relative":                                           "",
		"hidden":                                                  "",
		"":                                                        "",
	} {
		got, err := within.Read(policy.Secret(secret))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: read %q, error %v", secret, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: the error tells it: %v", secret, err)
		}
	}
	t.Run("are read when they are used", func(t *testing.T) {
		p := parse(t, "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_KEY', webhookSecret: 'env:PAWL_SECRET_TEST_HOOK'}")
		usable := func(want string) {
			t.Helper()
			if err := within.Usable(p, fsm.Charge); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		usable("use stripe of charge: read secret: env:PAWL_SECRET_TEST_KEY is empty or not set")
		t.Setenv("PAWL_SECRET_TEST_KEY", "sk_live_1")
		usable("env:PAWL_SECRET_TEST_HOOK")
		t.Setenv("PAWL_SECRET_TEST_HOOK", "whsec_")
		usable("env:PAWL_SECRET_TEST_HOOK has less than 16 bytes")
		t.Setenv("PAWL_SECRET_TEST_HOOK", "whsec_of_sixteen")
		usable("")
		for executor, more := range map[string]string{"http": ", undoUrl: 'https://1.1.1.1/undo'", "simulator": ""} { // here it is a key, not a password
			p = parse(t, "charge: {executor: "+executor+", url: 'https://1.1.1.1', secret: 'env:PAWL_SECRET_TEST_KEY'"+more+"}")
			t.Setenv("PAWL_SECRET_TEST_KEY", "whsec_")
			usable("use " + executor + " of charge: use env:PAWL_SECRET_TEST_KEY: read secret: the key has less than 16 bytes")
			t.Setenv("PAWL_SECRET_TEST_KEY", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
			usable("")
		}
		assert.NoError(t, within.Usable(p, fsm.Reserve), "the ledger needs no secret")
	})
}

// Without bounds nothing can be named: a service says itself what its policies may have.
func TestNothingIsNamedWithoutBounds(t *testing.T) {
	t.Setenv("PAWL_SECRET_TEST", "hidden")
	for _, secret := range []policy.Secret{"env:PAWL_SECRET_TEST", "file:/etc/hostname"} {
		if text, err := (policy.Bounds{}).Read(secret); err == nil {
			t.Errorf("%s: %q", secret, text)
		}
	}
}

// Whoever stores a policy names where a key is sent. One that moves real money goes to Stripe alone.
func TestLiveKeysAreForStripe(t *testing.T) { //nolint:paralleltest // it changes the environment
	within := policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, AllowPrivate: true}
	for _, c := range []struct {
		key, url string
		usable   bool
	}{
		{"sk_live_1", "", true}, {"rk_live_1", "https://api.stripe.com", true}, {"sk_test_1", "http://127.0.0.1:4000", true}, {"rk_test_1", "https://a.example", true},
		{"sk_live_1", "http://127.0.0.1:4000", false}, {"rk_live_1", "https://a.example", false}, {"sk_live_1", "http://api.stripe.com", false},
		{"sk_live_1", "https://api.stripe.com.a.example", false}, {"sk_live_1", "https://api.stripe.com:444", false}, {"hidden", "https://a.example", false},
	} {
		t.Setenv("PAWL_SECRET_TEST_KEY", c.key)
		how := policy.Policy{Charge: policy.Step{Executor: policy.Stripe, URL: c.url, Secret: "env:PAWL_SECRET_TEST_KEY"}}
		err := within.Usable(&how, fsm.Charge)
		if (err == nil) != c.usable || err != nil && strings.Contains(err.Error(), c.key) {
			t.Errorf("%s at %q: %v", c.key, c.url, err)
		}
		if key, err := within.ReadKey(&how.Charge); (err == nil) != c.usable || err == nil && key != c.key {
			t.Errorf("%s at %q: read %q, %v", c.key, c.url, key, err)
		}
	}
}

// An address that is written out is judged before anything is sent; a name when it is dialed.
func TestAddressesOfAPolicy(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct{ always, private bool }{
		"https://shop.example/do": {true, true}, "http://8.8.8.8/": {true, true}, "http://127.0.0.1:4000/": {false, true}, "http://[::1]/": {false, true},
		"http://10.0.0.1/": {false, true}, "http://169.254.169.254/latest": {false, false}, "http://[::ffff:169.254.169.254]/": {false, false},
		"http://[fe80::1%25eth0]/": {false, false}, "http://0.0.0.0/": {false, false},
	} {
		p := parse(t, "confirm: {executor: http, url: '"+url+"'}")
		if err := (policy.Bounds{}).Usable(p, fsm.Confirm); (err == nil) != want.always {
			t.Errorf("%s: %v", url, err)
		}
		if err := (policy.Bounds{AllowPrivate: true}).Usable(p, fsm.Confirm); (err == nil) != want.private {
			t.Errorf("%s, private allowed: %v", url, err)
		}
	}
	for _, url := range []string{"http://0x7f.1/", "http://127.1/", "http://2130706433/", "http://0177.0.0.1/", "http://0x7f000001/", "http://a.example.0x1/", "http://1.2.3.4.5/", "http://127.0.0.1./"} {
		if _, err := policy.ParseURL(url); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
}
