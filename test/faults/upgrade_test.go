package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestReleasesAreKept compares the sources with what was released. What breaks clients is found in test/clients.
func TestReleasesAreKept(t *testing.T) {
	t.Parallel()
	now := describe(t, "../..")
	for _, b := range releases(t) {
		for _, what := range b.broken(now) {
			t.Errorf("release %s: %s", b.Version, what)
		}
	}
}

// TestBrokenReleases changes one thing each: nothing of it may be hidden from the comparison.
func TestBrokenReleases(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*baseline){
		"": func(b *baseline) {
			b.Migrations["00010_new.sql"] = "1"
			b.EventTypes = append(b.EventTypes, "order.new")
		},
		"00002_b.sql: was edited":           func(b *baseline) { b.Migrations["00002_b.sql"] = "3" },
		"00001_a.sql: was edited":           func(b *baseline) { delete(b.Migrations, "00001_a.sql") },
		"00001_z.sql: is new":               func(b *baseline) { b.Migrations["00001_z.sql"] = "1" },
		"policy key http.url: is gone":      func(b *baseline) { b.PolicyKeys = nil },
		"event type order.pending: is gone": func(b *baseline) { b.EventTypes = []string{"order.waiting"} },
	} {
		release := func() *baseline {
			return &baseline{Migrations: map[string]string{"00001_a.sql": "1", "00002_b.sql": "2"}, PolicyKeys: []string{"http.url"}, EventTypes: []string{"order.pending"}}
		}
		now := release()
		change(now)
		found := strings.Join(release().broken(now), "\n")
		assert.True(t, strings.Contains(found, want) && (found == "") == (want == ""), "found", found, want)
	}
}

// TestReleasedDatabase restores the database that a release filled, upgrades it, and goes on with its orders.
func TestReleasedDatabase(t *testing.T) {
	build(t)
	t.Parallel()
	for _, b := range releases(t) {
		t.Run(b.Version, func(t *testing.T) {
			t.Parallel()
			b.goesOn(t)
		})
	}
}

func (b *baseline) goesOn(t *testing.T) {
	t.Helper()
	s := &shop{t: t, journal: filepath.Join(t.TempDir(), "books")}
	assert.NoError(t, os.WriteFile(s.journal, []byte(b.read(t, "provider.ndjson")), 0o600))
	s.furnish(looking, callLimit)
	s.database = b.restore(s)
	must := func(args ...string) {
		t.Helper()
		code, said := run(t, append(args, "--database-url", s.database.URL)...)
		assert.Require(t, code == 0, args, said)
	}
	must("migrate", "up")
	must("verify")
	shown := s.read("")
	for line := range strings.Lines(b.read(t, "orders.ndjson")) {
		var was, is map[string]any
		assert.NoError(t, json.Unmarshal([]byte(line), &was))
		id, _ := was["orderId"].(string)
		err := json.Unmarshal([]byte(shown[id]), &is)
		assert.True(t, err == nil, "order", id, err)
		for _, what := range lost("", was, is) {
			t.Errorf("order %s, field %s: it was shown otherwise", id, what)
		}
	}
	must("adopt")
	s.open(1)
	for _, verb := range []string{"paused resume", "approval approve", "paused approve", "attention retry", "scheduled cancel"} {
		id, name, _ := strings.Cut(verb, " ")
		eventually(t, patience, verb, func() bool { return s.ask(name, id) })
	}
	for _, o := range slices.Concat(soldEarlier, sold, stranded) {
		want := o.later
		if want == "" {
			want = o.status
		}
		s.until(o.id, want, "")
	}
	eventually(t, patience, "the refund and the capture are done", func() bool {
		return count(t, s.database.URL, `SELECT count(*) FROM pawl.charge_operations WHERE state NOT IN ('done', 'failed')`) == 0
	})
	assert.Contains(t, s.post("/api/orders/process", `{"orderId":"forgotten-0","amount":"10.00","item":"cup"}`), `"forgotten":true`)
	must("verify", "--provider", s.url)
	sum := s.provider.Summary()
	assert.True(t, sum.OK(), "something happened twice", sum)
}

// lost lists what a value had that a later one lacks.
func lost(path string, was, is any) (fields []string) {
	switch was := was.(type) {
	case map[string]any:
		is, _ := is.(map[string]any)
		for name, value := range was {
			fields = append(fields, lost(path+"."+name, value, is[name])...)
		}
	case []any:
		is, _ := is.([]any)
		if len(is) != len(was) {
			return []string{path}
		}
		for i := range was {
			fields = append(fields, lost(fmt.Sprint(path, ".", i), was[i], is[i])...)
		}
	default:
		if !reflect.DeepEqual(was, is) && !(isTime(was) && isTime(is)) { // which are moved when a database is restored
			return []string{path}
		}
	}
	return fields
}

