package model_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/test/assert"
)

// What the models promise, in their words.
const (
	nothingLive   = "nothing of a failed or canceled order is live, then or later"
	whole         = "completed is charged, reserved and confirmed"
	charged       = "confirming is charged and reserved"
	single        = "never two live charges"
	stopped       = "what was to stop is not completed"
	oneDriver     = "one fence, one driver"
	ownerWrites   = "who writes owns the order"
	committedOnce = "a call is committed once"
	callCommitted = "no call that was not committed before"
	noWait        = "an answered order does not wait for its time-out"
	firstAnswer   = "the first answer is used, once"
	inTheBooks    = "what is charged in the books is charged"
	sameUndo      = "an undo says the same on every call"
	eventsInOrder = "each event once, and in the order of seq"
	noEventLost   = "no event is left out"
	atDisk        = "what is told is at the disk"
	oneOrder      = "a number is that of one order"
	namesStored   = "no order names one that is lost"
	nothingBehind = "nothing of a failed or canceled order, or of a route that it left, is live"
	ofItsRoute    = "completed is charged, by the provider of its route"
	allRoutes     = "an order fails only if no route is left"
)

// safe variants hold. Of those with drivers, each statement of theirs is come to: what
// holds does not hold because nothing happens.
var safe = []struct{ name, model, switches, drivers string }{
	{"saga", "saga", "", "worker people network"},
	{"saga, refusals are remembered and settle all", "saga", "KEEPS REFUSALCLEARS", ""},
	{"saga, refusals are forgotten and settle all, old keys are voided, two charges", "saga", "CHARGEONLY REFUSALCLEARS", ""},
	{"routes", "routes", "", "worker people providers"},
	{"routes, refusals are not final, two charges", "routes", "LIES CHARGEONLY", ""},
	{"lease", "lease", "", "people"},
	{"callback, second look and sweep", "callback", "", "replica callback sweep"},
	{"callback, seq raised", "callback", "RAISESEQ", "replica callback"},
	{"retention", "retention", "", "driver people time"},
	{"feed", "feed", "", "writer relay"},
	{"commit", "commit", "", "server replica caller reader relay"},
	{"retention, the keys of what stands are never forgotten", "retention", "KEEPSDONE DOUBTAGE", ""},
}

// weakened variants break at least one of the promises named.
var weakened = []struct {
	model, switches string
	breaks          []string
}{
	{"saga", "NOFENCE", []string{nothingLive, whole, charged, single}},
	{"saga", "EFFECTFIRST", []string{charged, whole}},
	{"saga", "NOTOMB", []string{nothingLive}},
	{"saga", "CALLKEY", []string{single, whole, charged}},
	{"saga", "ONEKEY", []string{nothingLive}},
	{"saga", "DOUBTASFAILED", []string{nothingLive}},
	{"saga", "STOPLOST", []string{stopped}},
	{"saga", "RETRYCLEARS", []string{nothingLive}},
	{"saga", "REFUSALCLEARS", []string{nothingLive}},
	{"saga", "CHARGEONLY REFUSALCLEARS NOVOID", []string{single}},
	{"routes", "FALLSINDOUBT", []string{nothingBehind}},
	{"routes", "CHARGEONLY FALLSINDOUBT NOVOID", []string{single}},
	{"routes", "ANYGENERATION", []string{nothingBehind, ofItsRoute}},
	{"routes", "FIRSTUNDOES", []string{nothingBehind}},
	{"routes", "KEEPSROUTE", []string{allRoutes}},
	{"routes", "LIES CHARGEONLY NOVOID", []string{single}},
	{"routes", "LIES CHARGEONLY VOIDSHERE", []string{single}},
	{"lease", "NOOWNER", []string{oneDriver}},
	{"lease", "NOFENCE", []string{ownerWrites}},
	{"lease", "NOSEQ", []string{committedOnce}},
	{"lease", "SEQTELLS", []string{callCommitted}},
	{"lease", "BLIND", []string{oneDriver, ownerWrites}},
	{"callback", "NOSECONDLOOK", []string{noWait}},
	{"callback", "NOTOKENFIRST", []string{noWait}},
	{"callback", "NOSWEEP", []string{noWait}},
	{"callback", "SKIPLOCKED", []string{noWait}},
	{"callback", "ONESTATEMENT", []string{noWait}},
	{"callback", "ONLYCALLBACK", []string{noWait}},
	{"callback", "NOTSINGLEUSE", []string{firstAnswer}},
	{"feed", "PLAIN", []string{eventsInOrder}},
	{"feed", "NOHORIZON", []string{noEventLost}},
	{"feed", "FORGETS", []string{eventsInOrder}},
	{"feed", "BLIND", []string{eventsInOrder}},
	{"commit", "NOMARKER", []string{oneOrder}},
	{"commit", "UNCOMPARED", []string{oneOrder}},
	{"commit", "UNCOMPAREDCALL", []string{oneOrder}},
	{"commit", "NOSKIP", []string{oneOrder}},
	{"commit", "EARLYSKIP", []string{oneOrder}},
	{"commit", "EARLYANSWER", []string{atDisk}},
	{"commit", "EARLY202", []string{atDisk}},
	{"commit", "EARLY409", []string{atDisk}},
	{"commit", "BLIND202", []string{atDisk}},
	{"commit", "OTHER202", []string{atDisk}},
	{"commit", "EARLYREAD", []string{atDisk}},
	{"commit", "EARLYCALL", []string{atDisk}},
	{"commit", "EARLYEVENT", []string{atDisk}},
	{"commit", "NAMESLOST", []string{namesStored}},
	{"commit", "REMEMBERS", []string{atDisk}},
	{"retention", "SENDSOLD", []string{single, inTheBooks}},
	{"retention", "UNDOESOLD", []string{nothingLive}},
	{"retention", "DOUBTAGE", []string{nothingLive}},
	{"retention", "LATENAME", []string{sameUndo}},
	{"retention", "NOMARGIN", []string{single, nothingLive, inTheBooks}},
	{"retention", "UNSEENCLEARS", []string{nothingLive, single}},
	{"retention", "UNSEENSENDS", []string{single, inTheBooks}},
	{"retention", "PAUSECLEARS", []string{nothingLive, single}},
	{"retention", "PAUSEYOUNG", []string{single, inTheBooks, nothingLive}},
	{"retention", "RETRYYOUNG", []string{single, inTheBooks, nothingLive}},
}

