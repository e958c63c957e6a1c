package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// yard holds the programs of a run.
type yard struct {
	t      *testing.T
	folder string
	built  map[string]program
}

// program is a file to run. Note says what it is where that is not plain.
type program struct{ path, note string }

func newYard(t *testing.T) *yard {
	t.Helper()
	lookAtSources(t)
	return &yard{t: t, folder: t.TempDir(), built: map[string]program{}}
}

func (y *yard) once(name string, build func(path string) (note string)) program {
	y.t.Helper()
	if _, found := y.built[name]; !found {
		path := filepath.Join(y.folder, name)
		note := build(path)
		y.built[name] = program{path, note}
	}
	return y.built[name]
}

// present is the program of this work tree.
func (y *yard) present() program {
	return y.once("pawl", func(path string) string {
		y.run("go", "build", "-C", root, "-ldflags=-s -w", "-o", path, ".")
		return ""
	})
}

// earlier is the program of the newest commit that has the same migrations and other code. Where there is none it is this
// work tree's again, under another version.
func (y *yard) earlier() program {
	return y.once("pawl-earlier", func(path string) string {
		commit := y.sameSchema()
		if commit == "" {
			y.run("go", "build", "-C", root, "-buildvcs=false", "-o", path, ".")
			return "no earlier commit has this schema: the present one twice"
		}
		sources := filepath.Join(y.folder, "sources")
		if err := os.MkdirAll(sources, 0o755); err != nil {
			y.t.Fatal(err)
		}
		y.run("git", "-C", root, "archive", "-o", sources+".tar", commit)
		y.run("tar", "-xf", sources+".tar", "-C", sources)
		y.run("go", "build", "-C", sources, "-o", path, ".")
		return "beside " + commit[:7]
	})
}

// sameSchema finds the commit. It is empty without git, in a shallow copy, and where the schema has just changed.
func (y *yard) sameSchema() string {
	history, err := exec.CommandContext(y.t.Context(), "git", "-C", root, "rev-list", "--max-count=40", "HEAD").Output()
	if err != nil {
		return ""
	}
	for _, commit := range strings.Fields(string(history)) {
		if !y.differs(commit, "migrations/*.sql") && y.differs(commit, "*.go", ":!*_test.go", ":!faulttest", ":!bench", ":!tools") {
			return commit
		}
	}
	return ""
}

// differs compares files of the work tree with those of a commit. A commit that can't be read has other ones.
func (y *yard) differs(commit string, files ...string) bool {
	arguments := append([]string{"-C", root, "diff", "--quiet", commit, "--"}, files...)
	return exec.CommandContext(y.t.Context(), "git", arguments...).Run() != nil
}

// steppedNow is added to package time: seconds by which the wall clock of the process is wrong, from a file that may change
// at any time. A goroutine reads it: the runtime calls Now for its timers on a stack too small for reading files.
const steppedNow = `package time

import (
	"sync/atomic"
	"syscall"
)

var steppedSeconds atomic.Int64

func init() {
	if name, found := syscall.Getenv("%s"); found {
		go func() {
			for ; ; Sleep(10 * Millisecond) {
				readSteppedSeconds(name)
			}
		}()
	}
}

func readSteppedSeconds(name string) {
	file, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer syscall.Close(file)
	var text [24]byte
	n, _ := syscall.Read(file, text[:])
	seconds, sign := int64(0), int64(1)
	for _, c := range text[:max(n, 0)] {
		switch {
		case c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			seconds = seconds*10 + int64(c-'0')
		}
	}
	steppedSeconds.Store(sign * seconds)
}
`

// offsetVariable names the file with the seconds.
const offsetVariable = "CAMPAIGN_CLOCK_OFFSET"

// stepping is the program with a wall clock that can be stepped. Its monotonic clock is that of the machine, as it is when
// an operator sets the time.
func (y *yard) stepping() program {
	return y.once("pawl-stepping", func(path string) string {
		goroot := strings.TrimSpace(y.run("go", "env", "GOROOT"))
		original := filepath.Join(goroot, "src", "time", "time.go")
		text, err := os.ReadFile(original)
		if err != nil {
			y.t.Fatal(err)
		}
		const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
		patched := strings.Replace(string(text), now, now+"\tsec += steppedSeconds.Load()\n", 1)
		if patched == string(text) {
			y.t.Fatalf("%s is not as expected: it has no %q", original, now)
		}
		overlay := map[string]map[string]string{"Replace": {
			original: y.write("time.go", patched),
			filepath.Join(goroot, "src", "time", "stepped.go"): y.write("stepped.go", fmt.Sprintf(steppedNow, offsetVariable)),
		}}
		list, err := json.Marshal(overlay)
		if err != nil {
			y.t.Fatal(err)
		}
		y.run("go", "build", "-C", root, "-overlay", y.write("overlay.json", string(list)), "-o", path, ".")
		return ""
	})
}

func (y *yard) write(name, text string) (path string) {
	y.t.Helper()
	path = filepath.Join(y.folder, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		y.t.Fatal(err)
	}
	return path
}

// run runs a command that must succeed.
func (y *yard) run(name string, arguments ...string) (said string) {
	y.t.Helper()
	cmd := exec.CommandContext(y.t.Context(), name, arguments...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		y.t.Fatalf("%s %s: %v\n%s", name, slices.Concat(arguments), err, output)
	}
	return string(output)
}
