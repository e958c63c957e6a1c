package pgembed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pawl/test/assert"
)

// What root writes must stay where it is meant to be, whatever the server's user has put in its folders.
func TestLinksOfTheServerUserAreNotFollowed(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(*Server) string{
		"the startup log in the log folder":  func(s *Server) string { return filepath.Join(s.folders.log, "startup.log") },
		"the startup log in the base folder": func(s *Server) string { return s.folders.startupLog() },
		"the new postmaster.pid":             func(s *Server) string { return pidPath(s.folders.data) + ".new" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: filled(t)}
			s := killed(t, cfg)
			replacePID(t, s.folders.data, sleeper(t, s)) // so that postmaster.pid is written
			target := plant(t, link(s), "precious")
			query(t, start(t, cfg).URL("postgres"), "SELECT 'works'")
			wantContent(t, target, "precious")
		})
	}
	t.Run("postmaster.pid", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Dir: filled(t), Settings: quick}
		s := killed(t, cfg)
		content := fmt.Sprintf("%d\n%s\n", sleeper(t, s), s.folders.data)
		assert.NoError(t, os.Remove(pidPath(s.folders.data)))
		target := plant(t, pidPath(s.folders.data), content)
		assert.ErrorIs(t, assert.Err(Start(deadline(t), cfg)), syscall.ELOOP, "start")
		wantContent(t, target, content)
	})
	t.Run("the lock", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Dir: folder(t), Settings: quick}
		target := plant(t, filepath.Join(cfg.Dir, "lock"), "precious")
		assert.ErrorIs(t, assert.Err(Start(deadline(t), cfg)), syscall.ELOOP, "start")
		wantContent(t, target, "precious")
	})
}

func TestReplaceOwnedLeavesTheTargetOfALinkAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := plant(t, filepath.Join(dir, "name"), "precious")
	assert.NoError(t, replaceOwned(dir, "name", []byte("new"), nil))
	wantContent(t, target, "precious")
	wantContent(t, filepath.Join(dir, "name"), "new")
}

func TestReadOwnedWantsARegularFile(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	assert.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err := readOwned(fifo)
	wantError(t, err, "not a regular file")
}

// killed is a server that had no time to remove its postmaster.pid.
func killed(t *testing.T, cfg Config) *Server {
	t.Helper()
	s := start(t, cfg)
	killServer(t, s)
	stop(t, s)
	return s
}

// plant makes a file of our own and a link to it.
func plant(t *testing.T, link, content string) (target string) {
	t.Helper()
	target = filepath.Join(t.TempDir(), "target")
	assert.NoError(t, os.WriteFile(target, []byte(content), 0o600))
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	assert.NoError(t, os.Symlink(target, link))
	return target
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		t.Fatalf("%s: %v %v", path, info, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != want {
		t.Fatalf("%s holds %q, want %q (%v)", path, text, want, err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		t.Fatalf("%s belongs to user %d", path, stat.Uid)
	}
}

// TestRunning finds the server of a folder, also one whose name is too long for a socket, which then lies elsewhere
// until Stop.
func TestRunning(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"base", strings.Repeat("long", 25)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: filepath.Join(folder(t), name)}
			if _, ok := Running(cfg.Dir); ok {
				t.Fatal("found before the start")
			}
			s := start(t, cfg)
			if s.folders.temporary != (name != "base") || len(s.folders.socket) > 60 {
				t.Errorf("%+v", s.folders)
			}
			got, ok := Running(cfg.Dir)
			if !ok || got != s.URL("postgres") {
				t.Fatalf("%q %v, want %q", got, ok, s.URL("postgres"))
			}
			query(t, got, "SELECT 'works'")
			killServer(t, s)
			// A child that was forked a moment before may have the socket open a moment longer.
			eventually(t, "it is not found after its end", func() bool { _, ok := Running(cfg.Dir); return !ok })
			if stop(t, s); s.folders.temporary && exists(s.folders.socket) {
				t.Error("the folder of the socket was left behind")
			}
		})
	}
}

// A descriptor that a forked child has not closed yet must not keep the folder locked.
func TestUnlockWhileAChildHoldsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := flock(path)
	assert.NoError(t, err)
	inherited, err := syscall.Dup(int(first.Fd()))
	assert.NoError(t, err)
	defer syscall.Close(inherited)
	unlock(first)
	second, err := flock(path)
	assert.NoError(t, err, "locked still")
	unlock(second)
}
