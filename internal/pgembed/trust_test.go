package pgembed

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pawl/test/assert"
)

// plantedServer is a folder with a server in it that leaves a mark if it runs.
func plantedServer(t *testing.T) (parent, dir string, ran func() bool) {
	t.Helper()
	parent = folder(t)
	dir = filepath.Join(parent, "bin")
	assert.NoError(t, os.Mkdir(dir, 0o755))
	mark := filepath.Join(folder(t), "mark")
	assert.NoError(t, os.Chmod(filepath.Dir(mark), 0o777))
	for _, name := range []string{"postgres", "initdb"} {
		writeProgram(t, filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\ntouch %s\necho 'postgres (PostgreSQL) 17.2'\n", mark))
	}
	return parent, dir, func() bool { return exists(mark) }
}

func TestPlantedServerIsRefused(t *testing.T) {
	t.Parallel()
	mode := func(mode os.FileMode) func(*testing.T, string) error {
		return func(_ *testing.T, path string) error { return os.Chmod(path, mode) }
	}
	anothers := func(t *testing.T, path string) error { t.Helper(); onlyRoot(t); return lookup(t, "daemon").own(path) }
	group := func(t *testing.T, path string) error {
		t.Helper()
		onlyRoot(t)
		return errors.Join(os.Chown(path, 0, int(lookup(t, "daemon").gid)), os.Chmod(path, 0o775))
	}
	for _, c := range []struct {
		what, path, why string // path within the parent of the folder
		change          func(*testing.T, string) error
	}{
		{"a folder of another user", "bin", "belongs to user", anothers},
		{"a folder in one of another user", ".", "belongs to user", anothers},
		{"a program of another user", "bin/postgres", "belongs to user", anothers},
		{"the other program of another user", "bin/initdb", "belongs to user", anothers},
		{"a folder that everybody may write", "bin", "writable by everyone", mode(0o777)},
		{"a folder in one that everybody may write", ".", "writable by everyone", mode(0o777)},
		{"a folder like /tmp", "bin", "writable by everyone", mode(0o777 | os.ModeSticky)},
		{"a program that everybody may write", "bin/postgres", "writable by everyone", mode(0o777)},
		{"a folder that another group may write", "bin", "writable by group", group},
		{"a folder in one that another group may write", ".", "writable by group", group},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			parent, dir, ran := plantedServer(t)
			assert.NoError(t, c.change(t, filepath.Join(parent, c.path)))
			wantRefused(t, dir, c.why)
			link := filepath.Join(folder(t), "link")
			assert.NoError(t, os.Symlink(dir, link))
			wantRefused(t, link, c.why)
			assert.True(t, !ran(), "it ran")
		})
	}
}

// wantRefused looks at both ways to a server: found on the machine, and named in the settings.
func wantRefused(t *testing.T, dir, why string) {
	t.Helper()
	var log strings.Builder
	s := &Server{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	assert.Equal(t, s.bestOf(deadline(t), []string{dir}, 0).dir, "", "is chosen")
	assert.Contains(t, log.String(), why)
	_, err := Start(deadline(t), Config{Dir: folder(t), BinDir: dir})
	wantError(t, err, "another user could have replaced it", why)
	assert.ErrorIs(t, err, ErrSetting, "no wrong setting")
}

func TestServersOfOurOwnAreRun(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(parent, dir string) error{
		"in a folder that only we may write":            func(_, _ string) error { return nil },
		"in a folder that only our own group may write": func(_, dir string) error { return os.Chmod(dir, 0o775) },
		"below a folder like /tmp":                      func(parent, _ string) error { return os.Chmod(parent, 0o777|os.ModeSticky) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			parent, dir, ran := plantedServer(t)
			assert.NoError(t, change(parent, dir))
			s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			got := s.bestOf(deadline(t), []string{dir}, 0)
			assert.True(t, got.dir == dir && ran(), "chosen", got, "ran", ran())
		})
	}
}

func TestPlantedCacheIsRefused(t *testing.T) {
	t.Parallel()
	cache := folder(t)
	assert.NoError(t, os.Chmod(cache, 0o777))
	_, err := Start(deadline(t), Config{Dir: folder(t), CacheDir: cache, binDirs: listing()})
	wantError(t, err, "use cache folder", cache, "chmod o-w")
}

