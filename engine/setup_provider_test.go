package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/policy/store"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// shop is a bundle whose orders are done at a simulator, or at an endpoint that does as it is told. Both call back over HTTP.
type shop struct {
	*bundle
	sim      *simulator.Simulator
	door     *door // of the simulator
	provider *endpoint
	urls     *strings.Replacer // of a policy: SIM and ENDPOINT
	stripe   bool              // the simulator is asked as Stripe
	cfg      engine.Config
	mu       sync.Mutex
	engines  []*engine.Engine
	next     atomic.Int64

	refunded string          // the order whose refunds are looked at
	before   decimal.Decimal // what was given back of others
}

// often is how often an engine looks for what is due, so that tests do not wait: and no more often, because looking is
// work, too, and keeps other tests from theirs.
const often = 50 * time.Millisecond

var quick = engine.Config{RecoveryInterval: often}

// openShop starts a simulator, replicas of the engine and the front that providers call back. At the end the books must
// prove right, and at the simulator nothing may have been done twice.
func openShop(t testing.TB, replicas int, cfg engine.Config) *shop {
	t.Helper()
	s := &shop{sim: simulator.New(), refunded: "o"}
	s.door = &door{behind: s.sim}
	behind, front := httptest.NewServer(s.door), httptest.NewServer(http.HandlerFunc(s.front))
	cfg.PublicURL = front.URL
	provider, url := openEndpoint(t)
	s.provider, s.urls, s.cfg = provider, strings.NewReplacer("SIM", behind.URL, "ENDPOINT", url), cfg
	t.Cleanup(func() {
		front.Close()
		behind.Close()
	})
	s.bundle = setupWith(t, cfg)
	s.engines = []*engine.Engine{s.engine}
	for range replicas - 1 {
		s.engines = append(s.engines, s.replica(t, cfg))
	}
	t.Cleanup(func() { // calls that hang end, and engines with them
		s.audit(t)
		assert.Succeeds(t, s.sim.Close())
	})
	return s
}

