package engine_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// shop is a bundle whose orders are done at a simulator, which calls back over HTTP.
type shop struct {
	*bundle
	sim     *simulator.Simulator
	door    *door             // of the simulator
	urls    *strings.Replacer // of a policy: SIM
	stripe  bool              // the simulator is asked as Stripe
	cfg     engine.Config
	mu      sync.Mutex
	engines []*engine.Engine
	fronts  map[*engine.Engine]http.Handler
	next    atomic.Int64

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
	s := &shop{sim: simulator.New(), refunded: "o", fronts: map[*engine.Engine]http.Handler{}}
	s.door = &door{behind: s.sim}
	behind, front := httptest.NewServer(s.door), httptest.NewServer(http.HandlerFunc(s.front))
	cfg.PublicURL = front.URL
	s.urls, s.cfg = strings.NewReplacer("SIM", behind.URL), cfg
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
		if err := s.sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// front hands what providers send to one replica after the other.
func (s *shop) front(w http.ResponseWriter, r *http.Request) {
	e := s.anyone()
	s.mu.Lock()
	if s.fronts[e] == nil {
		s.fronts[e] = httpapi.New(e, httpapi.Config{})
	}
	handler := s.fronts[e]
	s.mu.Unlock()
	handler.ServeHTTP(w, r)
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
		if err := e.LoadPolicies(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return version
}

func (s *shop) faults(t testing.TB, rules ...simulator.Rule) {
	t.Helper()
	if err := s.sim.SetFaults(rules...); err != nil {
		t.Fatal(err)
	}
}

// audit holds the database and the simulator to what must always be so.
func (s *shop) audit(t testing.TB) {
	t.Helper()
	report, err := books.Verify(context.WithoutCancel(t.Context()), s.Pool, books.Options{})
	if err != nil || !report.OK() {
		t.Errorf("the books: %v\n%+v", err, report)
	}
	if sum := s.sim.Summary(); !sum.OK() {
		t.Errorf("at the provider: %+v", sum)
	}
}

// admit stores an order and does not wait for it.
func (s *shop) admit(t testing.TB, in engine.Input) orders.Order {
	t.Helper()
	order, err := insist(func() (orders.Order, error) { return s.engine.Admit(t.Context(), in) })
	if err != nil {
		t.Fatalf("admit %q: %v", in.OrderID, err)
	}
	return order
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
	if err != nil {
		t.Fatalf("get %q: %v", orderID, err)
	}
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
		return string(order.Status) == is || order.Hold != nil && *order.Hold == is
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
	if got := s.calls(orderID); !slices.Equal(got, want) {
		t.Errorf("%s: called %q, want %q", orderID, got, want)
	}
}

// stands checks what stands at the simulator for an order: step and state of each key.
func (s *shop) stands(t testing.TB, orderID string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range s.sim.Books(orderID) {
		got = append(got, e.Step+" "+string(e.State))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: at the provider stand %q, want %q", orderID, got, want)
	}
}

// brief is what a test says of an order that is not as it should be.
func brief(o orders.Order) string {
	text := func(s *string) string {
		if s == nil {
			return "-"
		}
		return *s
	}
	row := &o
	return fmt.Sprintf("%s: %s, held for %s (%s), due %v, seq %d, failure %s, in doubt since %v",
		row.OrderID, row.Status, text(row.Hold), text(row.HoldReason), row.DueAt, row.Seq, text(row.FailureCode), row.InDoubtSince)
}

func failureCode(o orders.Order) string {
	if o.FailureCode == nil {
		return ""
	}
	return *o.FailureCode
}

// within bounds a caller.
func within(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
