package pgembed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile is what PostgreSQL says about itself in postmaster.pid (src/include/utils/pidfile.h): line 1 is the process,
// line 8 the status.
type pidFile struct {
	pid    int
	status string
	lines  []string
}

func pidPath(data string) string { return filepath.Join(data, "postmaster.pid") }

func readPIDFile(data string) (pidFile, error) {
	text, err := readOwned(pidPath(data))
	if err != nil {
		return pidFile{}, err
	}
	f := pidFile{lines: strings.Split(string(text), "\n")}
	if f.pid, err = strconv.Atoi(strings.TrimSpace(f.lines[0])); err != nil {
		return pidFile{}, err
	}
	if len(f.lines) >= 8 {
		f.status = strings.TrimSpace(f.lines[7])
	}
	return f, nil
}

// stopLeftover ends a server that outlived the process that started it. We hold the lock, so nobody else does.
func (s *Server) stopLeftover(ctx context.Context) error {
	f, err := readPIDFile(s.folders.data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	if !s.serves(f.pid) {
		return s.disownPID(f)
	}
	s.cfg.Log.Warn("stopping the PostgreSQL server of an earlier run", "pid", f.pid, "data", s.folders.data)
	for _, step := range []struct {
		sig   syscall.Signal
		limit time.Duration
	}{{syscall.SIGINT, fastShutdownLimit}, {syscall.SIGQUIT, immediateShutdownLimit}} {
		if err := syscall.Kill(f.pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the PostgreSQL server %d of an earlier run: %w", f.pid, err)
		}
		if gone, err := s.awaitGone(ctx, f.pid, step.limit); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("the PostgreSQL server %d of an earlier run still uses %s: end it and start again", f.pid, s.folders.data)
}

func (s *Server) awaitGone(ctx context.Context, pid int, limit time.Duration) (gone bool, err error) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if !s.serves(pid) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("stop the PostgreSQL server %d of an earlier run: %w", pid, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false, nil
}

// serves tells whether pid is a live server on our data folder: its command line names the folder. A process number
// alone proves nothing, it may have been given out again, and a zombie has no command line.
func (s *Server) serves(pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		if ps, err := findProgram("ps"); err == nil {
			line, _ = exec.Command(ps, "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
		}
	}
	words := strings.ReplaceAll(strings.TrimSpace(string(line)), "\x00", " ") + " "
	return strings.Contains(words, "postgres") && strings.Contains(words, " "+s.folders.data+" ")
}

// disownPID handles a process number that now belongs to another program. PostgreSQL would take that program for a
// live server and refuse to start, unless the number is its own parent's, which is us. The file is kept for its other lines: by
// the shared memory named there PostgreSQL notices backends that outlived their server, and they could spoil the data.
func (s *Server) disownPID(f pidFile) error {
	if taken := syscall.Kill(f.pid, 0) == nil; !taken {
		return nil // PostgreSQL sees that by itself
	}
	f.lines[0] = strconv.Itoa(os.Getpid())
	if err := replaceOwned(s.folders.data, filepath.Base(pidPath(s.folders.data)), []byte(strings.Join(f.lines, "\n")), s.account); err != nil {
		return fmt.Errorf("renew postmaster.pid: %w", err)
	}
	return nil
}

// Running finds the server that runs on a base folder, whichever process started it, and returns the connection string
// of its database postgres. Not ok means that no server accepts connections there, or that we may
// not look: only root and the server's own user can open the folders of data and socket.
func Running(dir string) (databaseURL string, ok bool) {
	f, err := readPIDFile(filepath.Join(dir, "data"))
	if err != nil || f.status != "ready" {
		return "", false
	}
	// The file outlives a server that was killed.
	conn, err := net.DialTimeout("unix", filepath.Join(f.socket(), ".s.PGSQL."+f.port()), time.Second)
	if err != nil {
		return "", false
	}
	conn.Close()
	return socketURL(f.socket(), f.port(), "postgres"), true
}

// port and socket are lines 4 and 5, which are there when the server is ready.
func (f pidFile) port() string   { return strings.TrimSpace(f.lines[3]) }
func (f pidFile) socket() string { return strings.TrimSpace(f.lines[4]) }

func socketURL(socket, port, database string) string {
	query := url.Values{"host": {socket}, "port": {port}}
	// A plus stands for a space in forms only: neither libpq nor pgx takes it for one.
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: encoded}
	return u.String()
}
