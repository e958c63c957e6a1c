package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/assert"
)

// apart is set in the environment of the test that runs in namespaces of its own.
const apart = "PAWL_FAULT_APART"

// resumeLimit is how long after the new leader can commit callers have answers again. A URL with all hosts may first
// lead to one that hangs: for the five seconds of a connection, and the pauses between two attempts.
const (
	resumeLimit = time.Second
	hangLimit   = 7 * time.Second
)

// TestManagedFailover runs the cluster of docs/operations/failover.md, with the files that the page shows, and takes
// its leader away: it loses power, stops until its watchdog resets it, sleeps as a virtual machine does and continues
// later, and is cut off. Callers go on at two replicas: one has a URL with all hosts, the other HAProxy. What they were
// told is true, the feed and the webhooks have each event, and the books are right.
func TestManagedFailover(t *testing.T) { //nolint:paralleltest // it measures how long callers wait
	if !repeated() {
		t.Skip("takes minutes: it runs with PAWL_FAULT_ROUNDS")
	}
	if missing := missingForMachines(); missing != "" {
		t.Skip("NOT TESTED: " + missing)
	}
	if os.Getenv(apart) == "" {
		runApart(t)
		return
	}
	build(t)
	c := openCluster(t)
	for range max(1, rounds(t, 1)/4) {
		c.suffers("loses power", resumeLimit, func(m *machine) (undo func()) {
			m.kill()
			return func() {}
		})
		c.suffers("stops, and its watchdog resets it", resumeLimit, func(m *machine) (undo func()) {
			bites := m.dog.bitten()
			m.stop()
			eventually(t, patience, "the watchdog resets it", func() bool { return m.dog.bitten() > bites && len(m.pids()) == 0 })
			assert.True(t, c.other(m) == nil, "another one led before it was reset")
			return func() {}
		})
		c.suffers("sleeps, and its watchdog with it", hangLimit, func(m *machine) (undo func()) {
			wake, goOn := m.dog.pause(), m.stop()
			return func() { wake(); goOn() }
		})
		c.suffers("is cut off", resumeLimit, (*machine).unplug)
	}
	c.proves()
}

// missingForMachines says what this machine lacks.
func missingForMachines() string {
	if os.Geteuid() != 0 {
		return "only root can make networks"
	}
	for _, program := range []string{"patroni", "etcd", "haproxy", "unshare", "ip", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			return "there is no " + program + " here (Debian packages patroni, python3-etcd, etcd-server, haproxy, iproute2, util-linux)"
		}
	}
	if said, err := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		return "no networks can be made here: " + strings.TrimSpace(string(said))
	}
	return ""
}

// runApart runs the test again in its own network, with its own processes: at the end, nothing is left. The shell is
// the first process, so it buries those whose parents have ended.
func runApart(t *testing.T) {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", `"$@"; exit $?`, "sh",
		os.Args[0], "-test.run=^TestManagedFailover$", "-test.v", "-test.timeout=2h")
	cmd.Env = append(os.Environ(), apart+"=1")
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	assert.NoError(t, err)
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	exited, err := pgembed.Launch(cmd)
	assert.NoError(t, err)
	<-exited
	text, err := os.ReadFile(said.Name())
	assert.NoError(t, err)
	t.Logf("%s", text)
	assert.True(t, cmd.ProcessState.Success(), cmd.ProcessState)
}

// cluster is three machines with two replicas before them, each with callers of its own.
type cluster struct {
	t        *testing.T
	machines []*machine
	url      string // through HAProxy
	loads    []*traffic
	inbox    *receiver
	feed     *follower
}

func openCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, machines: connectMachines(t), inbox: openReceiver(t), url: "postgres://postgres:change-me@127.0.0.1/postgres?sslmode=disable"}
	for _, m := range c.machines {
		m.boot()
	}
	t.Cleanup(func() {
		for _, m := range c.machines {
			if t.Failed() {
				t.Logf("%s, started %d times: Patroni said\n%s\netcd said\n%s", m.name, m.boots, m.log("patroni"), m.log("etcd"))
			}
			m.kill()
		}
	})
	c.awaitWhole()
	proxy := exec.Command("haproxy", "-db", "-f", "../../docs/operations/patroni/haproxy.cfg")
	exited, err := pgembed.Launch(proxy)
	assert.NoError(t, err)
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		<-exited
	})
	hosts := strings.Replace(c.url, "127.0.0.1", network+"11,"+network+"12,"+network+"13", 1) + "&target_session_attrs=read-write"
	for i, url := range []string{hosts, c.url} {
		r := startReplicas(t, 1, url, hasty...)
		if i == 0 {
			stockUp(t, r.addresses()[0], scarce, stock)
			s := &service{process: r.all[0], address: r.addresses()[0], client: newClient(4, false)}
			s.must(http.MethodPost, "/api/webhook-endpoints", fmt.Sprintf(`{"url":%q}`, c.inbox.url))
			c.feed = follow(t, s)
		}
		load := &traffic{url: r.any, callers: 8, idle: 5 * time.Millisecond, seed: seed(t), order: smallOrders([]string{"hosts", "haproxy"}[i])}
		load.start(t)
		load.flows(100)
		c.loads = append(c.loads, load)
	}
	return c
}

