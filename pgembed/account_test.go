package pgembed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAsRoot(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	t.Run("the server runs as the named user", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Dir: folder(t), User: "nobody"})
		if got, want := ownerOfProcess(t, s.PID()), lookup(t, "nobody").uid; got != want {
			t.Fatalf("runs as %d, not %d", got, want)
		}
	})
	t.Run("existing data keeps its user", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		stop(t, start(t, Config{Dir: dir, User: "nobody"}))
		s := start(t, Config{Dir: dir})
		if got, want := ownerOfProcess(t, s.PID()), lookup(t, "nobody").uid; got != want {
			t.Fatalf("runs as %d, not %d", got, want)
		}
		stop(t, s)
		_, err := Start(deadline(t), Config{Dir: dir, User: "daemon"})
		wantError(t, err, "belongs to user nobody", "not as daemon")
	})
	t.Run("a user that does not exist, and root, are refused", func(t *testing.T) {
		t.Parallel()
		_, err := Start(deadline(t), Config{Dir: folder(t), User: "no-such-user"})
		wantError(t, err, "no-such-user")
		if !errors.Is(err, ErrSetting) {
			t.Errorf("no wrong setting: %v", err)
		}
		_, err = Start(deadline(t), Config{Dir: folder(t), User: "root"})
		wantError(t, err, "refuses to run as root")
	})
	t.Run("a folder behind a closed one is refused with the way out", func(t *testing.T) {
		t.Parallel()
		closed := folder(t)
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(closed, "inner")
		_, err := Start(deadline(t), Config{Dir: dir})
		wantError(t, err, "cannot enter "+dir, "chmod o+x", "/var/lib/pawl")
	})
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
	if err := nobody.own(dir); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func lookup(t *testing.T, name string) *account {
	t.Helper()
	if _, err := user.Lookup(name); err != nil {
		t.Skip(err)
	}
	a, err := lookupAccount(name)
	if err != nil {
		t.Fatal(err)
	}
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
