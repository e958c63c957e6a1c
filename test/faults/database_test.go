package faults

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestDatabaseHangs stops PostgreSQL for longer than a lease, while its connections stay. Callers, who wait for a second at most,
// are told to come again; no connection of theirs breaks, no answer is wrong, and what was acknowledged is there.
func TestDatabaseHangs(t *testing.T) {
	build(t)
	t.Parallel()
	s := seed(t)
	server := startPostgres(t)
	r := startReplicas(t, 2, server.url, hasty...)
	stockUp(t, r.addresses()[0], scarce, stock)
	load := &traffic{url: r.any, prefer: "wait=1", callers: 24, seed: s, order: smallOrders("hang")}
	load.start(t)
	for range rounds(t, 1) {
		load.flows(100)
		before, frozen := load.seen(), time.Now()
		thaw := server.freeze()
		awaitHealth(t, r, http.StatusServiceUnavailable)
		eventually(t, answerLimit, "callers are told to come again", func() bool {
			return load.seen().refused-before.refused >= load.callers && time.Since(frozen) > 2*hastyLease
		})
		thaw()
		awaitHealth(t, r, http.StatusOK)
	}
	load.flows(100)
	load.finish()
	settle(t, server.url, patience)
	prove(t, server.url, load)
	proveStock(t, server.url, scarce, stock)
	t.Logf("%d orders; %s; %d take-overs", len(load.orders), load.seen(), takeOvers(t, server.url))
}

// awaitHealth waits until every replica says how it is, as a balancer asks.
func awaitHealth(t *testing.T, r *replicas, code int) {
	t.Helper()
	c := newClient(1, false)
	for _, url := range r.addresses() {
		eventually(t, startLimit, "GET /health tells how the database is", func() bool {
			began := time.Now()
			a := c.get(t.Context(), url+"/health")
			if took := time.Since(began); took > 15*time.Second { // the database has ten, for all that has to be known
				t.Errorf("GET /health took %s", took)
			}
			if a.err != nil || a.code != http.StatusOK && a.code != http.StatusServiceUnavailable {
				t.Fatalf("GET /health: %s", a)
			}
			if a.code == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "" {
				t.Errorf("GET /health: %s, without Retry-After", a)
			}
			return a.code == code
		})
	}
}

// TestStartOnBrokenConnections breaks the first connections of a start: three at once, and the others each after twice as many bytes as the one
// before. So the start is broken at every step, and repeats what was lost.
func TestStartOnBrokenConnections(t *testing.T) {
	build(t)
	t.Parallel()
	for name, database := range map[string]string{"an empty database": dbtest.Empty(t), "a migrated one": dbtest.New(t).URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const broken = 16
			var made atomic.Int64
			proxy := dbtest.NewProxy(t, database)
			proxy.OnConnect(func() int64 {
				switch n := made.Add(1); {
				case n <= 3:
					return 0
				case n <= broken:
					return 64 << (n - 4)
				default:
					return dbtest.Unlimited
				}
			})
			p := launch(t, nil, "serve", "--database-url", proxy.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--max-conns", "4")
			address := p.url()
			if n := made.Load(); n <= broken/2 {
				t.Errorf("%d connections were made", n)
			}
			c := newClient(1, false)
			if a := c.insist(t.Context(), address, order{id: "one", amount: "1.00", item: "widget"}); a.state() != "completed" {
				t.Error(a)
			}
			eventually(t, patience, "GET /health is 200", func() bool { return c.get(t.Context(), address+"/health").code == http.StatusOK })
			t.Logf("%d connections were made\n%s", made.Load(), p.stderr())
			p.terminate()
		})
	}
}

// TestAttemptsWhileAway takes PostgreSQL away from three replicas and 64 callers, who ask for orders and refunds until they have them.
// Each replica tries to connect now and then, however many callers wait, and all have their answers soon after it is back.
func TestAttemptsWhileAway(t *testing.T) {
	build(t)
	t.Parallel()
	const callers, most, seen = 64, 8, 15 // connections of a replica; attempts of each before the server comes back
	server := startPostgres(t)
	var attempts [3]atomic.Int64
	var urls []string
	for i := range attempts {
		proxy := dbtest.NewProxy(t, server.url)
		proxy.OnConnect(func() int64 {
			attempts[i].Add(1)
			return dbtest.Unlimited
		})
		urls = append(urls, startReplicas(t, 1, proxy.URL, "--lease", "2s", "--recovery-interval", "250ms", "--max-conns", fmt.Sprint(most)).addresses()[0])
	}
	c := newClient(callers, true)
	t.Cleanup(c.close)
	for i := range callers / 2 { // to be refunded
		if a := c.insist(t.Context(), urls[i%3], order{id: fmt.Sprintf("sold-%d", i), amount: "2.00", item: "widget"}); a.state() != "completed" {
			t.Fatal(a)
		}
	}
	server.kill()
	for i := range attempts {
		attempts[i].Store(0)
	}
	began := time.Now()
	var answered sync.WaitGroup
	for i := range callers {
		answered.Go(func() {
			r := request{method: http.MethodPost, url: urls[i%3] + "/api/orders/process", body: order{id: fmt.Sprintf("new-%d", i), amount: "1.00", item: "widget"}.body()}
			if i%2 == 0 {
				r.url, r.body = urls[i%3]+fmt.Sprintf("/api/orders/sold-%d/refunds", i/2), `{"reason":"broken","requestId":"ticket"}`
			}
			for end := time.Now().Add(patience); ; <-time.After(pace) {
				a := c.send(t.Context(), r)
				if a.state() == "completed" {
					return
				}
				if a.err != nil || a.code != http.StatusServiceUnavailable && a.code != http.StatusAccepted || time.Now().After(end) {
					t.Errorf("%s: %s", r.url, a)
					return
				}
			}
		})
	}
	fewest := func() int64 { return min(attempts[0].Load(), attempts[1].Load(), attempts[2].Load()) }
	eventually(t, patience, "every replica tries to connect", func() bool { return fewest() >= seen })
	away := time.Since(began)
	// At first every place of the pool may have an attempt under way, and one connection looks for lost statements.
	allowed := int64(most + 1)
	for pause, at := 20*time.Millisecond, time.Duration(0); at < away; pause = min(2*pause, 500*time.Millisecond) {
		at += pause * 4 / 5
		allowed++
	}
	for i := range attempts {
		n := attempts[i].Swap(0)
		t.Logf("replica %d: %d attempts in %s", i, n, away)
		if n > allowed {
			t.Errorf("replica %d makes %d attempts in %s, want %d at most", i, n, away, allowed)
		}
	}
	server.start()
	back := time.Now()
	answered.Wait()
	t.Logf("all were answered %s after the server was back, with %d, %d and %d connections", time.Since(back), attempts[0].Load(), attempts[1].Load(), attempts[2].Load())
	verify(t, server.url)
}
