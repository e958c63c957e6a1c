package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestStop asks a replica to end, as a deployment does.
func TestStop(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("under load it finishes what it has begun", func(t *testing.T) {
		t.Parallel()
		stopUnderLoad(t)
	})
	t.Run("what it cannot finish it hands back, and others take it over at once", func(t *testing.T) {
		t.Parallel()
		stopWithoutHope(t)
	})
	t.Run("a second signal ends it at once", func(t *testing.T) {
		t.Parallel()
		stopTwice(t)
	})
}

// stopUnderLoad replaces replicas one after the other. Nobody comes again: whoever was heard gets an answer.
func stopUnderLoad(t *testing.T) {
	t.Helper()
	s := seed(t)
	database := dbtest.New(t)
	sign(t, database)
	var loads []*traffic
	for round := range rounds(t, 1) {
		r := startReplicas(t, 1, database.URL)
		load := &traffic{url: r.any, cuts: true, once: true, callers: 32, seed: s + uint64(round), order: smallOrders(fmt.Sprint("stop-", round))}
		load.start(t)
		load.flows(100)
		began := time.Now()
		if code := r.all[0].terminate(); code != 0 {
			t.Errorf("ended with %d", code)
		}
		took := time.Since(began)
		load.finish()
		if left := unfinished(t, database.URL); left != 0 {
			t.Errorf("%d orders were left behind", left)
		}
		heard(t, database.URL, load)
		t.Logf("%d orders; %s; ended in %s", len(load.orders), load.seen(), took)
		loads = append(loads, load)
	}
	prove(t, database.URL, loads...)
	proveFences(t, database.URL)
}

// heard fails for callers who got no answer, or part of one, although their order arrived.
func heard(t *testing.T, url string, load *traffic) {
	t.Helper()
	stored := map[string]bool{}
	for _, id := range query[string](t, url, `SELECT o.order_id FROM books.orders AS o`) {
		stored[id] = true
	}
	for _, s := range load.orders {
		if s.torn || s.cut && stored[s.id] {
			t.Errorf("order %s: the connection was cut; stored: %v; in the middle of the answer: %v", s.id, stored[s.id], s.torn)
		}
	}
}

// stopWithoutHope stops a replica whose orders a lock keeps from ending.
func stopWithoutHope(t *testing.T) {
	t.Helper()
	const grace, lease = 4 * time.Second, 10 * time.Minute // what comes of a lease's end does not come in this test
	s := seed(t)
	database := dbtest.New(t)
	sign(t, database)
	flags := []string{"--grace", grace.String(), "--lease", lease.String()}
	r := startReplicas(t, 1, database.URL, flags...)
	load := &traffic{url: r.any, cuts: true, once: true, callers: 32, seed: s, order: smallOrders("hope")}
	load.start(t)
	load.flows(200)
	unlock := holdOrders(t, database.URL, 20)
	startReplicas(t, 1, database.URL, flags...)
	began := time.Now()
	code := r.all[0].terminate()
	took := time.Since(began)
	load.finish()
	if code != 0 || took > grace+patience/2 { // the lock is there for as long as it takes
		t.Errorf("ended with %d after %s", code, took)
	}
	heard(t, database.URL, load)
	if seen := load.seen(); seen.unfinished == 0 {
		t.Errorf("no caller was told that his order goes on: %s", seen)
	}
	unlock()
	settled := settle(t, database.URL, patience)
	released := count(t, database.URL, `SELECT count(*) FROM books.transitions AS t WHERE t.verb = 'release_lease'`)
	t.Logf("%d orders; %s; ended in %s; %d released, %d taken over, all ended %s after they could",
		len(load.orders), load.seen(), took, released, takeOvers(t, database.URL), settled)
	if released == 0 {
		t.Error("no order was handed back")
	}
	prove(t, database.URL, load)
	proveFences(t, database.URL)
}

// stopTwice is somebody who does not want to wait.
func stopTwice(t *testing.T) {
	t.Helper()
	database := dbtest.New(t)
	r := startReplicas(t, 1, database.URL, "--grace", "10m")
	url, p := r.addresses()[0], r.all[0]
	c := newClient(1, false)
	stockUp(t, url, scarce, stock)
	lockStock(t, database.URL)
	o := order{id: "stuck", amount: "1.00", item: scarce}
	if a := c.process(t.Context(), url, o, "respond-async"); a.code != 202 {
		t.Fatalf("answered %s", a)
	}
	p.signal(syscall.SIGTERM)
	eventually(t, startLimit, "it takes no more callers", func() bool { return c.get(t.Context(), url+"/livez").err != nil })
	if !p.running() {
		t.Fatal("ended with an order in hand")
	}
	p.terminate() // it is waited for, but not for as long as its grace
}