// fakeNpm is a folder with an npm as distributions install it, whose node says what it sees and fails.
func fakeNpm(t *testing.T) (dir string, seen func() string) {
	t.Helper()
	dir, said := folder(t), filepath.Join(folder(t), "said")
	assert.NoError(t, os.Mkdir(filepath.Join(dir, "lib"), 0o755))
	writeProgram(t, filepath.Join(dir, "lib", "npm-cli.js"), []byte("#!/usr/bin/env node\n"))
	writeProgram(t, filepath.Join(dir, "node"), fmt.Appendf(nil, "#!/bin/sh\nexec >%s; echo \"$@\"; env; ls -A\nexit 1\n", said))
	assert.NoError(t, os.Symlink("lib/npm-cli.js", filepath.Join(dir, "npm")))
	return dir, func() string {
		text, err := os.ReadFile(said)
		assert.NoError(t, err)
		return string(text)
	}
}

// npm sees nothing of ours, and runs in a folder where only our own files tell it what to do.
func TestNpmGetsACleanEnvironment(t *testing.T) {
	bin, seen := fakeNpm(t)
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	t.Setenv("https_proxy", "http://proxy.example:3128")
	hidden := []string{"NODE_OPTIONS", "NODE_PATH", "LD_PRELOAD_X", "DATABASE_URL", "PAWL_SECRET_STRIPE",
		"npm_config_script_shell", "npm_config_userconfig"}
	for _, name := range hidden {
		t.Setenv(name, "planted")
	}
	cache := folder(t)
	assert.NoError(t, os.WriteFile(filepath.Join(cache, ".npmrc"), []byte("registry=http://127.0.0.1:1\n"), 0o644))
	t.Chdir(cache)
	_, err := Start(deadline(t), Config{Dir: folder(t), CacheDir: cache, binDirs: listing()})
	wantError(t, err, "npm ci")
	text := seen()
	for _, name := range append(hidden, "planted", ".npmrc") {
		assert.True(t, !strings.Contains(text, name), "npm sees", name)
	}
	for _, want := range []string{"https_proxy=http://proxy.example:3128", "HOME=", "package-lock.json"} {
		assert.Contains(t, text, want, "npm does not see")
	}
}

// As root, with a folder of another user first in PATH: neither what is there nor what it leads to is run, nor is
// another program told of the folder.
func TestProgramsOfAnotherUserAreNotRun(t *testing.T) {
	onlyRoot(t)
	daemon := lookup(t, "daemon")
	_, theirs, ran := plantedServer(t)
	mark, err := os.ReadFile(filepath.Join(theirs, "postgres"))
	assert.NoError(t, err)
	bin, seen := fakeNpm(t)
	plant := func(name string) { writeProgram(t, filepath.Join(theirs, name), mark) }
	for _, name := range []string{"node", "useradd", "ps", "id", "sh", "env", "ls"} {
		plant(name)
	}
	// A program of ours, so that only the link is not: it could lead elsewhere when it is run.
	assert.NoError(t, os.Symlink(filepath.Join(bin, "lib", "npm-cli.js"), filepath.Join(theirs, "npm")))
	err = errors.Join(daemon.own(filepath.Join(theirs, "node")), daemon.own(filepath.Join(theirs, "npm")), daemon.own(theirs))
	assert.NoError(t, err)
	t.Setenv("PATH", theirs+":"+bin+":/usr/bin:/bin")
	t.Setenv("LD_LIBRARY_PATH", theirs+":"+bin)
	t.Setenv("HOME", theirs)
	install := func() error {
		_, err := Start(deadline(t), Config{Dir: folder(t), CacheDir: folder(t), binDirs: listing()})
		return err
	}

	wantError(t, install(), "npm ci")
	text := seen()
	want := filepath.Join(bin, "lib", "npm-cli.js") + " ci "
	assert.True(t, strings.HasPrefix(text, want) && !strings.Contains(text, theirs), "node was run with", text)
	for _, name := range []string{"useradd", "ps", "id"} {
		path, err := findProgram(name)
		assert.True(t, err != nil || !strings.HasPrefix(path, theirs), path, "would be run")
	}
	if (&Server{folders: folders{data: folder(t)}}).serves(1 << 30) { // no such process: ps is asked
		t.Error("a process that is not there serves")
	}

	// A link of ours to a file of theirs, by way of another link.
	for from, to := range map[string]string{"node": "way", "way": filepath.Join(theirs, "node")} {
		assert.NoError(t, errors.Join(os.RemoveAll(filepath.Join(bin, from)), os.Symlink(to, filepath.Join(bin, from))))
	}
	t.Setenv("PATH", bin)
	wantError(t, install(), "node is not used", "belongs to user")
	assert.True(t, !ran(), "a program of theirs ran")
}

