package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/test/dbtest"
)

// TestContainer runs the program as the container of docs/security.md does: alone in its root folder, in which it can't
// write, as a user without a name and without capabilities. The database is reached over the network.
func TestContainer(t *testing.T) {
	chroot, err := exec.LookPath("chroot")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs chroot, and root to run it")
	}
	build(t)
	t.Parallel()
	root := containerRoot(t)
	before := files(t, root)
	env := []string{"DATABASE_URL=" + dbtest.NewProxy(t, dbtest.New(t).URL).URL, "PORT=0", "HOME=/"}
	p := launchProgram(t, chroot, env, "--userspec=65532:65532", root, "/pawl", "--allow-data-loss")
	c := newClient(1, false)
	defer c.close()
	c.completes(t, p.url(), order{id: "order-1", amount: "99.99", item: "widget"})

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65532\t65532\t65532\t65532\n", "CapEff:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("not %q in\n%s", want, status)
		}
	}
	if code := p.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if after := files(t, root); !slices.Equal(before, after) {
		t.Errorf("it wrote: %s", after)
	}
}

// containerRoot is a folder with the program, and with the C library where the program was built to use it.
func containerRoot(t *testing.T) string {
	t.Helper()
	root := dbtest.Folder(t)
	copyFile(t, program(), filepath.Join(root, "pawl"))
	needed, _ := exec.CommandContext(t.Context(), "ldd", program()).Output() // it fails for a program that needs none
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(needed), -1) {
		copyFile(t, library, filepath.Join(root, library))
	}
	return root
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.Walk(root, func(path string, _ os.FileInfo, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
