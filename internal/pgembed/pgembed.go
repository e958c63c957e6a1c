// Package pgembed runs a PostgreSQL server as a child process, for machines without one.
//
// It is meant for production: fsync, synchronous_commit and full_page_writes stay on, data pages have checksums, and
// existing data is never initialized again or removed. The server listens only on a Unix socket, in a folder that other
// users can't enter. Root and the user of this process need no password (peer authentication).
//
// The server ends with this process, even after SIGKILL: Linux sends it SIGINT when its parent dies (prctl(2),
// PR_SET_PDEATHSIG); elsewhere the next Start stops the left-over server first.
//
// Linux and macOS are supported, as an ordinary user and as root, who runs the server as an unprivileged user, because
// initdb and postgres reject root. It runs no programs that another user could have replaced.
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

// ErrInUse is the error if another process holds the data folder. The wrapping error names both.
var ErrInUse = errors.New("data folder is in use")

// ErrNoData is the error if the folder has no data, and Config.Existing forbids creating it.
var ErrNoData = errors.New("there is no PostgreSQL data")

// ErrSetting is the error if BinDir or User can't be used. Starting again does not help.
var ErrSetting = errors.New("invalid setting")

const (
	superuser = "pawl"
	port      = "5432" // only in the name of the socket file: the server has no TCP port
)

// Config says where the server keeps its data, and which programs it runs. The zero value is usable.
type Config struct {
	// Dir is the base folder, with data (the cluster), run (the socket), log, lock and startup.log. "": DefaultDir.
	Dir string
	// BinDir is the folder of postgres and initdb. "": the highest installed major from 14 on, else a download in
	// CacheDir. Existing data is only opened by its own major.
	BinDir string
	// CacheDir keeps the download. "": pawl/postgres in the user's cache folder; /var/cache/pawl as root.
	CacheDir string
	// User runs the server when this process is root; neither root nor nobody. "": the owner of existing data, else the
	// user pawl, who is created if missing. Without root, the server always runs as the current user.
	User string
	// Existing makes Start return ErrNoData instead of creating anything where there is no data yet.
	Existing bool
	// Settings are settings of the server that override those of this package.
	Settings map[string]string
	// Log is for starts, stops, downloads and left-over servers. nil: none.
	Log *slog.Logger

	binDirs            func() []string // installed servers to choose from; tests replace installedBinDirs
	withoutDeathSignal bool            // for tests: behave as where the kernel sends no signal when a parent dies
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

	looking bool // for Look: nothing is created or downloaded
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

// Start starts the server on cfg.Dir and returns when it answers queries. It initializes an empty folder first, and
// stops a server that an earlier process has left running there. Recovery after a crash may take as long as ctx; ctx
// does not matter once Start has returned. The caller must call Stop, even after the server has ended by itself.
// Errors: ErrInUse, ErrNoData, ErrSetting.
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

// URL is the connection string of a database on this server, for pgx and psql. It has no password, because root and the
// user of this process need none.
func (s *Server) URL(database string) string {
	return socketURL(s.folders.socket, port, database)
}

// PID is the process ID of the postmaster.
func (s *Server) PID() int { return s.process.cmd.Process.Pid }

// Exited is closed when the server process has ended, for any reason.
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
	return fmt.Errorf("PostgreSQL process %d ended unexpectedly: %s (log in %s)", s.PID(), s.process.cmd.ProcessState, s.folders.log)
}

// Stop ends the server and releases the folder. It asks for a fast shutdown, which disconnects clients and writes a
// checkpoint; after 20 seconds, or when ctx ends, for an immediate one, which loses nothing committed but makes the
// next start recover. Only that is an error. Calling Stop again is harmless.
func (s *Server) Stop(ctx context.Context) error {
	err := s.process.stop(ctx)
	s.close()
	return err
}

// complete sets the defaults.
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
	if cfg.Existing { // a folder that can't be read may have data
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
		if err := s.initialize(ctx); err != nil {
			return "", err
		}
	}
	if err := s.writeAccess(); err != nil {
		return "", err
	}
	return s.run(ctx)
}

// close releases the folder. It must come after the end of the process, because the lock keeps a second server away.
func (s *Server) close() {
	s.release.Do(func() {
		if s.folders.temporary {
			os.RemoveAll(s.folders.socket)
		}
		unlock(s.lock)
	})
}

// answer returns the version of the server. It connects, because a server that is ready may still reject us.
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
