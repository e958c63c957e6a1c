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
		if !y.differs(commit, "migrations/*.sql") && y.differs(commit, "*.go", ":!*_test.go", ":!test") {
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

// steppedNow is added to the program, and package time calls it instead of the function of the runtime that reads the clocks.
// The wall clock is wrong by the seconds in a file that may change at any time. A goroutine reads it: the runtime calls time.Now
// for its timers on a stack too small for reading files.
const steppedNow = `package main

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	_ "unsafe" // for linkname
)

var steppedSeconds atomic.Int64

//go:linkname machineNow time.runtimeNow
func machineNow() (sec int64, nsec int32, mono int64)

func runtimeNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = machineNow()
	return sec + steppedSeconds.Load(), nsec, mono
}

func init() {
	go func() {
		for ; ; time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(os.Getenv("%s"))
			if seconds, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				steppedSeconds.Store(seconds)
			}
		}
	}()
}
`

// offsetVariable names the file with the seconds.
const offsetVariable = "CAMPAIGN_CLOCK_OFFSET"

// steppedLink runs a tool of the go command. The linker takes package time from where it is told last.
const steppedLink = `for word; do
	case "$word" in */importcfg.link) echo "packagefile time=%s" >>"$word" ;; esac
done
exec "$@"
`

// stepping is the program with a wall clock that can be stepped. Its monotonic clock is that of the machine, as it is when
// an operator sets the time. In the compiled package time one name is put for another that is as long: were its source
// changed, all that uses it would be compiled anew.
func (y *yard) stepping() program {
	return y.once("pawl-stepping", func(path string) string {
		compiled, err := os.ReadFile(strings.TrimSpace(y.run("go", "list", "-export", "-f", "{{.Export}}", "time")))
		if err != nil {
			y.t.Fatal(err)
		}
		const now, stepped = "time.runtimeNow", "main.runtimeNow"
		if n := strings.Count(string(compiled), now); n != 1 {
			y.t.Fatalf("package time is not as expected: it names %s %d times", now, n)
		}
		archive := y.write("time.a", strings.Replace(string(compiled), now, stepped, 1))
		module, err := filepath.Abs(root)
		if err != nil {
			y.t.Fatal(err)
		}
		list, err := json.Marshal(map[string]map[string]string{"Replace": {
			filepath.Join(module, "stepped.go"): y.write("stepped.go", fmt.Sprintf(steppedNow, offsetVariable)),
		}})
		if err != nil {
			y.t.Fatal(err)
		}
		y.run("go", "build", "-C", root, "-ldflags=-s -w -checklinkname=0", "-overlay", y.write("overlay.json", string(list)),
			"-toolexec", "sh "+y.write("tool", fmt.Sprintf(steppedLink, archive)), "-o", path, ".")
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
