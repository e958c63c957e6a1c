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

func TestAsRoot(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	t.Run("the server runs as a user of its own, or as the one that was set", func(t *testing.T) {
		t.Parallel()
		for set, want := range map[string]string{"": "pawl", "daemon": "daemon"} {
			s := start(t, Config{Dir: folder(t), User: set})
			u, err := user.LookupId(fmt.Sprint(ownerOfProcess(t, s.PID())))
			if err != nil || u.Username != want {
				t.Errorf("runs as %v, %v", u, err)
			}
		}
	})
	t.Run("existing data keeps its user", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		stop(t, start(t, Config{Dir: dir, User: "daemon"}))
		s := start(t, Config{Dir: dir})
		assert.Equal(t, ownerOfProcess(t, s.PID()), lookup(t, "daemon").uid, "runs as not")
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
			if err != nil || a.uid == 0 || a.isNobody() {
				t.Errorf("%v, %v", a, err)
			}
		})
	}
	all.Wait()
	users, err := os.ReadFile("/etc/passwd")
	if line := regexp.MustCompile("(?m)^"+name+":.*$").FindAllString(string(users), -1); err != nil || len(line) != 1 ||
		!strings.HasSuffix(line[0], "/nologin") {
		t.Errorf("%q, %v", line, err)
	}
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
		if got := ownerOfProcess(t, pid); got != nobody.uid {
			t.Fatalf("%s server runs as %d", life, got)
		}
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
	if err != nil || owner == nil {
		t.Fatalf("process %d runs as root: %v", pid, err)
	}
	return owner.uid
}
