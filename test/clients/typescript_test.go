package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"pawl/test/assert"
)

// TestTypeScript builds the TypeScript client as it would be published, and uses it on a running service.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	dir := made(t, "typescript", typescript)
	url := serve(t).url
	for name, command := range map[string][]string{
		"by itself":         {"node", "--test", "test/client.js"},
		"on all operations": {"node", "test/operations.js", url},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, dir, command[0], command[1:]...)
		})
	}
	t.Run("cases", func(t *testing.T) {
		t.Parallel()
		runCases(t, "ts", runTypeScript(dir))
	})
	t.Run("packed and installed, the program of its README", func(t *testing.T) {
		t.Parallel()
		elsewhere := folder(t)
		run(t, dir, "npm", "pack", "--ignore-scripts", "--pack-destination", elsewhere)
		packed, err := filepath.Glob(filepath.Join(elsewhere, "pawl-client-*.tgz"))
		assert.Require(t, err == nil && len(packed) == 1, packed, err)
		run(t, elsewhere, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", packed[0])
		assert.True(t, read(t, filepath.Join(elsewhere, "node_modules/pawl-client/LICENSE")) != nil, "it has no license")
		write(t, filepath.Join(elsewhere, "readme.mjs"), read(t, filepath.Join(dir, "test/readme.js")))
		program := command(t, elsewhere, "node", "readme.mjs")
		program.Env = append(program.Env, "PAWL_URL="+url)
		said, err := program.CombinedOutput()
		want := block(t, filepath.Join(dir, "README.md"), "text")
		assert.True(t, err == nil && bytes.Equal(said, want), err, "printed", said, "want", want)
	})
}

// typescript makes a copy of client/typescript, compiled with its tests and the program of its README. Its generated types are
// those of the document.
func typescript(t *testing.T, dir string) {
	t.Helper()
	packages(t, dir, "../../client/typescript")
	document := absolute(t, "../../httpapi/openapi.yaml")
	for file, command := range map[string]*exec.Cmd{
		"src/openapi.ts":   command(t, dir, "./node_modules/.bin/openapi-typescript", document),
		"src/resources.ts": command(t, dir, "node", "resources.js", document),
	} {
		if said, err := command.Output(); err != nil || !bytes.Equal(said, read(t, filepath.Join(dir, file))) {
			t.Errorf("%s is not what openapi.yaml says; run npm run generate in client/typescript: %v", file, err)
		}
	}
	write(t, filepath.Join(dir, "test/readme.ts"), block(t, filepath.Join(dir, "README.md"), "ts"))
	write(t, filepath.Join(dir, "test/receiver.ts"), block(t, "../../docs/events.md", "ts"))
	run(t, dir, "npm", "run", "build")
	run(t, dir, "./node_modules/.bin/tsc", "-p", "test")
}

// runTypeScript makes the calls of a case with the TypeScript client, and returns what they returned.
func runTypeScript(dir string) func(*testing.T, string, clientCase) []byte {
	return func(t *testing.T, address string, c clientCase) []byte {
		t.Helper()
		text, err := json.Marshal(map[string]any{"client": c.Client, "calls": c.Calls})
		assert.NoError(t, err)
		program := command(t, dir, "node", "test/cases.js", address)
		program.Stdin, program.Stderr = bytes.NewReader(text), os.Stderr
		said, err := program.Output()
		assert.NoError(t, err)
		return said
	}
}

// block is the first block of code of a language in a page.
func block(t *testing.T, page, language string) []byte {
	t.Helper()
	found := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)```\n").FindSubmatch(read(t, page))
	assert.Require(t, found != nil, page, "has no block of", language)
	return found[1]
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	assert.NoError(t, err)
	return text
}

func absolute(t *testing.T, file string) string {
	t.Helper()
	path, err := filepath.Abs(file)
	assert.NoError(t, err)
	return path
}
