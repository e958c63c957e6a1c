package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pawl/db"
	"pawl/internal/policy"
	"pawl/test/dbtest"
)

// printed runs a command line that must succeed.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	out, err := execute(t, args...)
	if err != nil {
		t.Fatalf("pawl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// matches compares a text with lines of regular expressions.
func matches(t *testing.T, got, want string) {
	t.Helper()
	if !regexp.MustCompile(`^` + want + `$`).MatchString(got) {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

const (
	firstPolicy  = "# the shop\nreservationTtl: 30m\ncompleteWithin: 24h\n"
	secondPolicy = "# the shop\nreservationTtl: 45m\ncompleteWithin: 24h\nconfirm: {executor: http, url: 'http://127.0.0.1:1/'}\n"
)

// served uses policies as `serve --policy` does, and returns what it logs.
func served(t *testing.T, query *db.Queries, text string) string {
	t.Helper()
	var said bytes.Buffer
	source, err := loadPolicy(policyFile(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if err := usePolicy(t.Context(), query, newPolicy{source: source, bounds: policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, AllowPrivate: true}}, slog.New(slog.NewTextHandler(&said, nil))); err != nil {
		t.Fatal(err)
	}
	return said.String()
}

func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	query := db.New(database.Pool)
	run := func(args ...string) string {
		t.Helper()
		return printed(t, append(append([]string{"policy"}, args...), "--database-url", database.URL)...)
	}
	head := `version +stored +last activated +by +charge +reserve +confirm *\n`
	at := `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	matches(t, run("list"), head)

	served(t, query, firstPolicy)
	matches(t, run("list"), head+`1\* +`+at+` +`+at+` +"serve" +ledger +ledger +ledger *\n`)
	served(t, query, secondPolicy)
	matches(t, run("list"), head+`1 +`+at+` +`+at+` +"serve" .*\n2\* +`+at+` +`+at+` +"serve" +ledger +ledger +http *\n`)

	line := `\{"version":%d,"active":%t,"createdAt":"\S+Z","activatedAt":"\S+Z","activatedBy":"serve","executors":\{"charge":"ledger","confirm":%q,"reserve":"ledger"\}\}\n`
	matches(t, run("list", "-o", "json"), fmt.Sprintf(line, 1, false, "ledger")+fmt.Sprintf(line, 2, true, "http"))

	if got := run("show", "1"); got != firstPolicy {
		t.Errorf("show: %q", got)
	}
	const diff = "--- policy 1\n+++ policy 2\n@@ -1,3 +1,4 @@\n # the shop\n-reservationTtl: 30m\n+reservationTtl: 45m\n completeWithin: 24h\n" +
		"+confirm: {executor: http, url: 'http://127.0.0.1:1/'}\n"
	if got := run("diff", "1", "2"); got != diff {
		t.Errorf("diff: %s", got)
	}
	if got := run("diff", "2", "2"); got != "" {
		t.Errorf("diff: %q", got)
	}
	matches(t, run("activate", "1", "--actor", "ann"), `policy 1 is active; .*\n`)
	matches(t, run("list"), head+`1\* +`+at+` +`+at+` +"ann" .*\n2 +.*"serve".*\n`)

	for _, line := range []string{"show 3", "diff 1 3", "activate 3"} {
		_, err := execute(t, append(strings.Fields("policy "+line), "--database-url", database.URL)...)
		if exitCode(err) != exitFailure || !strings.Contains(fmt.Sprint(err), "there is no policy 3") {
			t.Errorf("policy %s: %v", line, err)
		}
	}
	if _, err := execute(t, "policy", "activate", "1", "--actor=", "--database-url", database.URL); exitCode(err) != exitUsage {
		t.Errorf("by nobody: %v", err)
	}
	if _, err := execute(t, "policy", "list", "--database-url", dbtest.Empty(t)); !strings.Contains(fmt.Sprint(err), "pawl migrate up") {
		t.Errorf("without a table: %v", err)
	}
}

func TestPolicyMisuse(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "forget", "list 1", "show", "show x", "show 0", "show 1 2", "show 4294967297", "diff 1", "activate", "check", "check a b", "schema now",
	} {
		_, err := execute(t, strings.Fields("policy "+line)...)
		if exitCode(err) != exitUsage {
			t.Errorf("pawl policy %s: exit code %d, %v", line, exitCode(err), err)
		}
	}
}

func TestPolicySchema(t *testing.T) {
	t.Parallel()
	if got := printed(t, "policy", "schema"); got != policy.Schema() || got == "" {
		t.Errorf("printed %q", got)
	}
}

func TestServePolicy(t *testing.T) {
	t.Parallel()
	t.Run("an old file does not push a new one aside, and says so", func(t *testing.T) {
		t.Parallel()
		query := db.New(dbtest.New(t).Pool)
		if said := served(t, query, firstPolicy); !strings.Contains(said, "the policy is active") || strings.Contains(said, "WARN") {
			t.Error(said)
		}
		served(t, query, secondPolicy)
		if said := served(t, query, secondPolicy); said != "" {
			t.Errorf("nothing is new: %s", said)
		}
		said := served(t, query, firstPolicy)
		for _, part := range []string{"level=WARN", "version=1 active=2", `"pawl policy activate 1"`} {
			if !strings.Contains(said, part) {
				t.Errorf("%q is missing in %s", part, said)
			}
		}
	})
	t.Run("warns of a secret that can't be read", func(t *testing.T) {
		t.Parallel()
		said := served(t, db.New(dbtest.New(t).Pool), "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_NO_SUCH_SECRET'}\n")
		if !strings.Contains(said, "level=WARN") || !strings.Contains(said, "step=charge") || !strings.Contains(said, "PAWL_SECRET_TEST_NO_SUCH_SECRET") {
			t.Error(said)
		}
	})
	t.Run("warns where stock is tracked that does not count", func(t *testing.T) {
		t.Parallel()
		database := dbtest.New(t)
		const remote = "reserve: {executor: simulator, url: 'https://warehouse.example'}\n"
		if said := served(t, db.New(database.Pool), remote); strings.Contains(said, "level=WARN") {
			t.Error(said)
		}
		if _, err := database.Pool.Exec(t.Context(), `INSERT INTO inventory (item, on_hand, tracked) VALUES ('tracked', 1, true)`); err != nil {
			t.Fatal(err)
		}
		if said := served(t, db.New(database.Pool), remote); !strings.Contains(said, "level=WARN") || !strings.Contains(said, "may be oversold") {
			t.Error(said)
		}
		if said := printed(t, "policy", "activate", "1", "--database-url", database.AdminURL); !strings.Contains(said, "warning: reserve is not done by the ledger") {
			t.Error(said)
		}
	})
	t.Run("no file is no policy", func(t *testing.T) {
		t.Parallel()
		source, err := loadPolicy("")
		if source != nil || err != nil || usePolicy(t.Context(), nil, newPolicy{}, nil) != nil {
			t.Errorf("%q, %v", source, err)
		}
	})
	t.Run("a bad file is a bad setting", func(t *testing.T) {
		t.Parallel()
		for text, says := range map[string]string{"charge: {executor: paypal}": "line 1, column 20: charge.executor: want", "": "is empty"} {
			_, err := execute(t, "serve", "--policy", policyFile(t, text), "--database-url", "postgres://127.0.0.1:1/none")
			if exitCode(err) != exitConfig || !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("exit code %d, %v", exitCode(err), err)
			}
		}
		if _, err := execute(t, "serve", "--policy", "/nonexistent"); exitCode(err) != exitConfig {
			t.Errorf("exit code %d, %v", exitCode(err), err)
		}
	})
}
