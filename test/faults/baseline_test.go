package faults

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pawl/test/assert"
)

// baseline is what a release has promised: test/released/VERSION. Beside it are its openapi.yaml, which test/clients
// reads, and a database that it filled, with the books of the provider (TestMakeBaseline).
type baseline struct {
	Version    string            `json:"version"`
	Commit     string            `json:"commit"`
	Migrations map[string]string `json:"migrations"` // SHA-256, by file
	PolicyKeys []string          `json:"policyKeys"` // with what they are in
	EventTypes []string          `json:"eventTypes"`

	folder string
}

// releases are the baselines, the newest release last.
func releases(t *testing.T) (all []*baseline) {
	t.Helper()
	files, err := filepath.Glob("../released/*/release.json")
	assert.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		b := &baseline{folder: filepath.Dir(file)}
		assert.NoError(t, json.Unmarshal(text, b))
		all = append(all, b)
	}
	assert.Require(t, len(all) != 0, "test/released has no release: make baseline")
	slices.SortFunc(all, func(a, b *baseline) int { return slices.Compare(numbers(a.Version), numbers(b.Version)) })
	return all
}

func numbers(version string) (n []int) {
	for _, part := range strings.Split(version, ".") {
		number, _ := strconv.Atoi(part)
		n = append(n, number)
	}
	return n
}

// describe reads what a tree of sources promises.
func describe(t *testing.T, root string) *baseline {
	t.Helper()
	b := &baseline{Migrations: map[string]string{}}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(root, name))
		assert.NoError(t, err)
		return text
	}
	files, err := filepath.Glob(filepath.Join(root, "migrations/*.sql"))
	assert.NoError(t, err)
	for _, file := range files {
		sum := sha256.Sum256(read("migrations/" + filepath.Base(file)))
		b.Migrations[filepath.Base(file)] = hex.EncodeToString(sum[:])
	}
	b.Version = string(regexp.MustCompile(`Number = "(.+)"`).FindSubmatch(read("internal/version/version.go"))[1])
	for _, found := range regexp.MustCompile("`((?:order|stock|webhook_endpoint)\\.[a-z_]+)`").FindAllSubmatch(read("docs/events.md"), -1) {
		b.EventTypes = append(b.EventTypes, string(found[1]))
	}
	var schema any
	assert.NoError(t, json.Unmarshal(read("internal/policy/schema.json"), &schema))
	b.PolicyKeys = policyKeys("", schema)
	for _, list := range []*[]string{&b.EventTypes, &b.PolicyKeys} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	assert.Require(t, len(b.Migrations) >= 8 && len(b.EventTypes) >= 50 && len(b.PolicyKeys) >= 50,
		root, "this test no longer understands the sources", b)
	return b
}

// policyKeys are the properties in a JSON schema, and their values where the schema lists them, each after the name of
// the property or definition that it is in.
func policyKeys(in string, schema any) (keys []string) {
	switch v := schema.(type) {
	case []any:
		for _, part := range v {
			keys = append(keys, policyKeys(in, part)...)
		}
	case map[string]any:
		for word, part := range v {
			named, _ := part.(map[string]any)
			switch values, _ := part.([]any); word {
			case "$defs":
				for name, definition := range named {
					keys = append(keys, policyKeys(name, definition)...)
				}
			case "properties":
				for name, property := range named {
					if property != false {
						keys = append(append(keys, in+"."+name), policyKeys(in+"."+name, property)...)
					}
				}
			case "const":
				keys = append(keys, fmt.Sprintf("%s: %v", in, part))
			case "enum":
				for _, value := range values {
					keys = append(keys, fmt.Sprintf("%s: %v", in, value))
				}
			default:
				keys = append(keys, policyKeys(in, part)...)
			}
		}
	}
	return keys
}

// broken lists what a later tree does not keep of a release.
func (b *baseline) broken(now *baseline) (all []string) {
	newest := slices.Max(slices.Collect(maps.Keys(b.Migrations)))
	for name := range now.Migrations {
		if b.Migrations[name] == "" && name < newest {
			all = append(all, "migrations/"+name+": is new, but comes before "+newest+", which was released")
		}
	}
	for name, sum := range b.Migrations {
		if now.Migrations[name] != sum {
			all = append(all, "migrations/"+name+": was edited after its release: add a migration instead")
		}
	}
	for what, lists := range map[string][2][]string{"policy key": {b.PolicyKeys, now.PolicyKeys}, "event type": {b.EventTypes, now.EventTypes}} {
		for _, name := range lists[0] {
			if !slices.Contains(lists[1], name) {
				all = append(all, what+" "+name+": is gone")
			}
		}
	}
	slices.Sort(all)
	return all
}

// read is a compressed file of the baseline.
func (b *baseline) read(t *testing.T, name string) string {
	t.Helper()
	file, err := os.Open(filepath.Join(b.folder, name+".gz"))
	assert.NoError(t, err)
	defer file.Close()
	reader, err := gzip.NewReader(file)
	assert.NoError(t, err)
	text, err := io.ReadAll(reader)
	assert.NoError(t, err)
	return string(text)
}

func (b *baseline) write(t *testing.T, name string, text []byte) {
	t.Helper()
	var packed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(writer.Write(text)))
	assert.NoError(t, writer.Close())
	assert.NoError(t, os.WriteFile(filepath.Join(b.folder, name+".gz"), packed.Bytes(), 0o644))
}

// buildingReleased is held while a released program is built: two tests may need it.
var buildingReleased sync.Mutex

// program builds what was released from the history of this repository. It is kept in the user's cache, as what the go
// command builds.
func (b *baseline) program(t *testing.T) string {
	t.Helper()
	buildingReleased.Lock()
	defer buildingReleased.Unlock()
	dir := b.cache(t)
	path := filepath.Join(dir, "pawl")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	b.sources(t, filepath.Join(dir, "src"))
	made := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", made, ".")
	cmd.Dir = filepath.Join(dir, "src")
	said, err := cmd.CombinedOutput()
	assert.NoError(t, err, "build the program of commit", b.Commit, said)
	assert.NoError(t, os.Rename(made, path))
	return path
}

func (b *baseline) cache(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	assert.NoError(t, err)
	return filepath.Join(cache, "pawl-released", b.Commit)
}

// sources unpacks what was released, unless it was done before.
func (b *baseline) sources(t *testing.T, dir string) {
	t.Helper()
	git := func(args ...string) (string, error) {
		said, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", "../.."}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(said)), err
	}
	if _, err := os.Stat(dir); err == nil {
		return
	}
	if said, err := git("cat-file", "-e", b.Commit+"^{commit}"); err != nil {
		shallow, _ := git("rev-parse", "--is-shallow-repository")
		if count, _ := git("rev-list", "--count", "HEAD"); shallow != "false" || count == "1" {
			t.Skipf("NOT TESTED: release %s is built from the history, which is not here (git fetch --unshallow)", b.Version)
		}
		t.Fatalf("the commit %s of release %s is not in this repository: %s", b.Commit, b.Version, said)
	}
	unpacked := fmt.Sprintf("%s.%d", dir, os.Getpid())
	assert.NoError(t, os.MkdirAll(unpacked, 0o755))
	shell(t, "git -C ../.. archive "+b.Commit+" | tar -x -C '"+unpacked+"'")
	assert.NoError(t, os.Rename(unpacked, dir))
}
