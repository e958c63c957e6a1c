package pgembed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

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
	info, err := os.Stat(s.folders.socket)
	assert.True(t, err == nil && info.Mode().Perm() == 0o700, "socket folder", info.Mode(), err)
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
	owner, err := ownerOf(s.folders.data)
	assert.True(t, owner != nil, "the data belongs to root", err)
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.PID())); err == nil {
		for name := range foreign {
			assert.True(t, !strings.Contains(string(env), name+"="), "the server sees", name)
		}
	}
	assert.Equal(t, query(t, s.URL("template1"), "SELECT current_database()::text"), "template1")
	if psql, err := exec.LookPath("psql"); err == nil {
		out, err := exec.CommandContext(deadline(t), psql, s.URL("postgres"), "-Atc", "SELECT 40 + 2").CombinedOutput()
		assert.True(t, err == nil && string(out) == "42\n", "psql", err, out)
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
		assert.True(t, !exists(pidPath(s.folders.data)), "no clean shutdown: postmaster.pid is still there")
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
		assert.Require(t, errors.Is(err, context.Canceled), err)
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
	assert.Require(t, errors.Is(err, ErrInUse), err)
	wantError(t, err, dir, fmt.Sprint(holder.cmd.Process.Pid))
	query(t, url, "SELECT 'undisturbed'")
	holder.finish(t)
	start(t, Config{Dir: dir})
}

func TestDefaultDir(t *testing.T) {
	if os.Geteuid() == 0 {
		dir, err := DefaultDir()
		assert.Require(t, dir == "/var/lib/pawl" && err == nil, dir, err)
		return
	}
	t.Setenv("XDG_DATA_HOME", "/data")
	if dir, err := DefaultDir(); dir != "/data/pawl" || err != nil {
		t.Fatal(dir, err)
	}
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("HOME", "/home/somebody")
	dir, err := DefaultDir()
	assert.True(t, dir == "/home/somebody/.local/share/pawl" && err == nil, dir, err)
}

// The folder of the socket is the first lock. These tests open it, and look at the second one.
func TestOtherUsersAreNotLetIn(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: folder(t), Settings: map[string]string{"fsync": "off", "shared_buffers": "16MB", "unix_socket_permissions": "0777"}})
	t.Run("no way in is trusted, and none leads over the network", func(t *testing.T) {
		t.Parallel()
		const rules = `SELECT string_agg(concat_ws(' ', type, user_name, auth_method, error), ', ' ORDER BY line_number) FROM pg_hba_file_rules`
		assert.Equal(t, query(t, s.URL("postgres"), rules), "local {pawl} peer, local {all} scram-sha-256")
	})
	t.Run("another role needs its password", func(t *testing.T) {
		t.Parallel()
		query(t, s.URL("postgres"), "SELECT 'works'")
		assert.NoError(t, assert.Err(connect(t, s.URL("postgres")).Exec(deadline(t), "CREATE ROLE reader LOGIN PASSWORD 'hush'")))
		for password, want := range map[string]string{"hush": "connected", "": "failed", "guess": "28P01"} {
			assert.Contains(t, tryURL(asRole(t, s, url.UserPassword("reader", password))), want, "with the password", password)
		}
	})
	t.Run("another user of the machine can't be the superuser", func(t *testing.T) {
		t.Parallel()
		onlyRoot(t)
		assert.NoError(t, os.Chmod(s.folders.socket, 0o755))
		for _, name := range []string{"nobody", "daemon", "postgres", "pawl"} { // the last one runs the server
			assert.Contains(t, tryAs(t, name, s.URL("postgres")), "Peer authentication failed", "as", name)
		}
	})
}

// The files with the access rules are written at every start, even if they were changed.
func TestAccessIsWrittenAnew(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: folder(t)}
	s := start(t, cfg)
	stop(t, s)
	for _, name := range []string{"pg_hba.conf", "pg_ident.conf"} {
		assert.NoError(t, replaceOwned(s.folders.data, name, []byte("local all all trust\n"), s.account))
	}
	s = start(t, cfg)
	assert.Equal(t, query(t, s.URL("postgres"), "SELECT count(*)::text FROM pg_hba_file_rules WHERE auth_method = 'trust'"), "0",
		"lines trust")
}

// tryURL says how it went to connect.
func tryURL(databaseURL string) string {
	conn, err := pgx.Connect(context.Background(), databaseURL)
	if err != nil {
		return err.Error()
	}
	conn.Close(context.Background())
	return "connected"
}

// tryAs has another user of the machine connect.
func tryAs(t *testing.T, name, databaseURL string) string {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PGEMBED_HELPER_URL="+databaseURL)
	asUser(t, cmd, lookup(t, name))
	printed, err := cmd.CombinedOutput()
	assert.NoError(t, err, printed)
	return string(printed)
}

func asRole(t *testing.T, s *Server, role *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(s.URL("postgres"))
	assert.NoError(t, err)
	u.User = role
	return u.String()
}

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
					assert.True(t, !exists(filepath.Join(dir, "data", "postmaster.pid")), "it did not shut down cleanly")
				}
				s := start(t, Config{Dir: dir})
				rowKept(t, s.URL("postgres"))
				assert.True(t, s.PID() != pid && !alive(pid), "the first server is still there")
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
			rest := globbed(t, dir, "data.new-*")
			assert.Require(t, len(rest) == 0, "left behind", rest)
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
			assert.Require(t, number == s.PID() || syscall.Kill(number, 0) == nil, "a process that is not ours was ended")
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
