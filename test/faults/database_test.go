package faults

import (
	"net/http"
	"testing"
	"time"
)

// TestDatabaseLost takes PostgreSQL away from the service, which stays. Callers wait longer or are told to come again;
// no connection of theirs breaks, no answer is wrong, and what was acknowledged is there.
func TestDatabaseLost(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("killed, all its processes at once", func(t *testing.T) {
		t.Parallel()
		outages(t, rounds(t, 1), (*postgres).kill)
	})
	t.Run("shut down without a goodbye, again and again", func(t *testing.T) {
		t.Parallel()
		outages(t, rounds(t, 1), (*postgres).immediate)
	})
	t.Run("stopped for longer than a lease, then it goes on", func(t *testing.T) {
		t.Parallel()
		hang(t)
	})
}

// outages ends the server under load and starts it again.
func outages(t *testing.T, rounds int, end func(*postgres)) {
	t.Helper()
	s := seed(t)
	random := newRandom(s)
	server := startPostgres(t)
	r := startReplicas(t, 2, server.url, hasty...)
	stockUp(t, r.addresses()[0], scarce, stock)
	load := &traffic{url: r.any, callers: 24, seed: s, order: smallOrders("outage")}
	load.start(t)
	for round := range rounds {
		load.flows(1 + random.IntN(150))
		if round == 0 { // later ones end in any statement, or in none
			holdOrders(t, server.url, 20)
		}
		end(server)
		awaitHealth(t, r, http.StatusServiceUnavailable)
		server.start()
		awaitHealth(t, r, http.StatusOK)
	}
	load.flows(100)
	load.finish()
	settle(t, server.url, patience)
	prove(t, server.url, load)
	proveStock(t, server.url, scarce, stock)
	unknown := unknownOutcomes(t, r)
	t.Logf("%d outages: %d orders; %s; %d outcomes unknown; %d take-overs",
		rounds, len(load.orders), load.seen(), unknown, takeOvers(t, server.url))
	if unknown == 0 {
		t.Error("the fault did not bite")
	}
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

func unknownOutcomes(t *testing.T, r *replicas) (sum int64) {
	t.Helper()
	for _, url := range r.addresses() {
		sum += metric(t, url, "pawl_outcomes_unknown_total")
	}
	return sum
}

// hang stops the server while its connections stay. Callers wait for a second at most.
func hang(t *testing.T) {
	t.Helper()
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
