package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/test/assert"
	"pawl/test/clocks"
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
	assert.Require(t, err == nil && n >= 0, variable, text, "want a number")
	return n
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

	people, policies bool                  // people act at random, another policy becomes active
	crowds           []int                 // callers at once, in turn, if there is time for it
	prove            func(*field) []string // adds to f.what what the fault has shown, or returns what it has not
	quiet            bool                  // the fault may have no effect
	onlyHere         bool                  // no other test has this fault, and it takes no other program to be compiled

	gap     func(*field) time.Duration // the longest time without any answer, asserted on demand
	refused float64                    // and how many of a hundred requests to be refused
}

// rowsOfTable are the campaigns.
var rowsOfTable = []row{
	{name: "wire-silent", onlyHere: true, weight: 1.2, people: true, policies: true, disturb: silence, gap: atMost(time.Second), refused: 1},
	{name: "wire-cut", onlyHere: true, weight: 1, people: true, policies: true, disturb: cutReplies, refused: 1},
	{name: "pooler-restarts", onlyHere: true, weight: 1, skip: noPooler, people: true, prepare: behindPooler, disturb: restartPooler, gap: outage, refused: 100},
	{name: "crashes", onlyHere: true, weight: 4, least: 8 * time.Second, people: true, skip: noCompiler, servers: withPower, prepare: withoutPolicy,
		crowds: []int{1, 16, 256}, disturb: crash, prove: countLost},
	{name: "crashes-with-calls", onlyHere: true, weight: 2, people: true, policies: true, skip: noCompiler, servers: withPower, disturb: crash, gap: outage, refused: 100},
	{name: "failover", onlyHere: true, weight: 1.5, least: 13 * time.Second, people: true, servers: primaryAndStandby, disturb: failOver},
	{name: "failover-with-loss", onlyHere: true, weight: 1, least: 5 * time.Second, people: true, servers: primaryAndLateStandby, prepare: withoutPolicy,
		disturb: loseCommits},
	{name: "clock-steps", weight: 1, people: true, policies: true, prepare: stepOneClock, disturb: stepClock},
	{name: "disk-full", onlyHere: true, weight: 1, people: true, skip: noMount, servers: onSmallDisk, disturb: fillDisk},
	{name: "locks", weight: 1, people: true, policies: true, disturb: holdLocks},
	{name: "serializable", onlyHere: true, quiet: true, weight: 0.8, people: true, policies: true, prepare: serializable, disturb: countRollbacks},
	{name: "policies", weight: 0.8, people: true, policies: true, disturb: nothing},
	{name: "kill-and-stop", onlyHere: true, weight: 1.2, people: true, policies: true, disturb: killAndStop},
}

