package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	api "pawl/client"
	"pawl/fsm"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// TestCellIsDivided does what docs/operations.md says of dividing a cell, with callers who never stop and steps at a
// provider: a standby becomes the second cell. Every order ends in exactly one of them, charged once; no unit of stock
// is sold twice; and the feed of the first cell goes on.
func TestCellIsDivided(t *testing.T) {
	build(t)
	t.Parallel()
	const units = 100_000
	o := openOriginal(t)
	assert.NoError(t, o.provider.SetFaults(simulator.Rule{Fault: simulator.Slow, Delay: 50 * time.Millisecond}))
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	charge := fmt.Sprintf("charge:\n"+refunds+"  timeout: 1s\n", "charge", o.url)
	assert.NoError(t, os.WriteFile(policy, []byte(charge), 0o600))
	standby := o.backup(nil)
	standby.settings["primary_conninfo"] = fmt.Sprintf("host=%s port=5432 user=pawl", filepath.Join(o.server.dir, "run"))
	first := []*service{o.serve(o.server.url, "--policy", policy), o.serve(o.server.url, "--policy", policy), o.serve(o.server.url, "--policy", policy)}
	first[0].must(http.MethodPost, "/api/inventory/boat/adjustments", fmt.Sprintf(`{"change":%d,"reason":"test","requestId":"stock"}`, units))
	assert.NoError(t, os.WriteFile(filepath.Join(standby.dir, "data", "standby.signal"), nil, 0o644))
	standby.start()
	standby.url = standby.server.URL("postgres")

	calls := newCellCallers(t, first[0].address, first[1].address)
	calls.reach(200)
	past := latest(first[0])

	// The replicas stop, one of them by a kill in the middle of its orders, and one stands still until both cells run.
	stopped := time.Now()
	first[2].signal(syscall.SIGSTOP)
	first[1].kill()
	first[0].terminate()
	eventually(t, patience, "the leases of the killed replica have ended", func() bool {
		code, _ := run(t, "divide", "--database-url", o.server.url)
		return code == 0
	})
	at := query[string](t, o.server.url, "SELECT pg_current_wal_lsn()::text")[0]
	eventually(t, patience, "the standby has everything", func() bool {
		return query[bool](t, standby.url, "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", at)[0]
	})
	query[bool](t, standby.url, "SELECT pg_promote()")
	undecided := o.serve(standby.url) // a service on a divided database only reads it
	a := undecided.send(http.MethodPost, "/api/orders/process", `{"orderId":"a","amount":1,"item":"boat"}`)
	assert.Equal(t, a.body.Code, "quarantined", "before pawl adopt --cell", a)
	undecided.terminate()
	databases := []string{o.server.url, standby.url}
	var second [2][2]*service
	for i, database := range databases {
		cell := fmt.Sprintf("%d/2", i)
		code, said := run(t, "adopt", "--cell", fmt.Sprintf("%d/2", 1-i), "--database-url", database)
		assert.True(t, code != 0 && strings.Contains(said, "becomes cell "+cell), "both databases can become the same half", said)
		code, said = run(t, "adopt", "--cell", cell, "--database-url", database)
		assert.Require(t, code == 0, said)
		second[i] = [2]*service{o.serve(database, "--policy", policy, "--cell", cell), o.serve(database, "--policy", policy, "--cell", cell)}
	}
	calls.use(second[0][0].address, second[1][0].address)
	first[2].signal(syscall.SIGCONT)
	for _, id := range []string{"caller-9-other", "a", "h"} { // of the second cell
		a := first[2].send(http.MethodPost, "/api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":9.99,"item":"boat"}`, id))
		assert.True(t, ofCell(id) != 1 || a.code/100 != 2, "a replica that stood still takes an order of another cell", a)
	}
	calls.reach(calls.answered.Load() + 1)
	t.Logf("callers waited for %s", time.Since(stopped).Round(100*time.Millisecond))
	calls.reach(calls.answered.Load() + 200)
	for i := range second { // and again, on both sides
		second[i][0].kill()
	}
	calls.use(second[0][1].address, second[1][1].address)
	calls.reach(calls.answered.Load() + 200)
	all := calls.end()

	for _, c := range []struct {
		service *service
		after   string
		code    int
	}{
		{second[0][1], past, http.StatusOK}, {second[1][1], past, http.StatusOK}, // both have the same past
		{second[0][1], latest(second[0][1]), http.StatusOK}, {second[1][1], latest(second[0][1]), http.StatusGone},
	} {
		a := c.service.get("/api/events?limit=1&after=" + c.after)
		assert.Equal(t, a.code, c.code, "after", c.after, a)
	}
	ended := map[string]int{}
	for i, database := range databases {
		eventually(t, patience, "all orders of the cell have ended", func() bool {
			return count(t, database, `SELECT count(*) FROM pawl.orders WHERE ended_as IS NULL AND NOT coalesce(hold_reason, '') ^@ 'other_cell: '`) == 0
		})
		for _, id := range query[string](t, database, `SELECT order_id FROM pawl.orders WHERE ended_as = 'completed'`) {
			if ofCell(id) == i {
				ended[id]++
			}
		}
		verify(t, database)
		var heard map[string]int
		eventually(t, patience, "the feed of the cell has all", func() bool {
			heard = completions(t, (*calls.cells.Load())[i])
			return !slices.ContainsFunc(all, func(id string) bool { return ofCell(id) == i && heard[id] == 0 })
		})
		for _, id := range all {
			if ofCell(id) == i {
				assert.Equal(t, heard[id], 1, id, "is in the feed of its cell")
			}
		}
	}
	for _, id := range all {
		assert.Equal(t, ended[id], 1, id)
		for _, entry := range o.provider.Books(id) {
			if entry.Step == string(fsm.Charge) {
				assert.Equal(t, entry.Effects, 1, id)
			}
		}
	}
	code, said := run(t, "verify", "--all", "--database-url", databases[0]+" "+databases[1])
	assert.True(t, code == 0 && strings.Contains(said, "\ncell 1/2, "), "verify --all", code, said)
	const free = `SELECT on_hand - reserved FROM pawl.inventory WHERE item = 'boat'`
	left := count(t, databases[0], free) + count(t, databases[1], free)
	assert.Equal(t, left, units-int64(len(all)))
}

// latest is the cursor of the latest event of a feed.
func latest(s *service) string {
	s.t.Helper()
	return regexp.MustCompile(`"nextCursor":"([^"]+)"`).FindStringSubmatch(s.must(http.MethodGet, "/api/events?after=latest", "").text)[1]
}