func isTime(value any) bool {
	text, _ := value.(string)
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}

// TestServiceBeforeItsMigration: it ends, says what is to be done, and starts when that was done.
func TestServiceBeforeItsMigration(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	if code, said := run(t, "migrate", "down", "--yes", "--drop-data", "--database-url", database.AdminURL); code != 0 {
		t.Fatal(said)
	}
	code, said := run(t, "serve", "--allow-data-loss", "--listen", "127.0.0.1", "--port", "0", "--database-url", database.URL)
	assert.True(t, code == 1 && strings.Contains(said, "this role may not change the schema: run pawl migrate up"),
		"ends with", code, said)
	code, said = run(t, "migrate", "up", "--database-url", database.AdminURL)
	assert.Require(t, code == 0, said)
	startReplicas(t, 1, database.URL)
}

// TestUpgrade replaces the replicas of the last release by those of this program as docs/operations/upgrading.md says,
// takes that back, and does it again, under load and with orders that are on their way. No request is refused.
func TestUpgrade(t *testing.T) {
	build(t)
	all := releases(t)
	b := all[len(all)-1]
	released := b.program(t)
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("NOT TESTED: there is no curl here")
	}
	u := openUpgrade(t, released)
	u.load.start(t)
	u.load.flows(20)
	u.run("1. Prove", "DATABASE_URL="+u.database.AdminURL)
	u.run("3. Migrate", "OWNER_DATABASE_URL="+u.database.AdminURL)
	for _, program := range []string{program(), released, program()} {
		u.halfWay()
		for i := range u.fleet.all {
			u.roll(i, program)
			u.load.flows(20)
		}
		u.decide()
	}
	u.load.finish()
	u.settle(2 * patience)
	u.prove()
	seen := u.load.seen()
	t.Log(len(u.load.orders), " orders; ", seen, "; ", takeOvers(t, u.database.URL), " take-overs")
	assert.Equal(t, seen.refused, 0, "requests were refused")
	outcomes := u.outcomes()
	for _, o := range u.load.orders {
		if now := outcomes[o.id].Status; now != "completed" || o.final != "" && o.final != now {
			t.Errorf("order %s: its caller was told %q, and it is %q", o.id, o.final, now)
		}
	}
	for id, o := range outcomes {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, u.trace(id))
		}
	}
	u.run("5. Prove", "DATABASE_URL="+u.database.AdminURL)
}

// upgrade is a shop whose replicas are replaced while callers come through a door.
type upgrade struct {
	*shop
	fleet  *replicas
	door   *balancer
	load   *traffic
	phases int
}

func openUpgrade(t *testing.T, released string) *upgrade {
	t.Helper()
	u := &upgrade{shop: &shop{t: t, database: releasedDatabase(t, released)}, door: openBalancer(t)}
	prefix := "upgrade" + strconv.FormatUint(rand.Uint64(), 36)
	code, said := runProgram(t, released, "migrate", "roles", "--prefix", prefix, "--database-url", u.database.AdminURL)
	assert.Require(t, code == 0, said)
	exec := func(sql string) {
		t.Helper()
		assert.NoError(t, assert.Err(u.database.Pool.Exec(context.WithoutCancel(t.Context()), strings.ReplaceAll(sql, "PREFIX", prefix))))
	}
	exec(`GRANT pg_read_all_stats TO PREFIX_serve`) // the login is another role
	t.Cleanup(func() {
		exec(`DROP OWNED BY PREFIX_owner, PREFIX_serve, PREFIX_read CASCADE`)
		exec(`DROP ROLE PREFIX_owner, PREFIX_serve, PREFIX_read`)
	})
	u.furnish(looking, 20*time.Second)
	u.public = u.door.url
	policy, err := os.ReadFile(u.policy)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(u.policy, append(policy, "approval:\n  - {currency: EUR}\n"...), 0o600))
	var rules []simulator.Rule
	for _, step := range []string{"charge", "reserve", "confirm"} {
		rules = append(rules, simulator.Rule{Fault: simulator.Slow, Delay: 4 * time.Second, Step: step, OrderPrefix: "slow-" + step})
	}
	u.faults(append(rules, simulator.Rule{Fault: simulator.Async, Delay: 3 * time.Second, Step: "charge", OrderPrefix: "callback"},
		simulator.Rule{Fault: simulator.Slow, Delay: 4 * time.Second, Step: "charge", Operation: "refund", OrderPrefix: "refund"})...)
	u.fleet = u.start(2, &replicas{t: t, database: u.database.AdminURL + "&options=-crole%3D" + prefix + "_serve", program: released, flags: []string{"--grace", "4s"}})
	for _, address := range u.fleet.addresses() {
		u.door.let(address)
	}
	u.load = &traffic{url: func(*rand.Rand) string { return u.door.url }, callers: 6, idle: 20 * time.Millisecond, seed: seed(t), order: smallOrders("load")}
	return u
}

