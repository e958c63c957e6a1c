// Package pgembed runs a real PostgreSQL server as a child process, for machines where nobody has set one up.
//
// It is a default, not a toy: fsync, synchronous_commit and full_page_writes stay on, data pages carry checksums, and
// an existing data folder is never initialised again or removed. The server listens on a unix socket only, in a folder
// that no other user can enter. Behind it, PostgreSQL asks the kernel who connects: only root and the user of this
// process may do so without a password.
//
// The server ends with this process, also after SIGKILL: Linux sends it SIGINT when its parent dies (prctl(2),
// PR_SET_PDEATHSIG); elsewhere the next Start finds the left-over server and stops it first.
//
// Supported are Linux and macOS, as root (the server then runs as an unprivileged user, because initdb and postgres
// refuse root) and as an ordinary user. Programs that somebody else could have put in the place of PostgreSQL are not run.
package pgembed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrInUse says that another process holds the data folder. The error that wraps it names the folder and the process.
var ErrInUse = errors.New("data folder is in use")

// ErrNoData says that there is no data in the folder, and that Config.Existing forbids to make it.
var ErrNoData = errors.New("there is no PostgreSQL data")

// ErrSetting says that BinDir or User names something that can't be used. To start again does not help.
var ErrSetting = errors.New("wrong setting")

const (
	superuser = "pawl"
	port      = "5432" // names the socket file only: the server has no TCP port
)

// Config says where the server keeps its data and what it runs. The zero value is usable.
type Config struct {
	// Dir is the base folder: data (the cluster), run (the socket), log, lock and startup.log live in it. "" is DefaultDir.
	Dir string
	// BinDir is the folder of postgres and initdb. "" looks for one: the highest installed major from 14 on, a download
	// cached in CacheDir. An existing data folder is opened by its own major only.
	BinDir string
	// CacheDir keeps the downloaded server. "" is pawl/postgres in the user's cache folder, /var/cache/pawl as root.
	CacheDir string
	// User is the account the server runs as when this process is root, neither root nor nobody. "" takes the owner of an
	// existing data folder, else the user pawl, which is made where there is none. Other users run the server as themselves.
	User string
	// Existing forbids to make anything where there is no data yet: Start returns an error that wraps ErrNoData.
	Existing bool
	// Settings are server settings that win over those of this package.
	Settings map[string]string
	// Log is told about starts, stops, downloads and left-over servers. nil is silent.
	Log *slog.Logger

	binDirs            func() []string // installed servers to choose from; installedBinDirs but in tests
	withoutDeathSignal bool            // behave as where the kernel does not tell a child of its parent's death
}

// Server is a running PostgreSQL server. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	folders folders
	account *account
	bin     binaries
	process *process
	lock    *os.File
	release sync.Once

	looking bool // for Look: nothing is made or fetched
	skipped []Skipped
}

// DefaultDir is /var/lib/pawl for root, else $XDG_DATA_HOME/pawl, or ~/.local/share/pawl where that is unset
// (XDG Base Directory Specification).
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/pawl", nil
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "pawl"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("choose data folder: %w", err)
	}
	return filepath.Join(home, ".local", "share", "pawl"), nil
}

// Start starts the server on cfg.Dir and returns when it answers queries. An empty folder is initialised first, and a
// server that an earlier process left running there is stopped. Recovery after a crash takes as long as ctx allows;
// once Start has returned, ctx no longer matters. The caller must call Stop, also after the server has ended by itself.
// Start returns an error that wraps ErrInUse when another process holds the folder, and ErrSetting for a BinDir or User
// that can't be used.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	began := time.Now()
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	version, err := s.start(ctx)
	if err != nil {
		s.close()
		return nil, err
	}
	s.cfg.Log.Info("started PostgreSQL", "version", version, "pid", s.PID(), "data", s.folders.data, "bin", s.bin.dir,
		"took_ms", time.Since(began).Milliseconds())
	return s, nil
}

// URL is the connection string of a database on this server, for pgx, database/sql and psql. It holds no password: root
// and the user of this process may connect without one.
func (s *Server) URL(database string) string {
	return socketURL(s.folders.socket, port, database)
}

// PID is the process id of the server's first process.
func (s *Server) PID() int { return s.process.cmd.Process.Pid }

// Exited is closed when the server process has ended, whoever ended it.
func (s *Server) Exited() <-chan struct{} { return s.process.exited }

// Err says why the server ended without Stop. It is nil while the server runs and after Stop ended it.
func (s *Server) Err() error {
	select {
	case <-s.process.exited:
	default:
		return nil
	}
	if s.process.asked {
		return nil
	}
	return fmt.Errorf("PostgreSQL process %d ended unasked: %s (log in %s)", s.PID(), s.process.cmd.ProcessState, s.folders.log)
}

// Stop ends the server and gives the folder free. It asks for a fast shutdown, which disconnects clients and writes a
// checkpoint; after 20 seconds, or when ctx ends, for an immediate one, which loses nothing committed but makes the
// next start recover. Only the latter is an error. Calling Stop again is harmless.
func (s *Server) Stop(ctx context.Context) error {
	err := s.process.stop(ctx)
	s.close()
	return err
}

// complete fills in what was left out.
func (cfg *Config) complete() (err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.binDirs == nil {
		cfg.binDirs = installedBinDirs
	}
	if cfg.Dir == "" {
		cfg.Dir, err = DefaultDir()
	}
	return err
}

func open(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if cfg.Existing { // a folder that we may not look into may have data
		if _, err := os.Stat(filepath.Join(cfg.Dir, "data", "PG_VERSION")); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w in %s", ErrNoData, cfg.Dir)
		}
	}
	folders, err := openFolders(cfg.Dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockFolder(folders.base)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, folders: folders, lock: lock}, nil
}

func (s *Server) start(ctx context.Context) (version string, err error) {
	if s.account, err = s.chooseAccount(ctx); err != nil {
		return "", err
	}
	if err := s.folders.prepare(s.account); err != nil {
		return "", err
	}
	major, err := s.folders.major()
	if err != nil {
		return "", err
	}
	if s.bin, err = s.findBinaries(ctx, major); err != nil {
		return "", err
	}
	if err := s.checkReach(ctx); err != nil {
		return "", err
	}
	if err := s.stopLeftover(ctx); err != nil {
		return "", err
	}
	if major == 0 {
		if err := s.initialise(ctx); err != nil {
			return "", err
		}
	}
	if err := s.writeAccess(); err != nil {
		return "", err
	}
	return s.run(ctx)
}

// close gives the folder free. It must come after the end of the process: the lock is what keeps a second server away.
func (s *Server) close() {
	s.release.Do(func() {
		if s.folders.temporary {
			os.RemoveAll(s.folders.socket)
		}
		unlock(s.lock)
	})
}

// answer asks the server for its version: a server that is ready may still refuse us.
func (s *Server) answer(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", fmt.Errorf("query PostgreSQL: %w", err)
	}
	return version, nil
}