// completions counts the events of completed orders in a feed, from the first event on.
func completions(t *testing.T, c *api.Client) map[string]int {
	t.Helper()
	heard := map[string]int{}
	for after := "oldest"; ; {
		page, err := c.ListEvents(t.Context(), api.ListEventsParams{After: after, Type: []string{"order.completed"}, Limit: 1000})
		assert.NoError(t, err)
		for _, event := range page.Events {
			heard[event.Data.OrderID]++
		}
		if after = page.NextCursor; !page.More {
			return heard
		}
	}
}

func ofCell(id string) int {
	cells, _ := api.NewCells([]string{"http://0", "http://1"}, api.Options{})
	if cells.For(id) == cells[1] {
		return 1
	}
	return 0
}

// cellCallers send orders all the time, each until it is answered.
type cellCallers struct {
	t        *testing.T
	cells    atomic.Pointer[api.Cells]
	answered atomic.Int64
	stop     context.CancelFunc
	all      sync.WaitGroup
	mu       sync.Mutex
	ids      []string
}

func newCellCallers(t *testing.T, addresses ...string) *cellCallers {
	t.Helper()
	c := &cellCallers{t: t}
	c.use(addresses...)
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	for caller := range 16 {
		c.all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c.send(fmt.Sprintf("caller-%d-%d", caller, n))
			}
		})
	}
	t.Cleanup(func() { stop(); c.all.Wait() })
	return c
}

// use tells the callers where the cells are.
func (c *cellCallers) use(addresses ...string) {
	cells, err := api.NewCells(addresses, api.Options{RetryFor: -1, Timeout: patience})
	assert.NoError(c.t, err)
	c.cells.Store(&cells)
}

// send repeats an order until it has ended.
func (c *cellCallers) send(id string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for try := time.Millisecond; ; try = min(2*try, 100*time.Millisecond) {
		order, err := c.cells.Load().For(id).Process(ctx, api.ProcessBody{OrderID: id, Amount: "9.99", Item: "boat"})
		if err == nil && order.Status.Final() {
			assert.Equal(c.t, order.Status, api.StatusCompleted, id)
			c.mu.Lock()
			c.ids = append(c.ids, id)
			c.mu.Unlock()
			c.answered.Add(1)
			return
		}
		if ctx.Err() != nil {
			c.t.Errorf("%s has not ended: %+v, %v", id, order, err)
			return
		}
		<-time.After(try)
	}
}

// reach waits until so many orders are answered.
func (c *cellCallers) reach(n int64) {
	c.t.Helper()
	eventually(c.t, patience, fmt.Sprintf("%d orders are answered", n), func() bool { return c.answered.Load() >= n })
}

// end stops the callers, and returns the orders that were answered.
func (c *cellCallers) end() []string {
	c.stop()
	c.all.Wait()
	return c.ids
}