// A link is not trusted if it or the folder it is in is another user's, wherever it leads, nor one that leads in a
// circle.
func TestLinksOnTheWay(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	ours, theirs, shared := folder(t), folder(t), folder(t)
	daemon := lookup(t, "daemon")
	links := map[string]string{
		ours + "/good": "/bin/sh", ours + "/relative": "../" + filepath.Base(ours) + "/./good", ours +
			"/by-theirs": theirs + "/link", theirs + "/link": "/bin/sh",
		shared + "/theirs": "/bin/sh", shared + "/ours": "/bin/sh", ours + "/circle": "circle", ours + "/folder": "/usr",
	}
	for from, to := range links {
		assert.NoError(t, os.Symlink(to, from))
	}
	assert.NoError(t, errors.Join(daemon.own(theirs), daemon.own(shared+"/theirs"), os.Chmod(shared, 0o777|os.ModeSticky)))
	shell, err := filepath.EvalSymlinks("/bin/sh")
	assert.NoError(t, err)
	for path, want := range map[string]string{
		ours + "/good": shell, shared + "/ours": shell, ours + "/relative": shell, ours + "/folder/bin/sh": shell, "/bin/../bin/./sh": shell, "/": "/",
		ours + "/by-theirs": "", theirs + "/link": "", shared + "/theirs": "", ours + "/circle": "", ours + "/none": "", "/bin/sh/x": "",
	} {
		got, err := trusted(path)
		assert.True(t, got == want && (err == nil) == (want != ""), path, "is", got, err)
	}
}

func TestAsRoot(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	t.Run("the server runs as a user of its own, or as the one that was set", func(t *testing.T) {
		t.Parallel()
		for set, want := range map[string]string{"": "pawl", "daemon": "daemon"} {
			s := start(t, Config{Dir: folder(t), User: set})
			u, err := user.LookupId(fmt.Sprint(ownerOfProcess(t, s.PID())))
			assert.True(t, err == nil && u.Username == want, "runs as", u, err)
		}
	})
	t.Run("existing data keeps its user", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		stop(t, start(t, Config{Dir: dir, User: "daemon"}))
		s := start(t, Config{Dir: dir})
		assert.Equal(t, ownerOfProcess(t, s.PID()), lookup(t, "daemon").uid, "runs as")
		stop(t, s)
		_, err := Start(deadline(t), Config{Dir: dir, User: "bin"})
		wantError(t, err, "belongs to user daemon", "not as bin")
	})
	t.Run("other users are rejected, and the data of nobody", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		for name, says := range map[string]string{"nobody": "other programs run as nobody", "no-such-user": "no-such-user",
			"root": "does not run as root"} {
			_, err := Start(deadline(t), Config{Dir: dir, User: name})
			wantError(t, err, says)
			assert.ErrorIs(t, err, ErrSetting, "not an ErrSetting")
		}
		data := filepath.Join(dir, "data")
		assert.NoError(t, errors.Join(os.Mkdir(data, 0o700), lookup(t, "nobody").own(data)))
		_, err := Start(deadline(t), Config{Dir: dir})
		wantError(t, err, data, "which other programs run as", "chown")
	})
	t.Run("a folder behind a closed one is refused with the way out", func(t *testing.T) {
		t.Parallel()
		closed := folder(t)
		assert.NoError(t, os.Chmod(closed, 0o700))
		dir := filepath.Join(closed, "inner")
		_, err := Start(deadline(t), Config{Dir: dir})
		wantError(t, err, "can't enter "+dir, "chmod o+x", "/var/lib/pawl")
	})
}

