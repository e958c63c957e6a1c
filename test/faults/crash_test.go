package faults

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestServerProcessKilled kills a process of PostgreSQL again and again, under load. The server then forgets every
// commit that was not flushed; the service keeps its callers and what it remembers. Here the log is flushed by nothing
// but the commits that wait for it, so that as much as possible is forgotten. What was told to anybody must still be
// there, and no more than was sent.
func TestServerProcessKilled(t *testing.T) {
	build(t)
	t.Parallel()
	for _, callers := range []int{1, 16, 256} {
		t.Run(fmt.Sprintf("%d callers", callers), func(t *testing.T) {
			t.Parallel()
			s := seed(t)
			random := newRandom(s)
			server := startPostgres(t, "wal_writer_delay", "10000ms", "wal_writer_flush_after", "1GB")
			r := startReplicas(t, 2, server.url, hasty...)
			stockUp(t, r.addresses()[0], scarce, stock)
			many := callers > 16 // of so many, one finds its connection reset in one of ten runs
			wait := &traffic{url: r.any, cuts: many, callers: callers, seed: s, order: smallOrders("waits")}
			accepted := &traffic{url: r.any, cuts: many, callers: 1 + callers/8, seed: s + 1, order: smallOrders("accepted"), prefer: "respond-async"}
			wait.start(t)
			accepted.start(t)
			look := watch(t, r, wait, accepted)
			for range rounds(t, 5) {
				wait.flows(1 + random.IntN(20+callers))
				server.killOne(random)
				awaitHealth(t, r, http.StatusOK)
			}
			wait.flows(10)
			look.finish()
			wait.finish()
			accepted.finish()
			settle(t, server.url, patience)
			prove(t, server.url, wait, accepted)
			proveStock(t, server.url, scarce, stock)
			look.prove(server.url)
			admitted := int64(0)
			for _, url := range r.addresses() {
				admitted += metric(t, url, "pawl_orders_admitted_total")
			}
			stored := count(t, server.url, `SELECT count(*) FROM books.orders`)
			t.Logf("%d orders; %s; %d looks; %d more admissions than orders; %d take-overs", stored, wait.seen(), len(look.told), admitted-stored, takeOvers(t, server.url))
		})
	}
}

// killOne kills a process of the server that serves a connection. The server ends all others and recovers.
func (s *postgres) killOne(random *rand.Rand) {
	s.t.Helper()
	var pids []int32
	eventually(s.t, startLimit, "the server has recovered", func() (recovered bool) {
		var err error
		pids, err = column[int32](s.t, s.url, `SELECT a.pid FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()`)
		return err == nil && len(pids) > 0
	})
	_ = syscall.Kill(int(pids[random.IntN(len(pids))]), syscall.SIGKILL)
}

// watcher looks at orders while they are under way, and keeps what it was told of each.
type watcher struct {
	t    *testing.T
	stop chan struct{}
	done sync.WaitGroup
	told map[string]string
}

func watch(t *testing.T, r *replicas, loads ...*traffic) *watcher {
	t.Helper()
	w := &watcher{t: t, stop: make(chan struct{}), told: map[string]string{}}
	w.done.Go(func() {
		c := newClient(1, true)
		random := newRandom(1)
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(time.Millisecond):
			}
			load := loads[random.IntN(len(loads))]
			load.mu.Lock()
			n := len(load.orders)
			id := ""
			if n > 0 {
				id = load.orders[max(0, n-1-random.IntN(4))].id
			}
			load.mu.Unlock()
			if a := c.get(t.Context(), r.any(random)+"/api/orders/"+id); id != "" && a.err == nil && a.code == 200 {
				w.told[id] = a.state()
			}
		}
	})
	t.Cleanup(w.finish)
	return w
}

func (w *watcher) finish() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.done.Wait()
}

// prove fails for orders of which more was told than is there.
func (w *watcher) prove(url string) {
	w.t.Helper()
	for id, state := range w.told {
		if count(w.t, url, `SELECT count(*) FROM books.transitions AS t WHERE t.order_id = $1 AND t.to_status = $2`, id, state) == 0 {
			w.t.Errorf("order %s: was told to be %s, and never was", id, state)
		}
	}
}
