package campaign

import (
	"context"
	"fmt"
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

	"pawl/test/clocks"
	"pawl/test/dbtest"
)

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

	bit    atomic.Int64  // how often the fault has bitten
	what   string        // what a bite is
	outage time.Duration // the longest time that the server was away by our own doing
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
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			f.t.Fatal(err)
		}
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
	f.callers = newCallers(f.t, f.seed, f.crowd, f.fleet.addresses)
	f.people = newPeople(f.callers, f.provider)
	for i := range scarceItems {
		a := f.people.setStock(ctx, fmt.Sprintf("scarce-%d", i), scarceStock)
		if a.status != http.StatusOK {
			f.t.Fatalf("set the stock: %d %s", a.status, a.code)
		}
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
	working.Go(func() { f.callers.call(ctx) })
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
	cmd := exec.CommandContext(ctx, f.yard.present().path, arguments...)
	cmd.Env = withoutSettings(os.Environ())
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
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close(ctx)
	found, err := conn.Query(ctx, query)
	if err != nil {
		f.t.Fatal(err)
	}
	list, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}