// Processes that start together on a new machine make the user once.
func TestMakingTheUser(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	userdel, err := exec.LookPath("userdel")
	if err != nil {
		t.Skip("needs userdel, to clean up")
	}
	s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	name := fmt.Sprint("pawl-test-", os.Getpid())
	t.Cleanup(func() { _ = exec.Command(userdel, name).Run() }) // it may not have been made
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			a, err := s.ownAccount(deadline(t), name)
			assert.True(t, err == nil && a.uid != 0 && !a.isNobody(), a, err)
		})
	}
	all.Wait()
	users, err := os.ReadFile("/etc/passwd")
	line := regexp.MustCompile("(?m)^"+name+":.*$").FindAllString(string(users), -1)
	assert.True(t, err == nil && len(line) == 1 && strings.HasSuffix(line[0], "/nologin"), line, err)
	_, err = s.ownAccount(deadline(t), "no:name")
	wantError(t, err, "can't be created", "useradd", "--pg-user")
}

func TestNewFoldersCanBePassedWhateverTheUmask(t *testing.T) { //nolint:paralleltest // the umask is the whole process's
	onlyRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	s := start(t, Config{Dir: filepath.Join(folder(t), "a", "b")})
	query(t, s.URL("postgres"), "SELECT 'works'")
}

func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		query(t, start(t, Config{Dir: folder(t)}).URL("postgres"), "SELECT 'works'")
		return
	}
	nobody := lookup(t, "nobody")
	dir := folder(t)
	assert.NoError(t, nobody.own(dir))
	for _, life := range []string{"first", "second"} {
		c := runChild(t, filepath.Join(dir, "pawl"), func(cmd *exec.Cmd) { asUser(t, cmd, nobody) })
		pid, url := c.ready(t)
		got := ownerOfProcess(t, pid)
		assert.Require(t, got == nobody.uid, life, "server runs as", got)
		query(t, url, "SELECT 'works'")
		c.finish(t)
	}
}

// asUser runs a copy of the test binary that the user can reach.
func asUser(t *testing.T, cmd *exec.Cmd, a *account) {
	t.Helper()
	program, err := os.ReadFile(cmd.Path)
	assert.NoError(t, err)
	cmd.Path = filepath.Join(folder(t), "helper")
	writeProgram(t, cmd.Path, program)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
}

// writeProgram writes a file that can be run. No process is started meanwhile: it would hold the file open for writing
// until it runs its own program, and what is open for writing can't be run.
func writeProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	assert.NoError(t, os.WriteFile(path, content, 0o755))
}

func lookup(t *testing.T, name string) *account {
	t.Helper()
	if _, err := user.Lookup(name); err != nil {
		t.Skip(err)
	}
	a, err := lookupAccount(name)
	assert.NoError(t, err)
	return a
}

func ownerOfProcess(t *testing.T, pid int) uint32 {
	t.Helper()
	owner, err := ownerOf(fmt.Sprintf("/proc/%d", pid))
	assert.Require(t, err == nil && owner != nil, "process", pid, "runs as root", err)
	return owner.uid
}

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
	err := os.Remove(link)
	assert.Require(t, err == nil || errors.Is(err, os.ErrNotExist), err)
	assert.NoError(t, os.Symlink(target, link))
	return target
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	info, err := os.Lstat(path)
	assert.Require(t, err == nil && info.Mode().IsRegular(), path, info, err)
	text, err := os.ReadFile(path)
	assert.Require(t, err == nil && string(text) == want, path, "holds", text, want, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	assert.Require(t, !ok || int(stat.Uid) == os.Geteuid(), path, "belongs to another user")
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
			assert.True(t, s.folders.temporary == (name != "base") && len(s.folders.socket) <= 60, s.folders)
			got, ok := Running(cfg.Dir)
			assert.Require(t, ok && got == s.URL("postgres"), got, ok, "want", s.URL("postgres"))
			query(t, got, "SELECT 'works'")
			killServer(t, s)
			// A child that was forked a moment before may have the socket open a moment longer.
			eventually(t, "it is not found after its end", func() bool { _, ok := Running(cfg.Dir); return !ok })
			stop(t, s)
			assert.True(t, !s.folders.temporary || !exists(s.folders.socket), "the folder of the socket was left behind")
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
