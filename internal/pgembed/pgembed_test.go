package pgembed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pawl/test/assert"
)

func TestServiceSettingsAreDurable(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: folder(t), Settings: map[string]string{}})
	for name, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "data_checksums": "on",
		"listen_addresses": "", "unix_socket_permissions": "0700", "server_encoding": "UTF8", "lc_messages": "C",
		"max_wal_size": "4GB", "wal_compression": "pglz", "max_connections": "100", "jit": "off", "log_min_messages": "warning", "TimeZone": "UTC",
	} {
		assert.Equal(t, query(t, s.URL("postgres"), "SELECT current_setting($1)", name), want, name)
	}
	assert.Equal(t, query(t, s.URL("postgres"), "SELECT datcollate FROM pg_database WHERE datname = 'postgres'"), "C",
		"collation is")
	if info, err := os.Stat(s.folders.socket); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket folder: %v %v", info.Mode(), err)
	}
}

func TestSharedBuffersFollowMemory(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{64 << 20: 32 << 20, 1 << 30: 256 << 20, 64 << 30: 512 << 20} {
		assert.Equal(t, sharedBuffers(memory), want, memory, "bytes of memory")
	}
}

// TestServerIsApartFromItsParent: it has a process group and an environment of its own, and no privileges. psql reaches
// it too.
func TestServerIsApartFromItsParent(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: filled(t)})
	if group, err := syscall.Getpgid(s.PID()); err != nil || group != s.PID() {
		t.Errorf("process group %d of %d: %v", group, s.PID(), err)
	}
	if owner, err := ownerOf(s.folders.data); owner == nil {
		t.Error("the data belongs to root", err)
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.PID())); err == nil {
		for name := range foreign {
			if strings.Contains(string(env), name+"=") {
				t.Errorf("the server sees %s", name)
			}
		}
	}
	assert.Equal(t, query(t, s.URL("template1"), "SELECT current_database()::text"), "template1")
	if psql, err := exec.LookPath("psql"); err == nil {
		out, err := exec.CommandContext(deadline(t), psql, s.URL("postgres"), "-Atc", "SELECT 40 + 2").CombinedOutput()
		if err != nil || string(out) != "42\n" {
			t.Errorf("psql: %v %s", err, out)
		}
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("is fast with clients connected and can be called again", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Dir: filled(t)})
		connect(t, s.URL("postgres"))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { stop(t, s) })
		}
		all.Wait()
		<-s.Exited()
		assert.NoError(t, s.Err())
		if exists(pidPath(s.folders.data)) {
			t.Fatal("no clean shutdown: postmaster.pid is still there")
		}
	})
	t.Run("is immediate when its context has ended, and loses nothing", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Dir: filled(t)}
		s := start(t, cfg)
		keepRow(t, s.URL("postgres"))
		// A stopped process can't shut down fast: the end of the context decides, not a race.
		assert.NoError(t, syscall.Kill(s.PID(), syscall.SIGSTOP))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		done := make(chan error)
		go func() { done <- s.Stop(ended) }()
		eventually(t, "SIGQUIT is pending", func() bool { return pending(t, s.PID(), syscall.SIGQUIT) })
		assert.NoError(t, syscall.Kill(s.PID(), syscall.SIGCONT))
		wantError(t, <-done, "recovers")
		rowKept(t, start(t, cfg).URL("postgres"))
	})
}

// pending tells whether a signal waits to be delivered (proc(5), SigPnd and ShdPnd).
func pending(t *testing.T, pid int, sig syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("needs /proc")
	}
	for line := range strings.Lines(string(status)) {
		var mask uint64
		if _, err := fmt.Sscanf(line, "ShdPnd: %x", &mask); err == nil {
			return mask&(1<<(sig-1)) != 0
		}
	}
	return false
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for range 20 {
		ctx, cancel := context.WithCancel(deadline(t))
		cfg := Config{Dir: folder(t), Settings: quick}
		done := make(chan error)
		var s *Server
		go func() {
			var err error
			s, err = Start(ctx, cfg)
			done <- err
		}()
		eventually(t, "initdb is at work", func() bool {
			return len(globbed(t, cfg.Dir, "data.new-*", "base")) > 0 || exists(filepath.Join(cfg.Dir, "data"))
		})
		cancel()
		err := <-done
		if err == nil { // it had started before that: once more
			stop(t, s)
			continue
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		query(t, start(t, cfg).URL("postgres"), "SELECT 'works'")
		return
	}
	t.Fatal("it had started before its context ended, twenty times")
}

func TestSecondCopyIsRefused(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	holder := runChild(t, dir, nil)
	_, url := holder.ready(t)
	_, err := Start(deadline(t), Config{Dir: dir})
	if !errors.Is(err, ErrInUse) {
		t.Fatal(err)
	}
	wantError(t, err, dir, fmt.Sprint(holder.cmd.Process.Pid))
	query(t, url, "SELECT 'undisturbed'")
	holder.finish(t)
	start(t, Config{Dir: dir})
}

func TestDefaultDir(t *testing.T) {
	if os.Geteuid() == 0 {
		if dir, err := DefaultDir(); dir != "/var/lib/pawl" || err != nil {
			t.Fatal(dir, err)
		}
		return
	}
	t.Setenv("XDG_DATA_HOME", "/data")
	if dir, err := DefaultDir(); dir != "/data/pawl" || err != nil {
		t.Fatal(dir, err)
	}
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("HOME", "/home/somebody")
	if dir, err := DefaultDir(); dir != "/home/somebody/.local/share/pawl" || err != nil {
		t.Fatal(dir, err)
	}
}
