package model_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
)

// slots bounds the searches at a time: each takes a core and up to 250 MB.
var slots = make(chan struct{}, 2)

// verdict is what came of a full search.
type verdict struct {
	complete  bool     // every state was looked at
	clean     bool     // nothing was violated
	violated  []string // what was, in the words of the model
	states    string
	walked    map[string]bool
	unreached map[string][]string // statements nothing ever came to, by proctype
}

// check searches all states of a model under switches.
func check(t *testing.T, model string, switches ...string) verdict {
	t.Helper()
	needsSpin(t)
	slots <- struct{}{}
	defer func() { <-slots }()
	source, err := filepath.Abs(model + ".pml")
	assert.NoError(t, err)
	dir := t.TempDir()
	generate := []string{"-a"}
	for _, name := range switches {
		generate = append(generate, "-D"+name)
	}
	run(t, dir, "spin", append(generate, source)...)
	run(t, dir, "gcc", "-w", "-DSAFETY", "-DCOLLAPSE", "-DPRINTF", "-o", "pan", "pan.c")
	start := time.Now()
	found := read(run(t, dir, "./pan", "-m20000", "-w22"))
	t.Logf("%s %s: %s states, %.1f s, violated: %q", model, strings.Join(switches, " "), found.states, time.Since(start).Seconds(), found.violated)
	return found
}

func needsSpin(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed: the models must be checked here", tool)
		}
		t.Skipf("%s is not installed, the models are not checked: apt-get install spin gcc", tool)
	}
}

func run(t *testing.T, dir, program string, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	assert.NoError(t, err, program, arguments, string(out))
	return string(out)
}

var (
	errorCount   = regexp.MustCompile(`errors: (\d+)`)
	stateCount   = regexp.MustCompile(`(\S+) states, stored`)
	violatedLine = regexp.MustCompile(`(?m)^\s*violated: (.+)$`)
	walkedLine   = regexp.MustCompile(`(?m)^walked: (\d+ \d+)$`)
	proctypeLine = regexp.MustCompile(`^unreached in (?:proctype )?(\w+)`)
)

// read understands the report of a verifier.
func read(report string) verdict {
	v := verdict{walked: map[string]bool{}, unreached: map[string][]string{}}
	count := errorCount.FindStringSubmatch(report)
	v.clean = count != nil && count[1] == "0"
	v.complete = v.clean && !strings.Contains(report, "too small") && !strings.Contains(report, "out of memory") &&
		!strings.Contains(report, "Search not completed") && !strings.Contains(report, "hash array overflow")
	if states := stateCount.FindStringSubmatch(report); states != nil {
		v.states = states[1]
	}
	for _, line := range violatedLine.FindAllStringSubmatch(report, -1) {
		v.violated = append(v.violated, line[1])
	}
	for _, line := range walkedLine.FindAllStringSubmatch(report, -1) {
		v.walked[line[1]] = true
	}
	proctype := ""
	for line := range strings.Lines(report) {
		if start := proctypeLine.FindStringSubmatch(line); start != nil {
			proctype = start[1]
		} else if proctype != "" && strings.Contains(line, ", state ") && !endOrCheck(line) {
			v.unreached[proctype] = append(v.unreached[proctype], strings.TrimSpace(line))
		}
	}
	return v
}

// endOrCheck says whether a statement is one that should not be come to.
func endOrCheck(line string) bool {
	return strings.Contains(line, `"-end-"`) || strings.Contains(line, `"assert(0)"`) || strings.Contains(line, `"printf('violated`)
}

func TestReadReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report          string
		complete, clean bool
	}{
		"a full search":            {"State-vector 84 byte, depth reached 335, errors: 0\n", true, true},
		"a search cut short":       {"error: max search depth too small\nerrors: 0\n", false, true},
		"a violation":              {"pan:1: assertion violated 0 (at depth 20)\nerrors: 1\n", false, false},
		"no report at all":         {"", false, false},
		"a search that was killed": {"Warning: Search not completed\nerrors: 0\n", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := read(c.report)
			if v.complete != c.complete || v.clean != c.clean {
				t.Errorf("complete %t, clean %t; want %t, %t", v.complete, v.clean, c.complete, c.clean)
			}
		})
	}
}
