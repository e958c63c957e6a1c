package faults

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pawl "pawl/client"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// shop is a database, the replicas that serve it, and a provider that does all steps of its orders. The provider is in
// this process: its books outlive every kill.
type shop struct {
	t        *testing.T
	database *dbtest.Database
	provider *simulator.Simulator
	url      string // of the provider
	journal  string // file of its books; empty: they are in memory
	policy   string // a file
	public   string // where the provider calls back
	client   *client

	mu       sync.Mutex
	replicas []*replicas
}

// brief is a policy with times that a test can wait for, and that a busy machine keeps to: where a call or a callback is to
// come in time, it has long. The breaker stays out of it: nearly every call has a fault.
const brief = `%s:
%s  timeout: %s
  callbackTimeout: 4s
  inFlight: 256
  retry: {initial: 5ms, cap: 50ms, maxRetries: 5, budget: 20s}
  breaker: {failures: 1000000, open: 1ms}
`

// Executors of a step, for the address of the provider: one that is asked what became of a key before it is sent again,
// and one that can't be.
const (
	looking = "  executor: simulator # for %[1]s\n  url: %[2]s\n"
	blind   = "  executor: http\n  url: %[2]s/%[1]s\n  undoUrl: %[2]s/%[1]s/undo\n"
	refunds = blind + "  refundUrl: %[2]s/%[1]s/refund\n" // of a charge
	final   = "  executor: http\n  url: %[2]s/%[1]s\n"    // nothing undoes a confirmation

	// A charge by Stripe's API, which takes the money at once or authorizes it. Then the confirmation captures it.
	stripeNow   = "  executor: stripe # for %[1]s\n  url: %[2]s\n  secret: file:%[3]s/key\n  webhookSecret: file:%[3]s/hook\n"
	stripeLater = stripeNow + "  capture: on_confirm\n"
	captures    = "  executor: stripe # for %[1]s\n"

	// Charges that only authorize, and are captured as they are asked to be.
	lookingParts = looking + "  capture: later\n"
	blindParts   = refunds + "  capture: later\n  captureUrl: %[2]s/%[1]s/capture\n  voidUrl: %[2]s/%[1]s/void\n"
	stripeParts  = stripeNow + "  capture: later\n"
)

// executorOf is who does a step in a shop. What Stripe can't do the simulator does.
func executorOf(executor, step string) string {
	switch {
	case executor == blindParts && step != "charge":
		return executorOf(blind, step)
	case executor == blind && step == "charge":
		return refunds
	case executor == blind && step == "confirm":
		return final
	case executor == stripeLater && step == "confirm":
		return captures
	case step != "charge" && slices.Contains([]string{stripeNow, stripeLater, stripeParts, lookingParts}, executor):
		return looking
	}
	return executor
}

// callLimit is the time-out of calls some of which are to run into it; overlong is longer than that, and longest than
// the callback time-out.
const (
	callLimit = 2 * time.Second
	overlong  = 5 * time.Second
	longest   = 7 * time.Second
)

// openShop makes a shop without replicas. A call to its provider may take the time-out.
func openShop(t *testing.T, executor string, timeout time.Duration) *shop {
	t.Helper()
	s := &shop{t: t, database: dbtest.New(t)}
	s.furnish(executor, timeout)
	return s
}

// furnish gives a shop its provider and its policy.
func (s *shop) furnish(executor string, timeout time.Duration) {
	t := s.t
	t.Helper()
	s.client = newClient(64, true)
	t.Cleanup(s.client.close)
	s.public = s.balancer()
	s.provider = openProvider(t, s.public+"/api/webhooks/stripe", s.journal)
	server := httptest.NewServer(s.provider)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(func() {
		assert.Succeeds(t, s.provider.Close())
	})
	secrets := t.TempDir()
	for name, text := range map[string]string{"key": "sk_test_1", "hook": hookSecret} {
		assert.NoError(t, os.WriteFile(filepath.Join(secrets, name), []byte(text), 0o600))
	}
	s.url, s.policy = server.URL, filepath.Join(t.TempDir(), "policy.yaml")
	text := ""
	for _, step := range []string{"charge", "reserve", "confirm"} {
		how := fmt.Sprintf(executorOf(executor, step), step, s.url, secrets)
		text += fmt.Sprintf(brief, step, how, timeout)
	}
	assert.NoError(t, os.WriteFile(s.policy, []byte(text), 0o600))
}

const (
	hookSecret = "whsec_of_the_matrix"
	visa       = "pm_card_visa"
)

func openProvider(t *testing.T, webhook, journal string) *simulator.Simulator {
	t.Helper()
	provider, err := simulator.Open(simulator.Config{File: journal, StripeWebhook: webhook, StripeWebhookSecret: hookSecret})
	assert.NoError(t, err)
	return provider
}

// open starts replicas. Flags that are given twice count as given last.
func (s *shop) open(n int, flags ...string) *replicas {
	s.t.Helper()
	return s.openAt(s.database.URL, n, flags...)
}

