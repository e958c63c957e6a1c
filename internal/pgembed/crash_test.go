package pgembed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"pawl/test/assert"
)

func TestParentKilled(t *testing.T) {
	t.Parallel()
	for name, orphan := range map[string]bool{"the server ends with its parent": false, "an orphaned server is stopped by the next start": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !orphan && runtime.GOOS != "linux" {
				t.Skip("only Linux sends a signal when a parent dies")
			}
			for _, wait := range []bool{false, true} {
				dir := filled(t)
				c := runChild(t, dir, func(cmd *exec.Cmd) {
					if orphan {
						cmd.Env = append(cmd.Env, "PGEMBED_HELPER_ORPHANS=1")
					}
				})
				pid, url := c.ready(t)
				keepRow(t, url)
				c.kill()
				switch {
				case orphan:
					query(t, url, "SELECT 'the orphan answers'")
				case wait: // else the next start does
					eventually(t, "the server has ended", func() bool { return !alive(pid) })
					if exists(filepath.Join(dir, "data", "postmaster.pid")) {
						t.Error("it did not shut down cleanly")
					}
				}
				s := start(t, Config{Dir: dir})
				rowKept(t, s.URL("postgres"))
				if s.PID() == pid || alive(pid) {
					t.Error("the first server is still there")
				}
			}
		})
	}
	t.Run("killed half-way through initdb", func(t *testing.T) {
		t.Parallel()
		for range 20 {
			dir := folder(t)
			c := runChild(t, dir, nil)
			eventually(t, "initdb is at work", func() bool {
				return len(globbed(t, dir, "data.new-*", "base", "1")) > 0 || exists(filepath.Join(dir, "data"))
			})
			c.kill()
			tooLate := exists(filepath.Join(dir, "data")) // then it is whole: the server starts on it
			query(t, start(t, Config{Dir: dir}).URL("postgres"), "SELECT 'works'")
			if rest := globbed(t, dir, "data.new-*"); len(rest) > 0 {
				t.Fatalf("left behind: %s", rest)
			}
			if !tooLate {
				return
			}
		}
		t.Fatal("initdb was done before it could be killed, twenty times")
	})
}

func TestServerKilled(t *testing.T) {
	t.Parallel()
	t.Run("is told, and the next start recovers", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Dir: filled(t)}
		s := start(t, cfg)
		keepRow(t, s.URL("postgres"))
		killServer(t, s)
		wantError(t, s.Err(), "killed", s.folders.log)
		stop(t, s)
		wantError(t, s.Err(), "killed")
		rowKept(t, start(t, cfg).URL("postgres"))
	})
	t.Run("the next start waits for a backend that outlived its server", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Dir: filled(t)}
		s := start(t, cfg)
		var backend int
		conn := connect(t, s.URL("postgres"))
		assert.NoError(t, conn.QueryRow(deadline(t), "SELECT pg_backend_pid()").Scan(&backend))
		signal(t, backend, syscall.SIGSTOP) // it can't notice that its server is gone
		killServer(t, s)
		stop(t, s)
		restarted := make(chan error)
		go func() {
			next, err := Start(deadline(t), cfg)
			if err == nil {
				err = next.Stop(t.Context())
			}
			restarted <- err
		}()
		eventually(t, "PostgreSQL has refused to start", func() bool {
			text, _ := os.ReadFile(s.folders.startupLog())
			return strings.Contains(string(text), "shared memory block")
		})
		signal(t, backend, syscall.SIGCONT)
		assert.NoError(t, <-restarted)
	})
}

func killServer(t *testing.T, s *Server) {
	t.Helper()
	signal(t, s.PID(), syscall.SIGKILL)
	<-s.Exited()
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	assert.NoError(t, syscall.Kill(pid, sig))
}

// A pid file outlives the server that wrote it: a crash of the machine, a container's next boot.
func TestStalePIDFile(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]func(*testing.T, *Server) int{
		"of a process that is no more":       nobodys,
		"whose number another program has":   sleeper,
		"whose number a zombie still holds":  zombie,
		"whose number belongs to PostgreSQL": otherServer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: filled(t)}
			s := killed(t, cfg)
			number := pid(t, s)
			replacePID(t, s.folders.data, number)
			query(t, start(t, cfg).URL("postgres"), "SELECT 'works'")
			if number != s.PID() && syscall.Kill(number, 0) != nil {
				t.Fatal("a process that is not ours was ended")
			}
		})
	}
}

func replacePID(t *testing.T, data string, pid int) {
	t.Helper()
	text, err := os.ReadFile(pidPath(data))
	assert.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "\n")
	assert.NoError(t, os.WriteFile(pidPath(data), fmt.Appendf(nil, "%d\n%s", pid, rest), 0o600))
}

// nobodys is the ID of a process that has ended.
func nobodys(_ *testing.T, s *Server) int { return s.PID() }

// otherServer is a live PostgreSQL server on another folder.
func otherServer(t *testing.T, _ *Server) int {
	t.Helper()
	return start(t, Config{Dir: filled(t)}).PID()
}

// sleeper is a foreign process of the server's own user, the case that PostgreSQL by itself takes for a live server.
func sleeper(t *testing.T, s *Server) int {
	t.Helper()
	cmd := command("/bin/sleep", s.account, "600")
	p, err := launch(cmd)
	assert.NoError(t, err)
	t.Cleanup(func() { p.signal(syscall.SIGKILL); <-p.exited })
	return cmd.Process.Pid
}

// zombie is a process that has ended and was not waited for.
func zombie(t *testing.T, _ *Server) int {
	t.Helper()
	cmd := exec.Command("/bin/true")
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	eventually(t, "the process has ended", func() bool { return !alive(cmd.Process.Pid) })
	return cmd.Process.Pid
}
