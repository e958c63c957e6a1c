package faults

import (
	"bufio"
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/dbtest"
)

// TestPausedReplica stops a replica for longer than its lease, as a hypervisor or a laptop lid does, and the other one as soon as
// that has taken over its orders. It wakes up in the middle of what it did, and nothing but their fence keeps it from moving
// the orders that it takes for its own. When it is stopped, a lock keeps orders from ending, so that it has some.
func TestPausedReplica(t *testing.T) {
	build(t)
	t.Parallel()
	s := newSleeper(t, "10m")
	for range rounds(t, 1) {
		fenced := s.late()
		unlock := s.fallAsleep()
		eventually(t, patience, "its orders are taken over", func() bool {
			return count(t, s.database, `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL AND o.fence = 1`) == 0
		})
		s.other.signal(syscall.SIGSTOP)
		eventually(t, patience, "no statement runs", func() bool {
			return count(t, s.database, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()`) == 0
		})
		unlock()
		s.sleeps.signal(syscall.SIGCONT)
		eventually(t, patience, "it finds out", func() bool { return s.late() > fenced })
		s.other.signal(syscall.SIGCONT)
		eventually(t, patience, "the other finishes them", func() bool { // before it holds more, which the sleeper never had
			return count(t, s.database, `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL AND o.fence > 1`) == 0
		})
	}
	s.proves()
}

// sleeper is a replica under load that is stopped, and another one without callers.
type sleeper struct {
	t        *testing.T
	database string
	load     *traffic
	url      string
	sleeps   *process
	other    *process
}

func newSleeper(t *testing.T, lease string) *sleeper {
	t.Helper()
	database := dbtest.New(t)
	sign(t, database)
	r := startReplicas(t, 1, database.URL, hasty...)
	s := &sleeper{t: t, database: database.URL, url: r.addresses()[0], sleeps: r.all[0]}
	stockUp(t, s.url, scarce, stock)
	s.load = &traffic{url: r.any, callers: 48, seed: seed(t), order: smallOrders("pause")}
	s.load.start(t)
	s.other = startReplicas(t, 1, database.URL, "--recovery-interval", "100ms", "--lease", lease).all[0]
	return s
}

// fallAsleep stops the replica with some orders in its hands, behind a lock. It knows of them: an order whose admission it
// has not heard of yet it would read later, as any other, and see that another replica has it.
func (s *sleeper) fallAsleep() (unlock func()) {
	s.t.Helper()
	s.load.flows(100)
	unlock = lockStock(s.t, s.database)
	eventually(s.t, patience, "orders wait", func() bool {
		return unfinished(s.t, s.database) >= 20 && metric(s.t, s.url, "pawl_leases_held") >= 20
	})
	s.sleeps.signal(syscall.SIGSTOP)
	return unlock
}

// late counts the moves that came too late.
func (s *sleeper) late() int64 {
	s.t.Helper()
	return metric(s.t, s.url, "pawl_moves_fenced_total")
}

// proves ends the load and looks at what has come of it.
func (s *sleeper) proves() {
	s.t.Helper()
	s.load.flows(100)
	s.load.finish()
	settle(s.t, s.database, patience)
	prove(s.t, s.database, s.load)
	proveFences(s.t, s.database)
	proveStock(s.t, s.database, scarce, stock)
	taken, late := takeOvers(s.t, s.database), s.late()
	s.t.Logf("%d orders; %s; %d take-overs, %d moves came late", len(s.load.orders), s.load.seen(), taken, late)
	if taken == 0 || late == 0 {
		s.t.Error("the fault did not bite")
	}
}

// holdOrders locks the stock and waits until that keeps so many orders from ending: the reservation of one waits for the
// lock, and the others wait behind it.
func holdOrders(t *testing.T, url string, n int64) (unlock func()) {
	t.Helper()
	unlock = lockStock(t, url)
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	eventually(t, patience, "orders wait for their stock", func() bool { return count(t, url, waiting) > 0 && unfinished(t, url) >= n })
	return unlock
}

// lockStock blocks every reservation of an item that has a stock until unlock is called.
func lockStock(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { _ = conn.Close(context.WithoutCancel(t.Context())) }
	t.Cleanup(unlock)
	if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	locked, err := conn.Exec(t.Context(), "SELECT FROM pawl.inventory WHERE item = $1 FOR UPDATE", scarce)
	if err != nil || locked.RowsAffected() != 1 {
		t.Fatalf("lock the stock: %v, %s", err, locked)
	}
	return unlock
}

// metric reads a counter from /metrics.
func metric(t testing.TB, url, name string) int64 {
	t.Helper()
	c := newClient(1, false)
	a := c.get(t.Context(), url+"/metrics")
	if a.err != nil || a.code != 200 {
		t.Fatalf("metrics: %s", a)
	}
	for lines := bufio.NewScanner(strings.NewReader(a.text)); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int64(n)
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