// openAt starts replicas that reach the database at another address.
func (s *shop) openAt(databaseURL string, n int, flags ...string) *replicas {
	s.t.Helper()
	return s.start(n, &replicas{t: s.t, database: databaseURL, flags: flags})
}

// start starts replicas with the shop's flags before theirs.
func (s *shop) start(n int, r *replicas) *replicas {
	s.t.Helper()
	r.flags = append(append(append([]string{}, hasty...), "--policy", s.policy, "--public-url", s.public), r.flags...)
	r.start(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = append(s.replicas, r)
	return r
}

// balancer passes callbacks on to any replica, dead ones too: the provider comes again.
func (s *shop) balancer() (address string) {
	s.t.Helper()
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if target, err := url.Parse(s.any()); err == nil {
				r.SetURL(target)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	s.t.Cleanup(server.Close)
	return server.URL
}

func (s *shop) any() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var urls []string
	for _, r := range s.replicas {
		urls = append(urls, r.addresses()...)
	}
	if len(urls) == 0 {
		return "http://127.0.0.1:1"
	}
	return urls[rand.IntN(len(urls))]
}

// faults sets the provider's plan.
func (s *shop) faults(rules ...simulator.Rule) {
	s.t.Helper()
	assert.NoError(s.t, s.provider.SetFaults(rules...))
}

// order sends an order until it is accepted, and does not wait for its end.
func (s *shop) order(id string) {
	s.t.Helper()
	s.orderAs(id, "respond-async")
}

// orderAs is order with a preference of how long to wait for the end.
func (s *shop) orderAs(id, prefer string) {
	s.t.Helper()
	o := order{id: id, amount: fmt.Sprintf("%d.%02d", 1+rand.IntN(500), rand.IntN(100)), item: "boat", card: visa}
	for end := time.Now().Add(patience); ; {
		a := s.client.process(s.t.Context(), s.any(), o, prefer)
		if a.err == nil && a.code/100 == 2 {
			return
		}
		if time.Now().After(end) || a.err == nil && a.code != http.StatusServiceUnavailable {
			s.t.Errorf("order %s: %s", id, a)
			return
		}
		<-time.After(pace)
	}
}

// api is the Go client of a replica: for requests whose answer is not the point, but that they are done.
func (s *shop) api(url string) *pawl.Client {
	s.t.Helper()
	api, err := pawl.New(url, pawl.Options{HTTPClient: s.client.http, RetryFor: -1})
	assert.NoError(s.t, err)
	return api
}

// ask asks once that something be done with an order. It may be too late, or too early.
func (s *shop) ask(verb, id string) (done bool) {
	s.t.Helper()
	a := s.client.send(s.t.Context(), request{method: http.MethodPost, url: s.any() + "/api/orders/" + id + "/" + verb,
		body: `{"onBehalfOf":"test","reason":"test","requestId":"` + strconv.FormatUint(rand.Uint64(), 36) + `"}`, prefer: "respond-async"})
	switch {
	case a.err != nil, a.code == http.StatusServiceUnavailable, a.code == http.StatusConflict, a.code == http.StatusNotFound:
		return false
	case a.code/100 != 2:
		s.t.Errorf("%s %s: %s", verb, id, a)
	}
	return a.code/100 == 2
}

// outcome is an order as the books have it, in short.
type outcome struct {
	ID, Status, Hold, Reason, Amount, Currency string
}

func (o outcome) String() string {
	if o.Hold == "" {
		return o.Status
	}
	return fmt.Sprintf("%s, held for %s (%s)", o.Status, o.Hold, o.Reason)
}

func (s *shop) outcomes() map[string]outcome {
	s.t.Helper()
	found := map[string]outcome{}
	for _, o := range query[outcome](s.t, s.database.URL, `SELECT o.order_id, o.status, coalesce(o.hold, ''), coalesce(o.hold_reason, ''),
		o.amount::text, o.currency FROM books.orders AS o`) {
		found[o.ID] = o
	}
	return found
}

// settle waits until every order has ended, or waits for a person.
func (s *shop) settle(limit time.Duration) time.Duration {
	s.t.Helper()
	const moving = `SELECT count(*) FROM books.orders AS o WHERE o.finished_at IS NULL AND o.hold IS DISTINCT FROM 'attention'`
	began := time.Now()
	for tick := time.NewTicker(200 * time.Millisecond); ; <-tick.C {
		switch left := count(s.t, s.database.URL, moving); {
		case left == 0:
			tick.Stop()
			return time.Since(began)
		case time.Since(began) > limit:
			s.t.Fatalf("%d orders do not end:\n%s", left, strings.Join(query[string](s.t, s.database.URL, stuckOrders), "\n"))
		}
	}
}

const stuckOrders = `SELECT format('%s: %s, hold %s, due %s, in doubt %s, calls %s, fence %s, seq %s', o.order_id, o.status, o.hold,
	o.due_at - now(), o.in_doubt_since - now(), o.calls, o.fence, o.seq)
	FROM books.orders AS o WHERE o.finished_at IS NULL AND o.hold IS DISTINCT FROM 'attention' ORDER BY o.order_id LIMIT 10`

// trace is what happened to an order, here and at the provider.
func (s *shop) trace(id string) string {
	s.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "order %s\n", id)
	for _, line := range query[string](s.t, s.database.URL, `SELECT x.line FROM (
		SELECT t.at, format('  %s %s %s -> %s fence %s %s %s', t.at, t.seq, t.from_status, t.to_status, t.fence, t.verb, t.reason) AS line
		FROM books.transitions AS t WHERE t.order_id = $1
		UNION ALL
		SELECT a.started_at, format('  %s call %s %s %s generation %s fence %s until %s: %s %s %s fenced %s', a.started_at, a.call, a.operation, a.step,
		  a.generation, a.fence, a.finished_at, a.outcome, a.code, a.detail, a.fenced) FROM books.step_calls AS a WHERE a.order_id = $1
		) AS x ORDER BY x.at, x.line`, id) {
		fmt.Fprintln(&text, line)
	}
	for _, r := range s.provider.Requests(id) {
		fmt.Fprintf(&text, "  provider %s %s %s sent %d times, fence %d fault %q: %s replayed %v answered %v\n",
			r.At.Format(time.TimeOnly+".000"), r.Operation, r.Step, r.TimesSent, r.Fence, r.Fault, r.Outcome, r.Replayed, r.Answered)
	}
	for _, e := range s.provider.Books(id) {
		fmt.Fprintf(&text, "  books %s %s generation %d effects %d requests %d\n", e.Step, e.State, e.Generation, e.Effects, e.Requests)
	}
	return text.String()
}