// TestCampaigns runs them one after the other: what is measured is measured on a machine that does nothing else of
// ours. Where there is no time for all of them nothing is, and they run side by side.
func TestCampaigns(t *testing.T) { //nolint:paralleltest // see above
	if testing.Short() {
		t.Skip("NOT TESTED: -short")
	}
	seconds := number(t, "PAWL_FAULT_SECONDS", 20)
	seed := number(t, "PAWL_FAULT_SEED", rand.IntN(1_000_000_000))
	strict := number(t, "PAWL_FAULT_STRICT", 0) == 1
	t.Logf("PAWL_FAULT_SEED=%d", seed)
	yard := newYard(t)
	template := newTemplate(t, func(url string) { yard.run(yard.present(), "migrate", "up", "--database-url", url) })
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

// settleLimit is how long the end of all orders may take after the faults. It is for a machine that is busy with other
// things.
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

// field is where one campaign takes place.
type field struct {
	t     *testing.T
	yard  *yard
	row   *row
	seed  int
	dice  dice
	limit time.Duration // of the fault
	crowd int           // callers at once

	template *postgres
	server   *postgres // the one that the checks read
	wire     *wire     // between the replicas and the server, or the pooler

	standby     *postgres
	replication *wire // between the two servers
	pooler      *pooler
	disk        string       // the folder that a small disk is mounted at
	clock       *clocks.Wall // of one replica

	database string // what the replicas connect to
	posts    []post
	fleet    *fleet
	provider *provider
	callers  *callers
	people   *people
	witness  *witness

	bit        atomic.Int64  // how often the fault has bitten
	what       string        // what a bite is
	held, lost int           // crashes for which flushes were held up; admissions that they took back
	outage     time.Duration // the longest time that the server was away by our own doing
}

const (
	replicasOfField = 3
	scarceItems     = 3
	scarceStock     = 60
)

// policies, of which each replica brings one: the ledger and a provider that can be asked, a provider for every step
// that can't, the ledger alone.
func policies(provider string) []string {
	step := func(name, more string) string {
		return fmt.Sprintf(`%s: {executor: http, url: "%s/%s/do", timeout: 1s, callbackTimeout: 3s, breaker: {failures: 50, open: 500ms}, `+
			`retry: {initial: 50ms, cap: 1s, maxRetries: 5, budget: 5s}%s}`+"\n", name, provider, name, more)
	}
	undo := func(name string) string { return fmt.Sprintf(`, undoUrl: "%s/%s/undo"`, provider, name) }
	refund := fmt.Sprintf(`, refundUrl: "%s/charge/refund"`, provider)
	look := func(name string) string { return fmt.Sprintf(`, lookupUrl: "%s/%s/lookup"`, provider, name) }
	approval := "approval: [{customers: [careful], timeout: 20s, onTimeout: approve}]\n"
	return []string{
		"{}\n",
		step("charge", undo("charge")+refund) + step("reserve", undo("reserve")) + step("confirm", "") + "concurrency: {by: customerId, limit: 4}\n",
		step("charge", undo("charge")+refund+look("charge")) + step("confirm", look("confirm")) + approval,
	}
}

// publicURL is where the provider sends callbacks: no single replica, but all of them.
const publicURL = "http://pawl.example"

// prepare starts everything but what a row brings itself.
func (f *field) prepare(ctx context.Context) {
	f.provider = newProvider(ctx, f.t, f.seed)
	for _, text := range policies(f.provider.server.URL) {
		path := filepath.Join(f.t.TempDir(), "policy.yaml")
		assert.NoError(f.t, os.WriteFile(path, []byte(text), 0o644))
		f.posts = append(f.posts, post{program: f.yard.present(), flags: []string{"--policy", path, "--public-url", publicURL,
			"--response-timeout", "5s", "--lease", "2s", "--recovery-interval", "200ms", "--grace", "5s"}})
	}
	f.startServer()
	if f.row.prepare != nil {
		f.row.prepare(f)
	}
	for i := range f.posts {
		f.posts[i].flags = append(f.posts[i].flags, "--database-url", f.database)
	}
	f.fleet = startFleet(ctx, f.t, f.posts)
	f.provider.addresses = f.fleet.addresses
	f.callers = newCallers(f.t, f.seed, f.fleet.addresses)
	f.people = newPeople(f.callers, f.provider)
	f.witness = newWitness(ctx, f.people)
	for i := range scarceItems {
		a := f.people.setStock(ctx, fmt.Sprintf("scarce-%d", i), scarceStock)
		assert.Require(f.t, a.status == http.StatusOK, "set the stock", a.status, a.code)
	}
}

// startServer starts a PostgreSQL of the campaign, with a wire before it.
func (f *field) startServer() {
	if f.row.servers != nil {
		f.row.servers(f)
	} else {
		f.server = f.template.copyTo(f.t, dbtest.Folder(f.t), nil)
		f.server.start()
		f.t.Cleanup(f.server.stop)
	}
	network, address := f.server.socket()
	f.wire = newWire(f.t, [2]string{"tcp", "127.0.0.1:0"}, [2]string{network, address}, f.seed)
	f.database = f.server.throughTCP(f.wire.listener.Addr())
}

// fight lets everybody work while the fault goes on.
func (f *field) fight(ctx context.Context) (began, ended time.Time) {
	ctx, cancel := context.WithTimeout(ctx, f.limit)
	defer cancel()
	var working sync.WaitGroup
	began = time.Now()
	working.Go(func() { f.call(ctx, began) })
	working.Go(func() { f.witness.follow(ctx) })
	if f.row.people {
		working.Go(func() { f.people.interfere(ctx) })
		working.Go(func() { f.people.countShelves(ctx) })
	}
	if f.row.policies {
		working.Go(func() { f.switchPolicies(ctx) })
	}
	f.row.disturb(ctx, f)
	working.Wait()
	return began, time.Now()
}

// call lets the crowds of callers work, each for its share of the time.
func (f *field) call(ctx context.Context, began time.Time) {
	crowds := f.row.crowds
	if crowds == nil || f.crowd == usualCrowd {
		crowds = []int{f.crowd}
	}
	for i, crowd := range crowds {
		ctx, cancel := context.WithDeadline(ctx, began.Add(f.limit*time.Duration(i+1)/time.Duration(len(crowds))))
		f.callers.call(ctx, crowd)
		cancel()
	}
}

// switchPolicies makes another version the active one again and again.
func (f *field) switchPolicies(ctx context.Context) {
	d := newDice(f.seed, 66)
	for pause(ctx, d.between(500*time.Millisecond, 2*time.Second)) {
		f.activate(ctx, 1+d.IntN(replicasOfField))
		if f.row.name == "policies" {
			f.bit.Add(1)
		}
	}
}

// activate makes a version of the policy the active one. Where the database is away it fails.
func (f *field) activate(ctx context.Context, version int) {
	_ = f.command(ctx, "policy", "activate", strconv.Itoa(version), "--actor", "campaign", "--database-url", f.server.url()).Run()
}

// command is a run of the program that ends by itself.
func (f *field) command(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.yard.present(), arguments...)
	cmd.Env = dbtest.Neutral()
	return cmd
}

