package engine_test

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/test/dbtest"
)

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
// (looking for orders, undos and refunds that are due, counting held orders, renewing leases) passes and does not count.
func (p *proxy) cut(first, last int, f fate) (lost func() []string) {
	var mu sync.Mutex
	var names []string
	count := 0
	p.On(func(statement string) fate {
		if strings.HasPrefix(statement, "LeasesDue") || slices.Contains([]string{"LeasesRenew", "LateUndosClaim", "RefundsClaim", "OrdersExpired", "OrdersHeldStats", "TimersDue"}, statement) {
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