// run runs the commands of a step of the page.
func (u *upgrade) run(step string, variables ...string) {
	u.t.Helper()
	cmd := exec.CommandContext(u.t.Context(), "sh", "-ec", blockOf(u.t, "upgrading.md", step, "sh"))
	cmd.Dir = u.t.TempDir()
	cmd.Env = append(append(dbtest.Neutral(), "PATH="+filepath.Dir(program())+":"+postgresPrograms(u.t)+":"+os.Getenv("PATH")), variables...)
	said, err := cmd.CombinedOutput()
	assert.NoError(u.t, err, step, said)
}

// roll replaces a replica, which the door leaves out until the page says that it is ready.
func (u *upgrade) roll(i int, program string) {
	u.t.Helper()
	u.door.shut(u.t, u.fleet.addresses()[i])
	assert.Equal(u.t, u.fleet.all[i].terminate(), 0, "ended with")
	u.fleet.program = program
	u.fleet.replace(i)
	address := u.fleet.addresses()[i]
	u.run("4. Replace", "REPLICA="+address)
	u.door.let(address)
}

// halfWay sends orders and returns when each of them is on its way: its provider works on a step, or has promised a
// callback, or works on a refund, or it waits for a person.
func (u *upgrade) halfWay() {
	u.t.Helper()
	n := u.phases
	u.phases++
	order := func(name, currency string) string {
		id := fmt.Sprintf("%s-%d", name, n)
		u.must("/api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":"9.99","currency":%q,"item":"boat"}`, id, currency))
		return id
	}
	refund := order("refund", "USD")
	u.until(refund, "completed", "")
	u.must("/api/orders/"+refund+"/refunds", `{"reason":"test","requestId":"1","amount":"1.00"}`)
	u.until(order("approval", "EUR"), "pending", "approval")
	called := order("callback", "USD")
	for _, step := range []string{"charge", "reserve", "confirm"} {
		u.awaits(order("slow-"+step, "USD"), step, "do")
	}
	u.awaits(refund, "charge", "refund")
	u.awaits(called, "charge", "do")
}

// awaits returns when the provider was sent a request.
func (u *upgrade) awaits(id, step, operation string) {
	u.t.Helper()
	eventually(u.t, patience, id+" is at the provider", func() bool {
		return slices.ContainsFunc(u.provider.Requests(id), func(r simulator.Request) bool { return r.Step == step && r.Operation == operation })
	})
}

// decide approves what was sent before the replicas were replaced.
func (u *upgrade) decide() {
	u.t.Helper()
	u.must(fmt.Sprintf("/api/orders/approval-%d/approve", u.phases-1), `{"reason":"test"}`)
}

// must sends a request through the door that is answered with 2xx at once.
func (u *upgrade) must(path, body string) {
	u.t.Helper()
	a := u.client.send(u.t.Context(), request{method: http.MethodPost, url: u.door.url + path, body: body, prefer: "respond-async"})
	assert.True(u.t, a.err == nil && a.code/100 == 2, "POST", path, a)
}

// balancer passes requests on to the replicas that it was told of, in turn.
type balancer struct {
	url string

	mu      sync.Mutex
	open    []string
	passed  int
	passing map[int]passage // by number
}

// passage is a request that is not answered yet.
type passage struct {
	to    string
	since time.Time
}

func openBalancer(t *testing.T) *balancer {
	t.Helper()
	d := &balancer{passing: map[int]passage{}}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	server := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			to, err := url.Parse(d.enter(r))
			assert.NoError(t, err)
			r.SetURL(to)
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
			w.WriteHeader(http.StatusBadGateway)
		},
	})
	t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	d.url = server.URL
	return d
}

// enter chooses a replica for a request.
func (d *balancer) enter(r *httputil.ProxyRequest) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed++
	n, to := d.passed, d.open[d.passed%len(d.open)]
	d.passing[n] = passage{to, time.Now()}
	context.AfterFunc(r.In.Context(), func() { // ends with the answer
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.passing, n)
	})
	return to
}

func (d *balancer) let(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = append(d.open, address)
}

// shut lets nobody in any more, and returns when the last request has certainly arrived: a second after it was sent.
func (d *balancer) shut(t *testing.T, address string) {
	t.Helper()
	d.mu.Lock()
	d.open = slices.DeleteFunc(d.open, func(open string) bool { return open == address })
	d.mu.Unlock()
	eventually(t, patience, "the last requests have arrived", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range d.passing {
			if p.to == address && time.Since(p.since) < time.Second {
				return false
			}
		}
		return true
	})
}