// waiting is an order that has not ended.
type waiting struct{ ID, Status, Hold, Reason string }

// settle does what operators do after a bad day, by the runbook: people decide what waits for people, and callers ask for
// what they were not answered. It returns what does not end all the same.
func (f *field) settle(ctx context.Context, limit time.Duration) (stuck []string) {
	f.provider.calm.Store(true)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		for stuck = f.endAll(ctx); len(stuck) > 0 && ctx.Err() == nil; stuck = f.endAll(ctx) {
			pause(ctx, 200*time.Millisecond)
		}
		n := f.callers.finish(ctx) // this may store orders that were not there before
		if len(stuck) > 0 || ctx.Err() != nil {
			return append(stuck, fmt.Sprintf("%d orders have had no final answer after %s", n, limit))
		}
		if stuck = f.standing(); n == 0 && len(stuck) == 0 {
			return nil
		}
	}
}

// endAll lets people decide what waits for them, and returns what has not ended.
func (f *field) endAll(ctx context.Context) []string {
	for _, o := range f.unfinished() {
		f.decide(ctx, &o)
	}
	f.settleRefunds(ctx)
	return f.standing()
}

// standing lists what has not ended.
func (f *field) standing() (list []string) {
	for _, o := range f.unfinished() {
		list = append(list, fmt.Sprintf("order %s has not ended: %s, %s %s", o.ID, o.Status, o.Hold, o.Reason))
	}
	if n := f.server.ask(context.WithoutCancel(f.t.Context()), "SELECT count(*) FROM books.late_undos WHERE finished_at IS NULL"); n > 0 {
		list = append(list, fmt.Sprintf("%d late effects are not undone", n))
	}
	if n := f.server.ask(context.WithoutCancel(f.t.Context()), "SELECT count(*) FROM books.refunds WHERE state NOT IN ('done', 'failed')"); n > 0 {
		list = append(list, fmt.Sprintf("%d refunds are open", n))
	}
	return list
}

// decide lets a person do what gets an order on.
func (f *field) decide(ctx context.Context, o *waiting) {
	verb := map[string]string{"paused": "resume", "approval": "approve", "attention": "retry"}[o.Hold]
	if verb == "" {
		return
	}
	a, ok := f.people.read(ctx, o.ID)
	if !ok || a.order.Hold != o.Hold {
		return
	}
	if o.Hold == "attention" && (!slices.Contains(a.order.AllowedActions, verb) || f.people.dice.chance(50)) {
		verb = "step-result"
	}
	f.people.act(ctx, o.ID, &a, verb)
}

// unfinished reads which orders have not ended.
func (f *field) unfinished() []waiting {
	return rows[waiting](f, `SELECT order_id, status, coalesce(hold, ''), coalesce(hold_reason, '') FROM books.orders
		WHERE status NOT IN ('completed', 'failed', 'canceled')`)
}

// rows reads the database, past everything that stands between it and the replicas.
func rows[T any](f *field, query string) []T {
	ctx := context.WithoutCancel(f.t.Context())
	conn, err := f.server.session(ctx)
	assert.NoError(f.t, err)
	defer conn.Close(ctx)
	found, err := conn.Query(ctx, query)
	assert.NoError(f.t, err)
	list, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	assert.NoError(f.t, err)
	return list
}
