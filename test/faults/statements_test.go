package faults

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/test/dbtest"
)

// routes are the ways an order can take through the machine.
var routes = []struct {
	name  string
	order order
	ends  string
	moves []string
	last  int // the number of the statement that ends the order
}{
	{"completed", order{id: "o-1", amount: "99.99", item: "widget"}, "completed",
		[]string{"OrdersAdmitOne", "OrdersChargeOne", "OrdersReserveOne", "OrdersConfirmOne"}, 4},
	{"out of stock", order{id: "o-1", amount: "99.99", item: scarce}, "failed",
		[]string{"OrdersAdmitOne", "OrdersChargeOne", "OrdersReserveOne", "OrdersReserve", "OrdersRefund", "OrdersByNo"}, 5},
}

// TestKilledAtEveryStatement ends the program before each statement of an order, and after each, when the server has
// committed it and the program does not know. In the database, before a statement is after the one before it: both are
// tried only where faults are repeated, as are the moments that two routes have in common.
func TestKilledAtEveryStatement(t *testing.T) {
	build(t)
	t.Parallel()
	tried := map[string]bool{} // moments, by what was executed
	for _, route := range routes {
		for n, statement := range route.moves {
			for _, after := range []bool{false, true} {
				moment := fmt.Sprint(route.moves[:n+1], after)
				if (!after && n > 0 || tried[moment]) && !repeated() {
					continue
				}
				tried[moment] = true
				when := map[bool]string{false: "before", true: "after"}[after]
				t.Run(fmt.Sprintf("%s, %s %s", route.name, when, statement), func(t *testing.T) {
					t.Parallel()
					s := stage{fatal: n + 1, after: after, order: route.order, ends: route.ends, last: route.last}
					s.play(t)
					if !slices.Equal(s.executed, route.moves[:n+1]) {
						t.Errorf("executed %v, want %v", s.executed, route.moves[:n+1])
					}
				})
			}
		}
		t.Run(route.name+", these are all statements", func(t *testing.T) {
			t.Parallel()
			s := stage{order: route.order, ends: route.ends}
			s.play(t)
			if !slices.Equal(s.executed, route.moves) {
				t.Errorf("executed %v, want %v", s.executed, route.moves)
			}
		})
	}
}

// stage is one order and the statement at which its driver ends.
type stage struct {
	fatal    int // 0: never
	after    bool
	order    order
	ends     string
	last     int
	executed []string
}

func (s *stage) play(t *testing.T) {
	t.Helper()
	database := dbtest.New(t)
	p := newProxy(t, database.URL)
	doomed := startReplicas(t, 1, p.URL, hasty...)
	stockUp(t, doomed.addresses()[0], scarce, 0)
	c := newClient(1, false)
	p.watch(s.fatal, s.after, doomed.all[0].kill)
	a := c.process(t.Context(), doomed.addresses()[0], s.order, "")
	s.executed = p.statements()
	if s.fatal == 0 {
		if a.state() != s.ends {
			t.Errorf("answered %s", a)
		}
		return
	}
	if a.err == nil {
		t.Fatalf("the program was to end; it answered %s", a)
	}
	doomed.all[0].exitCode()
	verify(t, database.URL) // at any moment, not only in the end

	stored := s.fatal > 1 || s.after
	heir := startReplicas(t, 1, database.URL, hasty...)
	if stored {
		settle(t, database.URL, patience)
	}
	if a := c.insist(t.Context(), heir.addresses()[0], s.order); a.state() != s.ends || a.wrong(s.order) != "" {
		t.Errorf("the caller comes again and gets %s", a)
	}
	prove(t, database.URL)
	s.check(t, database.URL, stored)
}

// check looks at the history: each move is there once.
func (s *stage) check(t *testing.T, url string, stored bool) {
	t.Helper()
	path := strings.Join(query[string](t, url, `SELECT t.to_status FROM books.transitions AS t
		WHERE t.from_status IS DISTINCT FROM t.to_status ORDER BY t.seq`), " ")
	want := map[string]string{
		"completed": "charging reserving confirming completed",
		"failed":    "charging reserving refunding failed",
	}[s.ends]
	if path != want {
		t.Errorf("the order went %s, want %s", path, want)
	}
	last := s.after && s.fatal == s.last || s.fatal > s.last
	if taken := takeOvers(t, url); (taken == 1) != (stored && !last) {
		t.Errorf("%d take-overs", taken)
	}
}

// proxy stands between the program and PostgreSQL. It names every statement that is executed, and can end the program
// before the server has seen a statement, or after the server has committed it and before its reply has arrived.
type proxy struct {
	*dbtest.Proxy

	mu       sync.Mutex
	executed []string // since watch
	fatal    int      // the number of the statement that ends the program, from 1 on; 0: none does
	after    bool     // with its reply
}

// newProxy listens in front of the server of a database. It ends with the test.
func newProxy(t testing.TB, databaseURL string) *proxy {
	t.Helper()
	return &proxy{Proxy: dbtest.NewProxy(t, databaseURL)}
}

// watch lists the statements from now on. With a number, the statement of that number ends the program.
func (p *proxy) watch(fatal int, after bool, kill func()) {
	p.fatal, p.after = fatal, after
	p.OnLost(kill)
	p.On(p.fate)
}

// byTheClock are statements that belong to no order: they come when it is time, with a health check, or
// when a machine stands still for so long that a statement may be lost.
var byTheClock = []string{"SchemaState", "TimersDue", "OrdersExpired", "ConcurrencyKeysQueued", "LateUndosClaim", "RefundsClaim", "PolicyActive", "PoliciesUnknown",
	"TokensExist", "TokenUsed", "AccessLogAdd", "IdempotencyKeysPurge", "StatementsRunning", "OrdersHeldStats", "InstallationPlace", "LeasesShorten", "SideCallsShorten", "ReservationsShorten", "-- ping"}

// statements lists what was executed since watch. What the program does by the clock does not count.
func (p *proxy) statements() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.executed
}

// fate counts a statement: does the program end before it, or with its reply?
func (p *proxy) fate(statement string) dbtest.Fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	outbound := strings.HasPrefix(statement, "Event") || strings.HasPrefix(statement, "Webhook") // what is told to others moves no order
	if outbound || strings.HasPrefix(statement, "Leases") || slices.Contains(byTheClock, statement) {
		return dbtest.Passes
	}
	p.executed = append(p.executed, statement)
	switch {
	case len(p.executed) != p.fatal:
		return dbtest.Passes
	case p.after:
		return dbtest.LoseReply
	}
	return dbtest.LoseRequest
}
