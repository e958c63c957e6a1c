package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

// TestTwoProviders charges orders by two routes whose providers refuse, lose answers and call back late and twice,
// while replicas end, people stop orders, and start failed ones again. No order ever has two live charges, over the
// books of both; in the end a completed one has one, at the provider of its route, and the others have none.
func TestTwoProviders(t *testing.T) {
	build(t)
	t.Parallel()
	for round := range rounds(t, 1) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			t.Parallel()
			twoProviders(t, rand.New(rand.NewPCG(seed(t), uint64(round))))
		})
	}
}

const routedOrders = 60

func twoProviders(t *testing.T, random *rand.Rand) {
	t.Helper()
	s := openShop(t, blind, callLimit)
	p := openPair(s)
	r := s.open(2)
	ended := make(chan struct{})
	var people sync.WaitGroup
	people.Go(func() { p.meddle(ended, random) })
	each(routedOrders, 16, func(i int) { s.order(p.id(i)) })
	for i := range 4 {
		<-time.After(200 * time.Millisecond)
		r.all[i%2].kill()
		r.replace(i % 2)
	}
	close(ended)
	people.Wait()
	p.resumeAll()
	for i := range routedOrders {
		s.ask("retry", p.id(i))
	}
	p.calm()
	p.prove()
}

// pair is a shop with two providers, which both may charge.
type pair struct {
	*shop
	providers map[string]*simulator.Simulator // by route
	urls      map[string]string
}

func openPair(s *shop) *pair {
	s.t.Helper()
	p := &pair{shop: s, providers: map[string]*simulator.Simulator{"first": s.provider, "second": openProvider(s.t, "", "")}, urls: map[string]string{}}
	charge := "charge:\n"
	for _, name := range []string{"first", "second"} {
		provider := p.providers[name]
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(provider, w, r) }))
		s.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
		p.urls[name] = server.URL
		charge += "- name: " + name + "\n" + strings.TrimPrefix(fmt.Sprintf(brief, "x", fmt.Sprintf(refunds, "charge", server.URL), callLimit), "x:\n")
		if name == "first" {
			charge += "  fallback: [card_declined]\n"
		}
		p.upset(provider)
	}
	s.t.Cleanup(func() { assert.NoError(s.t, p.providers["second"].Close()) })
	s.write(charge)
	return p
}

func (p *pair) id(i int) string { return fmt.Sprintf("routed-%d", i) }

// upset gives a provider its faults.
func (p *pair) upset(provider *simulator.Simulator) {
	p.t.Helper()
	some := func(fault simulator.Fault, fraction float64, code string) simulator.Rule {
		return simulator.Rule{Fault: fault, Step: "charge", Fraction: fraction, Code: code, Delay: 300 * time.Millisecond, Times: 2}
	}
	slow := simulator.Rule{Fault: simulator.Slow, Step: "charge", Fraction: .05, Delay: callLimit + time.Second, Times: 1}
	assert.NoError(p.t, provider.SetFaults(slow,
		some(simulator.CutAfter, .08, ""), some(simulator.ErrorAfter, .08, ""), some(simulator.RefuseConnection, .08, ""), some(simulator.NotDone, .08, ""),
		some(simulator.CallbackTwice, .15, "card_declined"), some(simulator.Async, .1, ""), some(simulator.AnswerTwice, .2, "card_declined"),
		some(simulator.ForgetDeclines, .2, ""), some(simulator.Decline, .5, ""),
		simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo", Fraction: .2, Times: 2}))
}

// serve hands a request to a provider, and then looks whether its order is charged twice.
func (p *pair) serve(provider *simulator.Simulator, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	provider.ServeHTTP(w, r)
	var of struct{ OrderID string }
	if json.Unmarshal(body, &of) == nil && of.OrderID != "" {
		p.neverTwice(of.OrderID)
	}
}

// live is how many charges of an order are live at a provider. A key that was undone is never live again.
func (p *pair) live(route, id string) (n int) {
	for _, e := range p.providers[route].Books(id) {
		if e.Step == "charge" && e.State == simulator.Live {
			n++
		}
	}
	return n
}

// neverTwice looks at the first provider before and after the second, so that what it sees was so at one moment.
func (p *pair) neverTwice(id string) {
	before, second, after := p.live("first", id), p.live("second", id), p.live("first", id)
	n := min(before, after) + second
	assert.True(p.t, n <= 1, "order", id, "has", n, "live charges")
}

// meddle stops orders, and starts failed ones again.
func (p *pair) meddle(ended chan struct{}, random *rand.Rand) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
			verb := []string{"cancel", "pause", "resume", "resume", "retry", "retry", "retry"}[random.IntN(7)]
			p.ask(verb, p.id(random.IntN(routedOrders)))
		}
	}
}

// resumeAll waits until every order has ended or waits for a person, and ends the pauses.
func (p *pair) resumeAll() {
	p.t.Helper()
	eventually(p.t, 3*patience, "all orders have ended, or wait for a person", func() bool {
		for _, id := range query[string](p.t, p.database.URL, `SELECT o.order_id FROM books.orders AS o WHERE o.hold = 'paused'`) {
			p.ask("resume", id)
		}
		return count(p.t, p.database.URL, `SELECT count(*) FROM books.orders AS o WHERE o.finished_at IS NULL AND o.hold IS DISTINCT FROM 'attention'`) == 0
	})
}

// calm ends the faults, and has what waits for a person tried again until nothing does.
func (p *pair) calm() {
	p.t.Helper()
	for _, provider := range p.providers {
		assert.NoError(p.t, provider.SetFaults())
	}
	eventually(p.t, 3*patience, "all orders have ended, and all undos", func() bool {
		left := query[string](p.t, p.database.URL, `SELECT o.order_id FROM books.orders AS o WHERE o.finished_at IS NULL`)
		for _, id := range left {
			for _, verb := range []string{"resume", "retry"} {
				p.ask(verb, id)
			}
		}
		return len(left) == 0 && count(p.t, p.database.URL, `SELECT count(*) FROM books.late_undos AS u WHERE u.finished_at IS NULL`) == 0
	})
}

// prove compares the books of both providers with ours.
func (p *pair) prove() {
	p.t.Helper()
	routes := map[string]string{}
	for _, row := range query[string](p.t, p.database.URL, `SELECT concat_ws(' ', o.order_id, o.route) FROM books.orders AS o`) {
		id, route, _ := strings.Cut(row, " ")
		routes[id] = route
	}
	ends := map[string]int{}
	for id, o := range p.outcomes() {
		ends[o.Status+" "+routes[id]]++
		want := map[string]int{}
		if o.Status == "completed" {
			want[routes[id]] = 1
		}
		for route := range p.providers {
			if n := p.live(route, id); n != want[route] {
				p.t.Errorf("order %s, %s on route %s: %d live charges of %s\n%s", id, o, routes[id], n, route, p.trace(id))
			}
		}
	}
	code, said := run(p.t, "verify", "--database-url", p.database.URL, "--provider", "charge/first="+p.urls["first"],
		"--provider", "charge/second="+p.urls["second"])
	assert.Equal(p.t, code, 0, "pawl verify --provider ends with", said)
	fallbacks := count(p.t, p.database.URL, `SELECT count(*) FROM books.transitions AS t WHERE t.verb = 'fallback'`)
	p.t.Logf("%v, %d fallbacks, %d late undos, %d take-overs", ends, fallbacks,
		count(p.t, p.database.URL, `SELECT count(*) FROM books.late_undos`), takeOvers(p.t, p.database.URL))
	assert.True(p.t, fallbacks != 0, "no charge fell back")
}
