package faults

import (
	"testing"
	"time"

	"pawl/test/dbtest"
)

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
	taken := takeOvers(t, database.URL)
	t.Logf("%d orders; %s; %d left behind, %d take-overs; all ended %s after the kill", len(load.orders), load.seen(), left, taken, took)
	if taken == 0 {
		t.Error("the fault did not bite")
	}
}
