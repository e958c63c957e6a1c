// Package clients looks at the API as others do: linters read its description, and the clients are used on a running
// service, through a proxy that loses what they send. It is a module, because it needs Node 20.19 or newer, npm and a
// network.
package clients

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oasdiff/oasdiff/checker"
	"github.com/oasdiff/oasdiff/diff"
	"github.com/oasdiff/oasdiff/load"

	"pawl/test/assert"
)

func TestLinters(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	packages(t, dir, ".")
	document, err := os.ReadFile(described)
	assert.NoError(t, err)
	write(t, filepath.Join(dir, "good.yaml"), document)
	for rule, linter := range map[string][]string{
		"path-parameters-defined": {"./node_modules/.bin/redocly", "lint", "--extends", "recommended-strict"},
		"path-params":             {"./node_modules/.bin/spectral", "lint", "--ruleset", "testdata/spectral.yaml", "--fail-severity", "hint"},
	} {
		t.Run(filepath.Base(linter[0]), func(t *testing.T) {
			t.Parallel()
			run(t, dir, linter[0], append(linter[1:], "good.yaml")...)
			said, err := try(t, dir, linter[0], append(linter[1:], "testdata/undeclared.yaml")...)
			assert.True(t, err != nil && bytes.Contains(said, []byte(rule+" ")), "a document that is wrong passes", said)
		})
	}
}

// packages makes a copy of a folder with the packages of its package.json in it.
func packages(t *testing.T, dir, from string) {
	t.Helper()
	assert.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
}

// run runs a command that must succeed.
func run(t *testing.T, dir, name string, arguments ...string) {
	t.Helper()
	said, err := try(t, dir, name, arguments...)
	assert.NoError(t, err, name, strings.Join(arguments, " "), said)
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

// described is the description of the API as it is.
const described = "../../httpapi/openapi.yaml"

// TestReleasedClientsStillWork fails on what breaks clients that were made for a release in test/released, unless the
// first number of the version is higher now (the second, while the first is 0).
func TestReleasedClientsStillWork(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../released/*/openapi.yaml.gz")
	assert.Require(t, err == nil && len(files) != 0, files, err)
	for _, file := range files {
		was, is := description(t, unpacked(t, file)), description(t, described)
		if major(was) != major(is) {
			t.Logf("version %s may break clients of %s", is.Version, was.Version)
			continue
		}
		for _, broken := range breaking(t, was, is) {
			t.Errorf("a client of %s: %s", was.Version, broken)
		}
	}
}

// unpacked is a copy of a compressed file.
func unpacked(t *testing.T, packed string) string {
	t.Helper()
	file, err := os.Open(packed)
	assert.NoError(t, err)
	defer file.Close()
	reader, err := gzip.NewReader(file)
	assert.NoError(t, err)
	text, err := io.ReadAll(reader)
	assert.NoError(t, err)
	name := filepath.Join(t.TempDir(), "openapi.yaml")
	write(t, name, text)
	return name
}

// TestWhatBreaksClients changes the description in one place each: nothing of it may be hidden from the check.
func TestWhatBreaksClients(t *testing.T) {
	t.Parallel()
	found := breaking(t, description(t, described), description(t, described))
	assert.Require(t, found == nil, "the description breaks with itself", found)
	for name, c := range map[string]struct {
		change func(*openapi3.T)
		finds  string
	}{
		"an operation is gone": {func(d *openapi3.T) { d.Paths.Delete("/api/orders/{orderId}/cancel") }, "api-path-removed-without-deprecation"},
		"a field of an answer is gone": {func(d *openapi3.T) {
			delete(d.Components.Schemas["Order"].Value.Properties, "amount")
		}, "response-required-property-removed"},
		"a field of a request is required": {func(d *openapi3.T) {
			body := d.Components.Schemas["ProcessBody"].Value
			body.Required = append(body.Required, "customerId")
		}, "request-property-became-required"},
		"a value of a request is gone": {func(d *openapi3.T) {
			outcome := d.Components.Schemas["StepResultBody"].Value.Properties["outcome"].Value
			outcome.Enum = outcome.Enum[1:]
		}, "request-property-enum-value-removed"},
		"a text of a request is shorter": {func(d *openapi3.T) {
			d.Components.Schemas["ProcessBody"].Value.Properties["item"].Value.MaxLength = new(uint64(99))
		}, "request-property-max-length-decreased"},
		"a parameter is gone": {func(d *openapi3.T) {
			d.Paths.Value("/api/orders").Get.Parameters = nil
		}, "request-parameter-removed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := description(t, described)
			c.change(is.Spec)
			found := breaking(t, description(t, described), is)
			assert.Contains(t, strings.Join(found, "\n"), c.finds, "found", found)
		})
	}
}

func description(t *testing.T, file string) *load.SpecInfo {
	t.Helper()
	spec, err := load.NewSpecInfo(openapi3.NewLoader(), load.NewSource(file))
	assert.NoError(t, err)
	return spec
}

func major(d *load.SpecInfo) string {
	numbers := strings.Split(d.Version, ".")
	if numbers[0] == "0" {
		return numbers[0] + "." + numbers[1]
	}
	return numbers[0]
}

// breaking is what breaks clients of the one description at a service of the other.
func breaking(t *testing.T, was, is *load.SpecInfo) (found []string) {
	t.Helper()
	config := checker.NewConfig(checker.GetAllChecks())
	report, sources, err := diff.GetWithOperationsSourcesMap(diff.NewConfig(), was, is)
	assert.NoError(t, err)
	for _, change := range checker.CheckBackwardCompatibility(config, report, sources) {
		if change.GetLevel() == checker.ERR || strings.HasSuffix(change.GetId(), "-removed") { // something removed may only be a warning
			found = append(found, change.GetId()+": "+change.GetText(checker.NewDefaultLocalizer()))
		}
	}
	return found
}
