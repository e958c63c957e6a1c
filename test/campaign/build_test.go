package campaign

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pawl/test/clocks"
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

// stepping is the program with a wall clock that can be set.
func (y *yard) stepping() program {
	return y.once("pawl-stepping", func(path string) string {
		clocks.Build(y.t, root, path)
		return ""
	})
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
