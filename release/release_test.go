package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestNotice: NOTICE has the licenses of what is in the programs.
func TestNotice(t *testing.T) {
	t.Parallel()
	want, err := noticeOf("..")
	assert.NoError(t, err)
	assert.True(t, bytes.Equal(read(t, "../NOTICE"), want), "NOTICE is not up to date: go -C release run . -notice")
	unknown := regexp.MustCompile(`GNU (LESSER |AFFERO )?GENERAL PUBLIC|Business Source|Server Side Public`)
	found := unknown.Find(want)
	assert.True(t, found == nil, "a license that the program can't have", found)
}

// built is a release for one platform, from the files of this work tree, and where they were. It is built once.
var built = sync.OnceValues(func() (dir string, err error) {
	dir, err = buildIn("pawl-one-*")
	builtIn = dir
	return dir, err
})

var builtIn string // what TestMain removes

func buildIn(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	source := filepath.Join(dir, "source")
	if err := commitTo(source); err != nil {
		return "", err
	}
	return dir, build(source, filepath.Join(dir, "out"), platforms[:1])
}

// commitTo makes a repository whose only commit has the files of this work tree.
func commitTo(dir string) error {
	listed, err := output(exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard"))
	if err != nil {
		return err
	}
	for _, name := range strings.Split(listed, "\n") {
		content, err := os.ReadFile(filepath.Join("..", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not yet committed
		}
		info, statErr := os.Stat(filepath.Join("..", name))
		target := filepath.Join(dir, name)
		if err = errors.Join(err, statErr, os.MkdirAll(filepath.Dir(target), 0o755)); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, info.Mode().Perm()); err != nil {
			return err
		}
	}
	for _, arguments := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "-m", "all"}} {
		command := exec.Command("git", append([]string{"-C", dir}, arguments...)...)
		command.Env = append(os.Environ(), "GIT_AUTHOR_DATE=2026-11-26T12:00:00Z", "GIT_COMMITTER_DATE=2026-11-26T12:00:00Z")
		if _, err := output(command); err != nil {
			return err
		}
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

func buildOnce(t *testing.T) (out string) {
	t.Helper()
	dir, err := built()
	assert.NoError(t, err)
	return filepath.Join(dir, "out")
}

// TestSameBytes builds the release in another folder, and compares.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	one := buildOnce(t)
	other, err := buildIn("pawl-another-*")
	assert.NoError(t, err)
	defer os.RemoveAll(other)
	sums := map[string][2][32]byte{}
	for i, dir := range []string{one, filepath.Join(other, "out")} {
		for name, content := range contentOf(t, dir) {
			both := sums[name]
			both[i] = sha256.Sum256(content)
			sums[name] = both
		}
	}
	for name, both := range sums {
		assert.True(t, both[0] == both[1], name, "differs")
	}
	assert.Equal(t, len(sums), 6, "files: an archive, two packages, an image, a chart and a bill of materials are expected")
}

