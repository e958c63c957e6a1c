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