// awaitWhole waits for a leader that two others follow, and etcd on all machines.
func (c *cluster) awaitWhole() {
	c.t.Helper()
	web := newClient(1, false)
	eventually(c.t, 3*patience, "all machines work", func() bool {
		for _, m := range c.machines {
			if a := web.get(c.t.Context(), "http://"+m.address+":2379/health"); a.err != nil || !strings.Contains(a.text, "true") {
				return false
			}
		}
		leader := c.other(nil)
		return leader != nil && leader.ask("count(*) = 2 FROM pg_stat_replication WHERE state = 'streaming'")
	})
}

// other is a machine that leads, and is not that one.
func (c *cluster) other(than *machine) *machine {
	for _, m := range c.machines {
		if m != than && m.leads() {
			return m
		}
	}
	return nil
}

// suffers has something befall the leader, and undoes it when another machine leads. The limit is for the callers of
// the replica with all hosts.
func (c *cluster) suffers(what string, limit time.Duration, befall func(*machine) (undo func())) {
	c.t.Helper()
	old := c.other(nil)
	began := time.Now()
	undo := befall(old)
	var leader *machine
	eventually(c.t, patience, "another one leads", func() bool {
		leader = c.other(old)
		return leader != nil
	})
	ready := time.Now()
	var waiting sync.WaitGroup
	for i, load := range c.loads {
		before, most, way := load.seen().answered, limit, "with all hosts"
		if i == 1 {
			most, way = resumeLimit, "through HAProxy"
		}
		waiting.Go(func() {
			took := eventually(c.t, patience, "orders are answered", func() bool { return load.seen().answered > before })
			c.t.Logf("%s %s: %s leads after %.1fs; answers %.2fs later %s", old.name, what, leader.name, ready.Sub(began).Seconds(), took.Seconds(), way)
			assert.True(c.t, took <= most, "answers come", took, "after the new leader")
		})
	}
	waiting.Wait()
	c.flows()
	undo()
	if len(old.pids()) == 0 { // its watchdog has reset it
		old.boot()
	}
	c.flows()
	c.awaitWhole()
	c.flows()
}

func (c *cluster) flows() {
	c.t.Helper()
	for _, load := range c.loads {
		load.flows(100)
	}
}

// proves compares what callers, the receiver of webhooks and the reader of the feed were told with the books.
func (c *cluster) proves() {
	c.t.Helper()
	for _, load := range c.loads {
		load.finish()
		c.t.Logf("%d orders; %s", len(load.orders), load.seen())
	}
	settle(c.t, c.url, patience)
	prove(c.t, c.url, c.loads...)
	proveStock(c.t, c.url, scarce, stock)
	code, said := run(c.t, "verify", "--database-url", c.url)
	assert.Equal(c.t, code, 0, "pawl verify ends with", said)
	c.inbox.awaits(&service{database: c.url})
	rows := slices.Sorted(slices.Values(query[string](c.t, c.url, `SELECT order_id || ' ' || seq FROM books.transitions`)))
	c.feed.awaits(rows)
	c.t.Logf("%d rows of history, all in the feed; %d webhooks", len(rows), c.inbox.count())
}

// follower reads the feed of events from its beginning, as docs/events.md says.
type follower struct {
	t       *testing.T
	service *service

	mu   sync.Mutex
	seen map[string]string // order and seq, by id
}

func follow(t *testing.T, s *service) *follower {
	t.Helper()
	f := &follower{t: t, service: s, seen: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.read(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

func (f *follower) read(ctx context.Context) {
	for after := "oldest"; ctx.Err() == nil; {
		a := f.service.client.get(ctx, f.service.address+"/api/events?limit=1000&wait=1&after="+after)
		var page struct {
			Events []struct {
				ID   string
				Data struct {
					OrderID string
					Seq     int
				}
			}
			NextCursor string
		}
		if a.code == http.StatusGone {
			f.t.Errorf("the feed does not know the cursor %s any more: %s", after, a)
			return
		}
		if a.err != nil || a.code != http.StatusOK {
			<-time.After(pace)
			continue
		}
		if err := json.Unmarshal([]byte(a.text), &page); err != nil {
			f.t.Error(err)
			return
		}
		after = page.NextCursor
		f.mu.Lock()
		for _, e := range page.Events {
			assert.Equal(f.t, f.seen[e.ID], "", "event", e.ID, "comes twice")
			f.seen[e.ID] = fmt.Sprintf("%s %d", e.Data.OrderID, e.Data.Seq)
		}
		f.mu.Unlock()
	}
}

// awaits returns when the feed has had all rows of histories. It fails if it had others.
func (f *follower) awaits(rows []string) {
	f.t.Helper()
	had := func() (orders []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, is := range f.seen {
			if !strings.HasPrefix(is, " ") { // of the stock
				orders = append(orders, is)
			}
		}
		slices.Sort(orders)
		return orders
	}
	eventually(f.t, patience, "the feed has all events", func() bool { return len(had()) >= len(rows) })
	got := had()
	assert.Equal(f.t, got, rows, "the feed has", len(got), "events of orders, and the history", len(rows), "rows; or they differ")
}
