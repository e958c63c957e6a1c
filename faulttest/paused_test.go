package faulttest

import (
	"bufio"
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/dbtest"
)

// pauses are what others have done with the orders of a replica when it wakes up, and the counter that shows that it
// came too late.
var pauses = []struct {
	name      string
	meanwhile func(t *testing.T, url string, unlock func())
	late      string
}{
	{"wakes up when others have finished its orders", func(t *testing.T, url string, unlock func()) {
		t.Helper()
		unlock()
		settle(t, url, 15*time.Second)
	}, "pawl_moves_lost_total"},
	{"wakes up while others are at its orders", func(t *testing.T, url string, _ func()) {
		t.Helper()
		eventually(t, 15*time.Second, "its orders are taken over", func() bool {
			return count(t, url, `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL AND o.fence = 1`) == 0
		})
	}, "pawl_moves_fenced_total"},
}

// TestPausedReplica stops a replica for longer than its lease, as a hypervisor or a laptop lid does. It wakes up in
// the middle of what it did and does not know that time has passed. When it is stopped, a lock keeps orders from ending,
// so that it has some.
func TestPausedReplica(t *testing.T) {
	build(t)
	t.Parallel()
	for _, c := range pauses {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := seed(t)
			database := dbtest.New(t)
			paused := startReplicas(t, 1, database.URL, hasty...)
			url := paused.addresses()[0]
			stockUp(t, url, scarce, stock)
			load := &traffic{url: paused.any, callers: 48, seed: s, order: smallOrders("pause")}
			load.start(t)
			startReplicas(t, 1, database.URL, hasty...)
			for range rounds(t, 2) {
				load.flows(100)
				unlock := lockStock(t, database.URL)
				eventually(t, 15*time.Second, "orders wait", func() bool { return unfinished(t, database.URL) >= 20 })
				paused.all[0].signal(syscall.SIGSTOP)
				c.meanwhile(t, database.URL, unlock)
				paused.all[0].signal(syscall.SIGCONT)
				unlock()
			}
			load.flows(100)
			load.finish()
			settle(t, database.URL, 15*time.Second)
			prove(t, database.URL, load)
			proveStock(t, database.URL, scarce, stock)
			taken, late := takeOvers(t, database.URL), metric(t, url, c.late)
			t.Logf("%d orders; %s; %d take-overs, %d moves came late", len(load.orders), load.seen(), taken, late)
			if taken == 0 || late == 0 {
				t.Error("the fault did not bite")
			}
		})
	}
}

// lockStock keeps orders from ending: whoever reserves waits for the rows that it locks, until unlock is called.
func lockStock(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { _ = conn.Close(context.WithoutCancel(t.Context())) }
	t.Cleanup(unlock)
	for _, statement := range []string{"BEGIN", "SELECT FROM inventory FOR UPDATE"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
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
