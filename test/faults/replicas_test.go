package faults

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// hasty are the settings of a replica that notices soon when another one has gone. A busy machine may keep a process from
// renewing its leases for a second. Few connections are enough for the orders of a test, and each of them plans every statement.
var hasty = []string{"--lease", hastyLease.String(), "--recovery-interval", "250ms", "--grace", "10s", "--max-conns", "5"}

const hastyLease = 2 * time.Second

// replicas are processes that serve one database. Callers know them by their last addresses, those of dead ones too,
// as a balancer does for a while.
type replicas struct {
	t        testing.TB
	database string
	flags    []string
	clock    *wallClock // of their machine; nil: it is right

	mu      sync.Mutex
	all     []*process
	urls    []string
	started int
}

func startReplicas(t testing.TB, n int, databaseURL string, flags ...string) *replicas {
	t.Helper()
	r := &replicas{t: t, database: databaseURL, flags: flags}
	r.start(n)
	return r
}

func (r *replicas) start(n int) {
	r.t.Helper()
	r.all, r.urls = make([]*process, n), make([]string, n)
	for i := range n {
		r.all[i] = r.launch()
	}
	for i := range n {
		r.serves(i, r.all[i])
	}
}

// launch starts another process and does not wait for it.
func (r *replicas) launch() *process {
	r.t.Helper()
	r.started++
	database, err := url.Parse(r.database)
	if err != nil {
		r.t.Fatal(err)
	}
	query := database.Query()
	query.Set("application_name", fmt.Sprintf("%p-%d", r, r.started)) // for sign
	database.RawQuery = query.Encode()
	// The databases of the tests run with fsync off: our faults end processes, not the machine.
	args := append([]string{"serve", "--database-url", database.String(), "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--secrets-dir", os.TempDir()}, r.flags...)
	if r.clock != nil {
		return launchProgram(r.t, stepped(), r.clock.env(), args...)
	}
	return launch(r.t, nil, args...)
}

// serves waits until a process serves as the i-th replica.
func (r *replicas) serves(i int, p *process) {
	r.t.Helper()
	address := p.url()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[i], r.urls[i] = p, address
}

// replace starts a process in the place of the i-th, which has ended.
func (r *replicas) replace(i int) {
	r.t.Helper()
	r.serves(i, r.launch())
}

// addresses returns what the callers know.
func (r *replicas) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.urls)
}

// any is a balancer without a health check.
func (r *replicas) any(random *rand.Rand) string {
	urls := r.addresses()
	return urls[random.IntN(len(urls))]
}

// mostly sends two of three requests to one replica.
func (r *replicas) mostly(i int) func(*rand.Rand) string {
	return func(random *rand.Rand) string {
		if random.IntN(3) > 0 {
			return r.addresses()[i]
		}
		return r.any(random)
	}
}

// stock is fewer than will be asked for.
const stock = 40

func TestKilledReplicas(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("a lone replica, again and again", func(t *testing.T) {
		t.Parallel()
		crash(t, 1, rounds(t, 2))
	})
	t.Run("one of three, again and again", func(t *testing.T) {
		t.Parallel()
		crash(t, 3, rounds(t, 2))
	})
	t.Run("one of three with the default settings, and nobody asks again", func(t *testing.T) {
		t.Parallel()
		crashWithDefaults(t)
	})
}

