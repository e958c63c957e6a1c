package dbtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// variable makes this test binary, run again, do one of the things below in its only test.
const variable = "DBTEST_CHILD"

func TestMainOfAPackage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		does string
		code int
		says string
	}{
		{"passes without a server", "nothing", 0, "PASS"},
		{"stops the server and removes its folder", "database", 0, "PASS"},
		{"fails when a goroutine is left", "leak", 1, "found unexpected goroutines"},
		{"fails when a test fails", "failure", 1, "FAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, output := runChild(t, c.does)
			if code != c.code || !strings.Contains(output, c.says) {
				t.Fatalf("exit code %d:\n%s", code, output)
			}
			if c.does == "database" {
				serverGone(t, output)
			}
		})
	}
}

// Most tests wait, so more of them run at a time than there are cores; who asks for a number gets it.
func TestMainRunsMoreTestsThanCores(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		want  int
	}{{nil, atOnce * runtime.GOMAXPROCS(0)}, {[]string{"-test.parallel=1"}, 1}} {
		if _, output := runChild(t, "parallel", c.flags...); !strings.Contains(output, fmt.Sprintf("%d at a time\n", c.want)) {
			t.Errorf("with %q, want %d:\n%s", c.flags, c.want, output)
		}
	}
}

func runChild(t *testing.T, does string, flags ...string) (code int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(flags, "-test.run=^TestChild$", "-test.v")...)
	cmd.Env = append(os.Environ(), variable+"="+does)
	printed, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(printed)
}

// serverGone reads where the child's server was, and looks there.
func serverGone(t *testing.T, output string) {
	t.Helper()
	_, said, found := strings.Cut(output, "server at ")
	var folder string
	var pid int
	if _, err := fmt.Sscan(said, &folder, &pid); err != nil || !found {
		t.Fatalf("%v in %s", err, output)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", folder, err)
	}
	if syscall.Kill(pid, 0) == nil {
		t.Errorf("process %d still runs", pid)
	}
}

// TestChild is the package of TestMainOfAPackage.
func TestChild(t *testing.T) {
	t.Parallel()
	switch os.Getenv(variable) {
	case "database":
		New(t)
		if s := use(t); s.embedded != nil {
			t.Logf("server at %s %d", s.folder, s.embedded.PID())
		} else {
			t.Log("server at /nonexistent 2147483647")
		}
	case "parallel":
		t.Logf("%s at a time", flag.Lookup("test.parallel").Value)
	case "leak":
		go func() { select {} }()
	case "failure":
		t.Fatal("as asked")
	}
}