// kept is what the provider has of an order that stands, or may still come to.
type kept struct {
	live    map[string]int // by step
	pending int
	charged map[string]*big.Rat // live charges, by currency
}

// books are the provider's, by order.
func (s *shop) books() map[string]*kept {
	all := map[string]*kept{}
	for _, e := range s.provider.Books("") {
		k := all[e.OrderID]
		if k == nil {
			k = &kept{live: map[string]int{}, charged: map[string]*big.Rat{}}
			all[e.OrderID] = k
		}
		switch e.State {
		case simulator.Live:
			k.live[e.Step]++
			if e.Step == "charge" {
				add(k.charged, e.Currency, e.Amount)
			}
		case simulator.Pending:
			k.pending++
		default: // undone, or never done
		}
	}
	return all
}

func add(sums map[string]*big.Rat, currency, amount string) {
	value, ok := new(big.Rat).SetString(amount)
	if !ok {
		panic("not a number: " + amount)
	}
	if sums[currency] == nil {
		sums[currency] = new(big.Rat)
	}
	sums[currency].Add(sums[currency], value)
}

// wrong compares an order with what the provider has of it.
func (k *kept) wrong(o outcome) string {
	charges, reservations, confirmations := k.live["charge"], k.live["reserve"], k.live["confirm"]
	what := fmt.Sprintf("%s, and at the provider %d charges, %d reservations, %d confirmations are live, %d may still come",
		o, charges, reservations, confirmations, k.pending)
	switch {
	case charges > 1 || reservations > 1 || confirmations > 1:
		return what
	case o.Status == "completed" && (charges != 1 || reservations != 1 || confirmations != 1 || k.pending != 0):
		return what
	case (o.Status == "failed" || o.Status == "canceled") && charges+reservations+confirmations+k.pending != 0:
		return what
	case o.Hold != "" && (o.Hold != "attention" || o.Reason == ""):
		return what
	}
	return ""
}

// prove compares the books of the provider with ours, here and by the program's own proof.
func (s *shop) prove() {
	s.t.Helper()
	orders, theirs := s.outcomes(), s.books()
	assert.True(s.t, len(orders) != 0, "the books are empty")
	due, taken := map[string]*big.Rat{}, map[string]*big.Rat{}
	shown := 0
	for id, o := range orders {
		k := theirs[id]
		if k == nil {
			k = &kept{}
		}
		if wrong := k.wrong(o); wrong != "" {
			s.t.Errorf("order %s: %s", id, wrong)
			if shown++; shown <= 3 {
				s.t.Log(s.trace(id))
			}
		}
		if o.Status == "completed" {
			add(due, o.Currency, o.Amount)
		}
		if o.Hold == "" { // what a person still has to decide is on neither side
			for currency, sum := range k.charged {
				add(taken, currency, sum.RatString())
			}
		}
		delete(theirs, id)
	}
	for id := range theirs {
		s.t.Errorf("order %s: known to the provider alone", id)
	}
	got, want := fmt.Sprint(texts(taken)), fmt.Sprint(texts(due))
	assert.Equal(s.t, got, want, "the provider has taken", "completed orders come to")
	sum := s.provider.Summary()
	assert.True(s.t, sum.OK(), "something happened twice", sum)
	code, said := run(s.t, "verify", "--database-url", s.database.URL, "--provider", s.url)
	assert.Equal(s.t, code, 0, "pawl verify --provider ends with", said)
}

func texts(sums map[string]*big.Rat) map[string]string {
	out := map[string]string{}
	for currency, sum := range sums {
		out[currency] = strings.TrimSuffix(sum.FloatString(2), ".00")
	}
	return out
}
