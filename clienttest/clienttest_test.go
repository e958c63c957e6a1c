// Package clienttest looks at the description of the API as others do: linters read it, and the usual generators make
// clients of it, which are compiled and used on a running service. All of it is made anew by each run, in a folder of its
// own: nobody reviews some 15,000 generated lines. It is a module, so that the service does not depend on a generator.
// It needs Node 20.19 or newer, npm and a network.
package clienttest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/oapi-codegen/runtime" // the Go client needs it
)

func TestClients(t *testing.T) {
	t.Parallel()
	dir := workshop(t)
	url := serve(t)
	document := filepath.Join(dir, "openapi.yaml")
	download(t, url+"/openapi.yaml", document)
	for _, client := range []struct {
		language string
		commands [][]string // in the workshop, but those of Go, which are this module's
	}{
		{"Go", [][]string{
			{"go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "main", "-o", dir + "/testdata/client.go", document},
			{"go", "vet", dir + "/testdata/use.go", dir + "/testdata/client.go"},
			{"go", "run", dir + "/testdata/use.go", dir + "/testdata/client.go", url},
		}},
		{"TypeScript", [][]string{
			{"./node_modules/.bin/openapi-typescript", document, "-o", "testdata/api.ts"},
			{"./node_modules/.bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "testdata/use.ts"},
			{"node", "testdata/use.js", url},
		}},
	} {
		t.Run(client.language, func(t *testing.T) {
			t.Parallel()
			for _, command := range client.commands {
				at := dir
				if command[0] == "go" {
					at = "."
				}
				run(t, at, command[0], command[1:]...)
			}
		})
	}
}

func TestLinters(t *testing.T) {
	t.Parallel()
	dir := workshop(t)
	document, err := os.ReadFile("../httpapi/openapi.yaml")
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

// workshop is a copy of this folder with the packages of package.json in it.
func workshop(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
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
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir = dir
	command.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
	return command.CombinedOutput()
}
