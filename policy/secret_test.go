package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/policy"
)

func TestSecrets(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("PAWL_TEST_SECRET", " hidden\n")
	t.Setenv("PAWL_TEST_BLANK", "\n")
	for secret, want := range map[string]string{
		"env:PAWL_TEST_SECRET":                                    "hidden",
		"file:" + write("key", "\thidden\r\n"):                    "hidden",
		"env:PAWL_TEST_MISSING":                                   "",
		"env:PAWL_TEST_BLANK":                                     "",
		"file:" + write("empty", ""):                              "",
		"file:" + filepath.Join(folder, "none"):                   "",
		"file:" + folder:                                          "",
		"file:" + write("long", strings.Repeat("hidden", 20_000)): "",
		"file:relative":                                           "",
		"hidden":                                                  "",
		"":                                                        "",
	} {
		got, err := policy.Secret(secret).Read()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: read %q, error %v", secret, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: the error tells it: %v", secret, err)
		}
	}
	t.Run("are read when they are used", func(t *testing.T) {
		p := parse(t, "charge: {executor: stripe, secret: 'env:PAWL_TEST_KEY', webhookSecret: 'env:PAWL_TEST_HOOK'}")
		usable := func(want string) {
			t.Helper()
			if err := p.Usable(fsm.Charge); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		usable("use stripe of charge: read secret: env:PAWL_TEST_KEY is empty or not set")
		t.Setenv("PAWL_TEST_KEY", "x")
		usable("env:PAWL_TEST_HOOK")
		t.Setenv("PAWL_TEST_HOOK", "x")
		usable("")
		if err := p.Usable(fsm.Reserve); err != nil {
			t.Errorf("the ledger needs no secret: %v", err)
		}
	})
}
