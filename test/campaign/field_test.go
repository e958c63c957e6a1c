package campaign

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	disk        string // the folder that a small disk is mounted at
	offset      string // the file that says how wrong a clock is

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
