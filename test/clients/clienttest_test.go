// Package clients looks at the API as others do: linters read its description, and the clients are used on a running
// service, through a proxy that loses what they send. It is a module, because it needs Node 20.19 or newer, npm and a
// network.
package clients

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestLinters(t *testing.T) {
	t.Parallel()
	dir := packages(t, ".")
	document, err := os.ReadFile("../../httpapi/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "good.yaml"), document)
	// What made the generators stop once: a parameter of the path that is not declared.
	write(t, filepath.Join(dir, "bad.yaml"), bytes.Replace(document, []byte("name: orderId\n"), []byte("name: order\n"), 1))
	for name, linter := range map[string][]string{
		"redocly":  {"./node_modules/.bin/redocly", "lint", "--extends", "recommended-strict"},
		"spectral": {"./node_modules/.bin/spectral", "lint", "--ruleset", "testdata/spectral.yaml", "--fail-severity", "hint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, dir, linter[0], append(linter[1:], "good.yaml")...)
			if said, err := try(t, dir, linter[0], append(linter[1:], "bad.yaml")...); err == nil {
				t.Errorf("a document that is wrong passes: %s", said)
			}
		})
	}
}

// packages is a copy of a folder with the packages of its package.json in it.
func packages(t *testing.T, from string) string {
	t.Helper()
	dir := folder(t)
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	return dir
}

// run runs a command that must succeed.
func run(t *testing.T, dir, name string, arguments ...string) {
	t.Helper()
	if said, err := try(t, dir, name, arguments...); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, said)
	}
}

func try(t *testing.T, dir, name string, arguments ...string) (said []byte, err error) {
	t.Helper()
	return command(t, dir, name, arguments...).CombinedOutput()
}

func command(t *testing.T, dir, name string, arguments ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, arguments...)
	c.Dir = dir
	c.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
	return c
}