// crash kills a replica that has orders in hand, and then a random one at a random moment, again and again, under load.
func crash(t *testing.T, n, rounds int) {
	t.Helper()
	s := seed(t)
	random := newRandom(s)
	database := dbtest.New(t)
	sign(t, database)
	r := startReplicas(t, n, database.URL, hasty...)
	stockUp(t, r.addresses()[0], scarce, stock)
	load := &traffic{url: r.mostly(0), cuts: true, callers: 24, seed: s, order: smallOrders("crash")}
	load.start(t)
	for round := range rounds {
		load.flows(1 + random.IntN(150))
		spared(t, database.URL)
		i, unlock := 0, func() {}
		if round > 0 {
			i = random.IntN(n)
		} else {
			unlock = holdOrders(t, database.URL, 20)
		}
		r.all[i].kill()
		unlock()
		if round%4 == 1 {
			r.stillborn(time.Duration(random.IntN(150)) * time.Millisecond)
		}
		r.replace(i)
	}
	load.flows(100)
	load.finish()
	took := settle(t, database.URL, patience)
	prove(t, database.URL, load)
	proveFences(t, database.URL)
	proveStock(t, database.URL, scarce, stock)
	seen, taken := load.seen(), takeOvers(t, database.URL)
	t.Logf("%d replicas killed: %d orders; %s; %d take-overs; settled in %s", rounds, len(load.orders), seen, taken, took)
	if seen.suppressed == 0 || taken == 0 {
		t.Error("the fault did not bite")
	}
}

// spared waits until another end or two of processes can't get an order held: three in a row that end before they move it
// are taken for its victims. On a busy machine kills can come as fast as that, and hundreds of orders may wait for calls.
func spared(t *testing.T, url string) {
	t.Helper()
	eventually(t, 3*patience, "orders that were taken over twice have moved", func() bool {
		return count(t, url, `SELECT count(*) FROM orders AS o WHERE o.take_overs >= 2 AND o.ended_as IS NULL AND o.hold IS DISTINCT FROM 'attention'`) == 0
	})
}

// stillborn starts a process that is killed while it starts.
func (r *replicas) stillborn(after time.Duration) {
	r.t.Helper()
	p := r.launch()
	<-time.After(after)
	p.kill()
}

// crashWithDefaults kills one of three replicas. Its callers do not come again: the others finish its orders.
func crashWithDefaults(t *testing.T) {
	t.Helper()
	s := seed(t)
	database := dbtest.New(t)
	sign(t, database)
	r := startReplicas(t, 3, database.URL)
	stockUp(t, r.addresses()[0], scarce, stock)
	load := &traffic{url: r.mostly(0), cuts: true, once: true, callers: 96, seed: s, order: smallOrders("default")}
	load.start(t)
	load.flows(300)
	unlock := holdOrders(t, database.URL, 40)
	r.all[0].kill()
	unlock()
	killed := time.Now()
	load.finish()
	left := unfinished(t, database.URL)
	settle(t, database.URL, patience)
	took := time.Since(killed)
	prove(t, database.URL, load)
	proveFences(t, database.URL)
	proveStock(t, database.URL, scarce, stock)
	taken := takeOvers(t, database.URL)
	t.Logf("%d orders; %s; %d left behind, %d take-overs; all ended %s after the kill", len(load.orders), load.seen(), left, taken, took)
	if taken == 0 {
		t.Error("the fault did not bite")
	}
}

// TestCrowd sends every order many times at once, to all replicas.
func TestCrowd(t *testing.T) {
	build(t)
	t.Parallel()
	const orders, crowd = 60, 12
	database := dbtest.New(t)
	r := startReplicas(t, 3, database.URL)
	c := newClient(64, true)
	defer c.close()
	stockUp(t, r.addresses()[0], scarce, orders/4)
	ask := smallOrders("crowd")
	for n := range orders {
		o := ask(n, newRandom(uint64(n)))
		if n%2 == 0 {
			o.item = scarce
		}
		answers := make([]*answer, crowd)
		each(crowd, func(i int) { answers[i] = c.insist(t.Context(), r.addresses()[i%3], o) })
		for _, a := range answers {
			if !a.final() || a.wrong(o) != "" || a.state() != answers[0].state() {
				t.Errorf("order %s: %s, another caller got %s", o.id, a, answers[0])
			}
		}
	}
	prove(t, database.URL)
	proveStock(t, database.URL, scarce, orders/4)
	if n := count(t, database.URL, `SELECT count(*) FROM books.orders`); n != orders {
		t.Errorf("%d orders", n)
	}
}
