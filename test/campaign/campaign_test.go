package campaign

import (
	"context"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestMain fails the run if a goroutine is left.
func TestMain(m *testing.M) { dbtest.Main(m) }

// number reads a setting.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: want a number", variable, text)
	}
	return n
}

// lookAtSources reads the folders of the module. The go command notes what a test has read and runs it again when that has
// changed; of the program, which is built by a command, it would not know.
func lookAtSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// root is the folder of the module.
const root = "../.."

// dice are random choices of one goroutine.
type dice struct{ *rand.Rand }

func newDice(seed int, stream uint64) dice { return dice{rand.New(rand.NewPCG(uint64(seed), stream))} }

// chance is true in so many of a hundred cases.
func (d dice) chance(percent float64) bool { return d.Float64()*100 < percent }

func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)+1))
}

// pause waits, and tells whether it was for the whole time: not if the context has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// await asks until there is an answer, for so long at most.
func await(ctx context.Context, limit time.Duration, answered func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !answered() {
		if !pause(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// row is one campaign.
type row struct {
	name   string
	weight float64       // of the time of all campaigns
	least  time.Duration // that the fault takes at least
	skip   func() string // why it can't be done here

	servers func(*field)                  // starts f.server
	prepare func(*field)                  // changes what the replicas are, before they start
	disturb func(context.Context, *field) // goes on with the fault until the context ends, then heals it

	people, policies bool // people act at random, another policy becomes active
	quiet            bool // the fault may bite nobody
	onlyHere         bool // no other test has this fault, and it takes no other program to be compiled

	gap     func(*field) time.Duration // for how long nobody may be without an answer, asserted on demand
	refused float64                    // and how many of a hundred requests to be refused
}

// rowsOfTable are the campaigns.
var rowsOfTable = []row{
	{name: "wire-silent", weight: 1.2, people: true, policies: true, disturb: silence, gap: atMost(time.Second), refused: 1},
	{name: "wire-cut", onlyHere: true, weight: 1, people: true, policies: true, disturb: cutReplies, refused: 1},
	{name: "pooler-restarts", onlyHere: true, weight: 1, skip: noPooler, people: true, prepare: behindPooler, disturb: restartPooler, gap: outage, refused: 100},
	{name: "postgres-restarts", onlyHere: true, weight: 1, people: true, disturb: restartPostgres, gap: outage, refused: 100},
	{name: "failover", onlyHere: true, weight: 1.5, least: 13 * time.Second, people: true, servers: primaryAndStandby, disturb: failOver},
	{name: "clock-steps", weight: 1, people: true, policies: true, prepare: stepOneClock, disturb: stepClock},
	{name: "earlier-version", weight: 0.8, people: true, policies: true, prepare: oneEarlier, disturb: killSome},
	{name: "disk-full", onlyHere: true, weight: 1, people: true, skip: noMount, servers: onSmallDisk, disturb: fillDisk},
	{name: "locks", weight: 1, people: true, policies: true, disturb: holdLocks},
	{name: "serializable", onlyHere: true, quiet: true, weight: 0.8, people: true, policies: true, prepare: serializable, disturb: countRollbacks},
	{name: "policies", weight: 0.8, people: true, policies: true, disturb: nothing},
	{name: "kill-and-stop", onlyHere: true, weight: 1.2, people: true, policies: true, disturb: killAndStop},
}

// TestCampaigns runs them one after the other: what is measured is measured on a machine that does nothing else of ours. Where
// there is no time for all of them nothing is, and they run side by side.
func TestCampaigns(t *testing.T) { //nolint:paralleltest // see above
	if testing.Short() {
		t.Skip("NOT TESTED: -short")
	}
	seconds := number(t, "PAWL_FAULT_SECONDS", 20)
	seed := number(t, "PAWL_FAULT_SEED", rand.IntN(1_000_000_000))
	strict := number(t, "PAWL_FAULT_STRICT", 0) == 1
	t.Logf("PAWL_FAULT_SEED=%d", seed)
	yard := newYard(t)
	template := newTemplate(t, func(url string) { yard.run(yard.present().path, "migrate", "up", "--database-url", url) })
	table := report{seed: seed, seconds: seconds}
	t.Cleanup(func() { table.print(os.Stdout) })
	rows, crowd := rowsWithin(seconds)
	sideBySide := func(t *testing.T) {
		t.Helper()
		if seconds < measured {
			t.Parallel()
		}
	}
	var weights float64
	for _, r := range rows {
		weights += r.weight
	}
	t.Run("the checks find what is wrong", func(t *testing.T) {
		sideBySide(t)
		checksFindWhatIsWrong(t, yard, template)
	})
	for i, r := range rows { //nolint:paralleltest // as above
		t.Run(r.name, func(t *testing.T) {
			sideBySide(t)
			if r.skip != nil && r.skip() != "" {
				table.skipped(r.name, r.skip())
				t.Skip("NOT TESTED: " + r.skip())
			}
			share := time.Duration(r.weight / weights * float64(seconds) * float64(time.Second))
			f := &field{t: t, yard: yard, row: &r, seed: seed + i, dice: newDice(seed+i, 1), template: template, crowd: crowd,
				limit: max(share-overhead, 2500*time.Millisecond, r.least)}
			table.add(f.campaign(), strict)
		})
	}
}

// measured is how many seconds it takes to measure.
const measured = 60

// usualCrowd is how many callers there are in less than a minute; largeCrowd, in more.
const usualCrowd, largeCrowd = 6, 24

// rowsWithin are the campaigns that there is time for, and how many callers each has: in less than a minute, those whose
// fault no other test has, and few.
func rowsWithin(seconds int) (rows []row, crowd int) {
	if seconds >= measured {
		return rowsOfTable, largeCrowd
	}
	return slices.DeleteFunc(slices.Clone(rowsOfTable), func(r row) bool { return !r.onlyHere }), usualCrowd
}

// overhead is about what a campaign takes besides its fault: to start, to settle and to be checked.
const overhead = 3 * time.Second

// campaign runs one and returns what came of it.
func (f *field) campaign() *result {
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	f.prepare(ctx)
	began, ended := f.fight(ctx)
	r := &result{field: f, began: began, ended: ended}
	r.violations = append(r.violations, f.settle(ctx, settleLimit)...)
	r.violations = append(r.violations, f.check(ctx)...)
	f.fleet.close()
	r.violations = append(r.violations, f.fleet.broken()...)
	return r
}

// settleLimit is how long the end of all orders may take after the faults. It is for a machine that is busy with other things.
const settleLimit = 90 * time.Second

func atMost(d time.Duration) func(*field) time.Duration {
	return func(*field) time.Duration { return d }
}

// outage is how long the server was away, and a second to find it again.
func outage(f *field) time.Duration { return f.outage + time.Second }

// nothing waits: the fault is what others do meanwhile.
func nothing(ctx context.Context, f *field) {
	f.what = "activations"
	<-ctx.Done()
}
