package faults

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/test/dbtest"
)

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

// byTheClock are statements that belong to no order: they come when it is time, when somebody asks how the program is, or
// when a machine stands still for so long that a statement may be lost.
var byTheClock = []string{"SchemaState", "TimersDue", "OrdersExpired", "ConcurrencyKeysQueued", "LateUndosClaim", "RefundsClaim", "PolicyActive", "PoliciesUnknown",
	"TokensExist", "TokenUsed", "AccessLogAdd", "IdempotencyKeysPurge", "StatementsRunning", "OrdersHeldStats", "-- ping"}

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
