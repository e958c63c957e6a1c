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