// front hands what providers send to one replica after the other, as the API does. (Its package takes longer to compile.)
func (s *shop) front(w http.ResponseWriter, r *http.Request) {
	result := engine.CallbackResult{Header: r.Header}
	body, err := io.ReadAll(r.Body)
	if err == nil && r.URL.Path == "/api/webhooks/stripe" {
		err = s.anyone().StripeEvent(r.Context(), body, r.Header.Get("Stripe-Signature"))
	} else if err = errors.Join(err, json.Unmarshal(body, &result)); err == nil {
		result.Body = body
		_, err = s.anyone().Answer(r.Context(), path.Base(r.URL.Path), result)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (s *shop) anyone() *engine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engines[int(s.next.Add(1))%len(s.engines)]
}

// use makes a policy the one that new orders of all replicas start with.
func (s *shop) use(t testing.TB, policy string) (version int32) {
	t.Helper()
	version = s.activate(t, s.urls.Replace(policy))
	for _, e := range s.engines {
		assert.NoError(t, e.LoadPolicies(t.Context()))
	}
	return version
}

// faults changes what goes wrong at the simulator, by its short rules: "decline@reserve".
func (s *shop) faults(t testing.TB, short ...string) {
	t.Helper()
	rules := make([]simulator.Rule, len(short))
	for i, rule := range short {
		parsed, err := simulator.ParseRule(rule)
		assert.NoError(t, err)
		rules[i] = parsed
	}
	assert.NoError(t, s.sim.SetFaults(rules...))
}

// audit holds the database and the simulator to what must always be so.
func (s *shop) audit(t testing.TB) {
	t.Helper()
	report, err := books.Verify(context.WithoutCancel(t.Context()), s.Pool, books.Options{})
	assert.True(t, err == nil && report.OK(), "the books", err, report)
	sum := s.sim.Summary()
	assert.True(t, sum.OK(), "at the provider", sum)
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	assert.Equal(t, s.provider.faults, nil, "at the endpoint")
}

// startNow has the time come that an order waits for.
func (s *shop) startNow(t testing.TB, orderID string) {
	t.Helper()
	s.exec(t, `UPDATE orders SET start_at = now(), due_at = now() WHERE order_id = $1 AND hold = 'scheduled'`, orderID)
}

// get reads an order.
func (s *shop) get(t testing.TB, orderID string) orders.Order {
	t.Helper()
	order, err := s.anyone().Orders.Get(t.Context(), orderID)
	assert.NoError(t, err, "get", orderID)
	return order
}

// until waits for an order to be as is said: its status, or what it is held for. In vain, it says how the order is instead.
func (s *shop) until(t testing.TB, orderID, is string) (order orders.Order) {
	t.Helper()
	came := false
	defer func() {
		if !came {
			t.Logf("%s; calls %q", brief(order), s.made(t, orderID))
		}
	}()
	eventually(t, orderID+" is "+is, func() bool {
		order = s.get(t, orderID)
		return string(order.Status) == is || text(order.Hold) == is || strings.HasPrefix(where(order),
			is+":") || where(order) == is
	})
	came = true
	return order
}

// calls are the requests of an order at the simulator, as step/operation.
func (s *shop) calls(orderID string) (calls []string) {
	for _, r := range s.sim.Requests(orderID) {
		calls = append(calls, r.Step+"/"+r.Operation)
	}
	return calls
}

func (s *shop) called(t testing.TB, orderID string, want ...string) {
	t.Helper()
	assert.Equal(t, s.calls(orderID), want, orderID, "called")
}

// stands checks what stands at the simulator for an order: step and state of each key.
func (s *shop) stands(t testing.TB, orderID string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range s.sim.Books(orderID) {
		got = append(got, e.Step+" "+string(e.State))
	}
	assert.Equal(t, got, want, orderID, "at the provider stand")
}

// where is an order in short: its status, what it is held for, and why it is held or has failed.
func where(o orders.Order) string {
	line := string(o.Status)
	if o.Hold != nil {
		line += " " + *o.Hold
	}
	for _, why := range []*string{o.HoldReason, o.FailureCode} {
		if why != nil {
			line += ": " + *why
		}
	}
	return line
}

// brief is what a test says of an order that is not as it should be.
func brief(o orders.Order) string {
	return fmt.Sprintf("%s: %s, due %v, seq %d, in doubt since %v", o.OrderID, where(o), o.DueAt, o.Seq, o.InDoubtSince)
}

// within bounds a caller.
func within(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// everyStep is a policy with all steps at the simulator.
func everyStep(tuning string) string {
	policy := ""
	for _, step := range []string{"charge", "reserve", "confirm"} {
		policy += step + ": {executor: simulator, url: SIM" + tuning + "}\n"
	}
	return policy
}

// eager has steps tried again at once, impatient has a person asked after the first try. No call ends by its time-out.
var (
	allAtTheSimulator = everyStep("")
	eager             = everyStep(", timeout: 1m, retry: {initial: 1ms, cap: 5ms, maxRetries: 7, budget: 5m}")
	impatient         = everyStep(", timeout: 1m, retry: {initial: 1ms, cap: 5ms, maxRetries: 0, budget: 0s}")
)

// activate makes a policy the active one, which the engine knows at once.
func (b *bundle) activate(t testing.TB, policy string) int32 {
	t.Helper()
	query := db.New(b.Pool)
	used, err := store.Use(t.Context(), query, []byte(policy), "test")
	if err == nil {
		err = store.Activate(t.Context(), query, store.Activation{Version: used.Version, Actor: "test"})
	}
	if err == nil {
		err = b.engine.LoadPolicies(t.Context())
	}
	assert.NoError(t, err)
	return used.Version
}

const allStands, noneStands = "charge 1 reserve 1 confirm 1", "charge 0 reserve 0 confirm 0"

// standing is what the simulator did for an order, net: how often each step stands.
func (s *shop) standing(orderID string) string {
	n := map[string]int{}
	for _, e := range s.sim.Books(orderID) {
		if e.State == simulator.Live {
			n[e.Step]++
		}
	}
	return fmt.Sprintf("charge %d reserve %d confirm %d", n["charge"], n["reserve"], n["confirm"])
}

// ends checks how the order ended, here and at the simulator.
func (s *shop) ends(t testing.TB, o orders.Order, want fsm.State) {
	t.Helper()
	stands := noneStands
	if want == fsm.Completed {
		stands = allStands
	}
	assert.Equal(t, string(o.Status)+": "+s.standing(o.OrderID), string(want)+": "+stands, brief(o))
	s.verified(t)
}

// settled checks that the calls of all orders are closed and their histories whole.
func (b *bundle) settled(t testing.TB) {
	t.Helper()
	for _, fault := range column[string](t, b.Pool, `SELECT format('%s: %s %s %s %s', order_id, step, operation, call, outcome)
		FROM books.step_calls WHERE finished_at IS NULL
		UNION ALL SELECT format('%s: %s history rows, seq %s', o.order_id, count(t), o.seq) FROM books.orders o
		LEFT JOIN books.transitions t USING (order_id) GROUP BY o.order_id, o.seq HAVING count(t) <> o.seq`) {
		t.Error(fault)
	}
}

// door stands before a provider and keeps calls waiting where a test says so: they are under way for as long as the test
// needs them to be, on any machine.
type door struct {
	behind http.Handler

	mu     sync.Mutex
	path   string
	opened chan struct{} // nil: it never was shut
	came   *atomic.Int32
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	path, opened, came := d.path, d.opened, d.came
	d.mu.Unlock()
	if opened != nil && r.URL.Path == path {
		came.Add(1)
		<-opened
	}
	d.behind.ServeHTTP(w, r)
}

// shut keeps calls to a path of a provider until open is called, at the latest by the end of the test. came counts them.
func (d *door) shut(t testing.TB, path string) (came *atomic.Int32, open func()) {
	t.Helper()
	opened := make(chan struct{})
	d.mu.Lock()
	d.path, d.opened, d.came = path, opened, &atomic.Int32{}
	came = d.came
	d.mu.Unlock()
	open = sync.OnceFunc(func() { close(opened) })
	t.Cleanup(open)
	return came, open
}

type fate = dbtest.Fate

const (
	passes      = dbtest.Passes
	loseRequest = dbtest.LoseRequest
	loseReply   = dbtest.LoseReply
	loseClient  = dbtest.LoseClient
)

// proxy stands between an engine and the server.
type proxy struct{ *dbtest.Proxy }

// newProxy listens in front of the server of a database. It ends with the test.
func newProxy(t testing.TB, databaseURL string) *proxy {
	t.Helper()
	return &proxy{dbtest.NewProxy(t, databaseURL)}
}

// formed is the end of the names of statements that are another form of a move. Here a move has one name.
var formed = regexp.MustCompile(`(One|All)$`)

// On asks f, or nobody, about every statement.
func (p *proxy) On(f func(statement string) fate) {
	if f == nil {
		p.Proxy.On(nil)
		return
	}
	p.Proxy.On(func(statement string) fate { return f(formed.ReplaceAllString(statement, "")) })
}

// cut loses the statements from the first-th to the last-th and tells their names. What an engine does by the clock
// (looking for orders, undos and refunds that are due, counting held orders, renewing leases, reporting) passes and does not count.
func (p *proxy) cut(first, last int, f fate) (lost func() []string) {
	var mu sync.Mutex
	var names []string
	count := 0
	p.On(func(statement string) fate {
		if strings.HasPrefix(statement, "LeasesDue") || slices.Contains([]string{"LeasesRenew", "ReplicaReport", "LateUndosClaim", "ChargeOperationsClaim", "OrdersExpired", "OrdersHeldStats", "TimersDue", "ForgottenBatchesAfter"}, statement) {
			return passes
		}
		mu.Lock()
		defer mu.Unlock()
		if count++; count < first || count > last {
			return passes
		}
		names = append(names, statement)
		return f
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// stall keeps the statements that match in the wire until release is called, at the latest by the end of the test.
// arrived tells how many came.
func (p *proxy) stall(t testing.TB, match func(statement string) bool) (arrived *atomic.Int32, release func()) {
	t.Helper()
	gate := make(chan struct{})
	arrived = &atomic.Int32{}
	p.On(func(statement string) fate {
		if match(statement) {
			arrived.Add(1)
			<-gate
		}
		return passes
	})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return arrived, release
}

// loseFirst loses the client of the first statement of that name. The others are kept in the wire until atWork is called:
// one of them could come to the server before the first.
func (p *proxy) loseFirst(statement string) (tries *atomic.Int32, atWork func()) {
	gate := make(chan struct{})
	tries = &atomic.Int32{}
	p.On(func(s string) fate {
		if s != statement {
			return passes
		}
		if tries.Add(1) == 1 {
			return loseClient
		}
		<-gate
		return passes
	})
	return tries, sync.OnceFunc(func() { close(gate) })
}

// named matches the statement of that name; everything matches all.
func named(name string) func(string) bool { return func(s string) bool { return s == name } }

func everything(string) bool { return true }

// only leaves one replica in the shop.
func (s *shop) only(e *engine.Engine) { s.engine, s.engines = e, []*engine.Engine{e} }

// loseOne has a fate for the first statement of that name. The others pass.
func (p *proxy) loseOne(name string, f fate) *atomic.Bool {
	var lost atomic.Bool
	p.On(func(statement string) fate {
		if statement == name && !lost.Swap(true) {
			return f
		}
		return passes
	})
	return &lost
}
