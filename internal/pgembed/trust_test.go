package pgembed

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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
			if ran() {
				t.Error("it ran")
			}
		})
	}
}

// wantRefused looks at both ways to a server: found on the machine, and named in the settings.
func wantRefused(t *testing.T, dir, why string) {
	t.Helper()
	var log strings.Builder
	s := &Server{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	if got := s.bestOf(deadline(t), []string{dir}, 0); got.dir != "" {
		t.Errorf("%s is chosen", got.dir)
	}
	assert.Contains(t, log.String(), why, "the log does not say", &log)
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
			if got := s.bestOf(deadline(t), []string{dir}, 0); got.dir != dir || !ran() {
				t.Errorf("chosen: %v, ran: %v", got, ran())
			}
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
		if strings.Contains(text, name) {
			t.Errorf("npm sees %s", name)
		}
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
	if err := errors.Join(daemon.own(filepath.Join(theirs, "node")), daemon.own(filepath.Join(theirs, "npm")), daemon.own(theirs)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", theirs+":"+bin+":/usr/bin:/bin")
	t.Setenv("LD_LIBRARY_PATH", theirs+":"+bin)
	t.Setenv("HOME", theirs)
	install := func() error {
		_, err := Start(deadline(t), Config{Dir: folder(t), CacheDir: folder(t), binDirs: listing()})
		return err
	}

	wantError(t, install(), "npm ci")
	text := seen()
	if want := filepath.Join(bin, "lib", "npm-cli.js") + " ci "; !strings.HasPrefix(text, want) || strings.Contains(text, theirs) {
		t.Errorf("node was run with %s", text)
	}
	for _, name := range []string{"useradd", "ps", "id"} {
		if path, err := findProgram(name); err == nil && strings.HasPrefix(path, theirs) {
			t.Errorf("%s would be run", path)
		}
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
	if ran() {
		t.Error("a program of theirs ran")
	}
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
		if got, err := trusted(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
}
