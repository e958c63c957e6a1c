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

	"pawl/test/clocks"
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
	clock    *clocks.Wall // of their machine; nil: it is right

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
		return launchProgram(r.t, stepped(), r.clock.Env(), args...)
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

// stock is fewer than will be asked for.
const stock = 40

// spared waits until another end or two of processes can't get an order held: three in a row that end before they move it
// are taken for its victims. On a busy machine kills can come as fast as that, and hundreds of orders may wait for calls.
func spared(t *testing.T, url string) {
	t.Helper()
	eventually(t, 3*patience, "orders that were taken over twice have moved", func() bool {
		return count(t, url, `SELECT count(*) FROM orders AS o WHERE o.take_overs >= 2 AND o.ended_as IS NULL AND o.hold IS DISTINCT FROM 'attention'`) == 0
	})
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