func TestProtocolHolds(t *testing.T) {
	t.Parallel()
	for _, variant := range safe {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			found := check(t, variant.model, strings.Fields(variant.switches)...)
			assert.True(t, found.clean && found.complete, "violated", found.violated, "search complete", found.complete)
			for _, driver := range strings.Fields(variant.drivers) {
				for _, statement := range found.unreached[driver] {
					t.Errorf("%s never comes to %s", driver, statement)
				}
			}
		})
	}
}

func TestWithoutSafeguardItBreaks(t *testing.T) {
	t.Parallel()
	for _, variant := range weakened {
		t.Run(variant.model+" "+variant.switches, func(t *testing.T) {
			t.Parallel()
			found := check(t, variant.model, strings.Fields(variant.switches)...)
			assert.Require(t, !found.clean, "nothing is violated in", found.states, "states")
			for _, promise := range found.violated {
				assert.True(t, slices.Contains(variant.breaks, promise), "violated", promise, variant.breaks)
			}
			assert.True(t, len(found.violated) != 0, "an error that is no promise broken")
		})
	}
}

// An edge the machine gets and the model does not is not checked.
func TestSagaWalksEveryEdge(t *testing.T) {
	t.Parallel()
	walked := check(t, "saga", "WALK", "CHARGEONLY").walked
	for _, e := range fsm.Edges() {
		assert.True(t, walked[numbered(e)], "the model never goes from", e.From, "to", e.To)
		delete(walked, numbered(e))
	}
	assert.True(t, len(walked) == 0, "the model goes where the machine does not", slices.Sorted(maps.Keys(walked)))
}

var update = flag.Bool("update", false, "write machine.pml")

// machineFile is what the models know of the machine.
const machineFile = "machine.pml"

func TestMachineIsGenerated(t *testing.T) {
	t.Parallel()
	if *update {
		assert.NoError(t, os.WriteFile(machineFile, []byte(machine()), 0o644))
	}
	stored, err := os.ReadFile(machineFile)
	assert.NoError(t, err)
	assert.Equal(t, string(stored), machine(),
		machineFile, "is not the machine's any more: go test ./model -run Generated -update")
}

// machine renders states and edges for the preprocessor that Spin uses.
func machine() string {
	var b strings.Builder
	b.WriteString("/* The machine of fsm/, written by go test ./model -run Generated -update. Do not edit. */\n\n")
	var finals, edges []string
	for i, s := range fsm.States() {
		fmt.Fprintf(&b, "#define %-10s %d\n", constant(s), i+1)
		if s.Final() {
			finals = append(finals, fmt.Sprintf("(s) == %s", constant(s)))
		}
	}
	for _, e := range fsm.Edges() {
		edges = append(edges, fmt.Sprintf("(from) == %s && (to) == %s", constant(e.From), constant(e.To)))
	}
	fmt.Fprintf(&b, "\n#define final(s) (%s)\n", strings.Join(finals, " || "))
	fmt.Fprintf(&b, "\n#define legal(from, to) ( \\\n  %s)\n", strings.Join(edges, " || \\\n  "))
	return b.String()
}

func constant(s fsm.State) string { return strings.ToUpper(string(s)) }

// numbered is the edge as a model prints it.
func numbered(e fsm.Edge) string {
	number := map[fsm.State]int{}
	for i, s := range fsm.States() {
		number[s] = i + 1
	}
	return fmt.Sprintf("%d %d", number[e.From], number[e.To])
}

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

// check searches all states of a model under switches. gcc compiles a verifier in ten times the time that most of them run.
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
	run(t, dir, "tcc", "-w", "-DSAFETY", "-DCOLLAPSE", "-DPRINTF", "-o", "pan", "pan.c")
	start := time.Now()
	found := read(run(t, dir, "./pan", "-m20000", "-w22"))
	t.Logf("%s %s: %s states, %.1f s, violated: %q", model, strings.Join(switches, " "), found.states, time.Since(start).Seconds(), found.violated)
	return found
}

func needsSpin(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc", "tcc"} {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		assert.Require(t, os.Getenv("CI") != "true", tool, "is not installed: the models must be checked here")
		t.Skipf("%s is not installed, the models are not checked: apt-get install spin gcc tcc", tool)
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
			assert.True(t, v.complete == c.complete && v.clean == c.clean,
				"complete", v.complete, "clean", v.clean, c.complete, c.clean)
		})
	}
}