// TestNothingPrivate looks into every file of the release for paths and names of this machine, and for secrets.
func TestNothingPrivate(t *testing.T) {
	t.Parallel()
	out := buildOnce(t)
	private := [][]byte{[]byte(filepath.Dir(out)), []byte("/pawl-release-")}
	working, err := os.Getwd()
	assert.NoError(t, err)
	if root := filepath.Dir(working); len(root) > 8 { // a shorter one may be part of any text
		private = append(private, []byte(root))
	}
	for _, name := range []string{"GOMODCACHE", "GOCACHE", "GOROOT"} {
		text, err := output(exec.Command("go", "env", name))
		assert.NoError(t, err)
		private = append(private, []byte(text))
	}
	if host, err := os.Hostname(); err == nil && len(host) > 8 && host != "localhost" {
		private = append(private, []byte(host))
	}
	secret := regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}|\b[sr]k_live_\w{10}|\bgh[pousr]_\w{30}|\bAKIA[A-Z0-9]{16}\b`)
	seen := map[[32]byte]bool{}
	for name, content := range contentOf(t, out) {
		unpack(t, name, content, func(name string, content []byte) {
			sum := sha256.Sum256(content)
			if seen[sum] {
				return
			}
			seen[sum] = true
			for _, text := range private {
				assert.True(t, !bytes.Contains(content, text), name, "has", text)
			}
			if found := secret.Find(content); found != nil {
				t.Errorf("%s has a secret: %s…", name, found[:20])
			}
		})
	}
	assert.True(t, len(seen) >= 50, "only", len(seen), "files")
}

// contentOf returns the files of a folder.
func contentOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	found, err := filesIn(dir, "")
	assert.NoError(t, err)
	for _, f := range found {
		all[f.name] = f.data
	}
	return all
}

// unpack calls do for a file, or for every file in it.
func unpack(t *testing.T, name string, content []byte, do func(string, []byte)) {
	t.Helper()
	switch {
	case bytes.HasPrefix(content, []byte{0x1f, 0x8b}):
		reader, err := gzip.NewReader(bytes.NewReader(content))
		assert.NoError(t, err, name)
		plain, err := io.ReadAll(reader)
		assert.NoError(t, err, name)
		unpack(t, name+" unpacked", plain, do)
	case len(content) > 262 && string(content[257:262]) == "ustar":
		for archive := tar.NewReader(bytes.NewReader(content)); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			assert.NoError(t, err, name)
			inner, err := io.ReadAll(archive)
			assert.NoError(t, err, name)
			unpack(t, name+"/"+header.Name, inner, do)
		}
	case bytes.HasPrefix(content, []byte("!<arch>\n")): // a Debian package
		for rest := content[8:]; len(rest) >= 60; {
			var size int
			assert.NoError(t, assert.Err(fmt.Sscan(string(rest[48:58]), &size)), name)
			unpack(t, name+"/"+strings.TrimSpace(string(rest[:16])), rest[60:60+size], do)
			rest = rest[min(60+size+size%2, len(rest)):]
		}
	case bytes.HasPrefix(content, []byte{0xed, 0xab, 0xee, 0xdb}): // an RPM
		if at := bytes.Index(content, []byte{0x1f, 0x8b, 0x08}); at > 0 {
			unpack(t, name+"/payload", content[at:], do)
		}
	default:
		do(name, content)
	}
}

// TestDebianPackage installs the package in a folder of its own, as dpkg does, and runs the program from there.
func TestDebianPackage(t *testing.T) {
	t.Parallel()
	deb := filepath.Join(buildOnce(t), "pawl_"+number+"-1_amd64.deb")
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("needs dpkg")
	}
	root := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates"} {
		assert.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	write(t, filepath.Join(root, "var/lib/dpkg/status"), nil)
	said(t, exec.Command("dpkg", "--force-not-root", "--root="+root, "--log=/dev/null", "-i", deb))
	assert.Equal(t, said(t, exec.Command("dpkg", "--root="+root, "--verify", "pawl")), "")
	text := said(t, exec.Command(filepath.Join(root, "usr/bin/pawl"), "--version"))
	assert.True(t, strings.HasPrefix(text, "pawl version "+number+" (commit "), "it says", text)
	for _, name := range []string{
		"usr/share/man/man1/pawl.1.gz", "usr/share/man/man1/pawl-serve.1.gz", "usr/share/bash-completion/completions/pawl",
		"usr/share/doc/pawl/copyright", "usr/share/doc/pawl/NOTICE", "etc/pawl/pawl.env",
	} {
		info, err := os.Stat(filepath.Join(root, name))
		assert.True(t, err == nil && info.Size() != 0, name, err)
	}
	checkUnit(t, root)
}

// checkUnit has systemd read the unit that is installed under a root folder, and rate how well it is shut in.
func checkUnit(t *testing.T, root string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	unit := filepath.Join(root, "usr/lib/systemd/system/pawl.service")
	for _, other := range []string{"sysinit.target", "basic.target", "multi-user.target", "network-online.target", "shutdown.target", "system.slice"} {
		write(t, filepath.Join(filepath.Dir(unit), other), []byte("[Unit]\nDefaultDependencies=no\n"))
	}
	assert.Equal(t, said(t, exec.Command("systemd-analyze", "verify", "--man=no", "--root="+root, "pawl.service")), "")
	said(t, exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=15", unit)) // from 0, the best, to 100
}

// TestArchive unpacks the archive and looks at what belongs to a release.
func TestArchive(t *testing.T) {
	t.Parallel()
	out := buildOnce(t)
	dir, folder := t.TempDir(), "pawl_"+number+"_linux_amd64"
	said(t, exec.Command("tar", "-C", dir, "-xzf", filepath.Join(out, folder+".tar.gz")))
	for _, name := range []string{"LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "pawl.service", "man1/pawl-orders.1", "completions/_pawl", "completions/pawl.fish"} {
		assert.True(t, len(read(t, filepath.Join(dir, folder, name))) != 0, "empty", name)
	}
	program := filepath.Join(dir, folder, "pawl")
	info, err := buildinfo.ReadFile(program)
	assert.NoError(t, err)
	var bill struct {
		Components []struct{ Name, Version string }
	}
	assert.NoError(t, json.Unmarshal(read(t, filepath.Join(out, folder+".cdx.json")), &bill))
	for _, module := range info.Deps {
		assert.True(t, slices.Contains(bill.Components, struct{ Name, Version string }{module.Path, module.Version}),
			"the bill of materials lacks", module.Path, module.Version)
	}
	script := `source "$1"; COMP_WORDS=(pawl orders ca); COMP_CWORD=2; COMP_LINE="pawl orders ca"; COMP_POINT=14; PATH="$2:$PATH"
		_get_comp_words_by_ref() { cur=ca; prev=orders; words=(pawl orders ca); cword=2; }; __start_pawl; echo "${COMPREPLY[@]}"`
	text := said(t, exec.Command("bash", "-c", script, "bash", filepath.Join(dir, folder, "completions/pawl.bash"), filepath.Dir(program)))
	assert.True(t, strings.Contains(text, "cancel") && strings.Contains(text, "capture"), "completed to", text)
}

// TestImage unpacks the image and runs it as a container would be run: alone in a root folder that can't be written, without a
// name, a home and capabilities. An order is completed on a database that it reaches over the network.
func TestImage(t *testing.T) {
	t.Parallel()
	dir := dbtest.Folder(t)
	said(t, exec.Command("tar", "-C", dir, "-xf", filepath.Join(buildOnce(t), "pawl_"+number+"_image.tar")))
	index, err := layout.ImageIndexFromPath(dir)
	assert.NoError(t, err)
	outer, err := index.IndexManifest()
	assert.NoError(t, err)
	inner, err := index.ImageIndex(outer.Manifests[0].Digest)
	assert.NoError(t, err)
	manifest, err := inner.IndexManifest()
	assert.NoError(t, err)
	image, err := inner.Image(manifest.Manifests[0].Digest)
	assert.NoError(t, err)
	config, err := image.ConfigFile()
	assert.Require(t, err == nil && config.Config.User == nobody && config.OS+"/"+config.Architecture == "linux/amd64",
		config, err)
	root := filepath.Join(dir, "root")
	assert.NoError(t, os.Mkdir(root, 0o755))
	unpacking := exec.Command("tar", "-C", root, "-x")
	unpacking.Stdin = mutate.Extract(image)
	said(t, unpacking)
	if os.Geteuid() != 0 {
		t.Skip("needs root to run it in its root folder")
	}
	runImage(t, root, append(config.Config.Entrypoint, "--allow-data-loss", "--log-format", "text"))
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	assert.NoError(t, err)
	return content
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	assert.NoError(t, os.WriteFile(name, content, 0o644))
}

// said is what a command prints, which must succeed.
func said(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	text, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command.Args, " "), err, text)
	}
	return string(text)
}
