package engine_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// counted starts a replica whose statements are counted.
func (b *bundle) counted(t *testing.T, cfg engine.Config) (*engine.Engine, *dbtest.Statements) {
	t.Helper()
	c := &dbtest.Statements{}
	return startOn(t, dbtest.Open(t, b.URL, pg.Options{MaxConns: 8, Observe: c.Observe}), cfg), c
}

// TestOneOrderManyCallers asks three replicas for one order 50 times at once.
func TestOneOrderManyCallers(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	atReserve, release := p.stall(t, named("OrdersReserve"))
	first := ask(t, b.engine, request("one"))
	eventually(t, "the first replica has stored the order", func() bool { return atReserve.Load() == 1 })
	began := time.Now()
	others := make([]*dbtest.Statements, 2)
	replicas := []*engine.Engine{b.engine, nil, nil}
	for i := range others {
		replicas[i+1], others[i] = b.counted(t, byCallers)
	}
	type told struct {
		answer
		at time.Time
	}
	answers := make(chan told, 49)
	var wg sync.WaitGroup
	for i := range 49 {
		wg.Go(func() {
			order, err := deref(replicas[i%3].Process(t.Context(), request("one")))
			answers <- told{answer{"one", order, err}, time.Now()}
		})
	}
	for _, c := range others {
		eventually(t, "the other replicas have looked several times", func() bool {
			return c.Named("OrdersWatched") >= 5
		})
	}
	release()
	wg.Wait()
	b.completes(t, first, 1)
	finished := value[time.Time](t, b.Pool, `SELECT o.finished_at FROM books.orders AS o`)
	var after []time.Duration
	for range 49 {
		a := <-answers
		if a.err != nil || a.order.Status != "completed" || a.order.ChargedAt == nil || a.order.ReservedAt == nil {
			t.Errorf("told %s, charged %v, reserved %v: %v", a.order.Status, a.order.ChargedAt, a.order.ReservedAt, a.err)
		}
		after = append(after, a.at.Sub(finished))
	}
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM books.charges`), 1, "charges")
	proveBooks(t, b.Pool)
	slices.Sort(after)
	extra, asked := others[0].Sent()+others[1].Sent(), time.Since(began)
	t.Logf("%d statements of the other replicas; answers %v after the last move at the median, %v at the most", extra, after[24], after[48])
	// A replica asks in pauses that grow to a quarter of a second, for all its callers at once.
	if most := 40 + 2*int64(asked/(200*time.Millisecond)); int64(extra) > most {
		t.Errorf("%d statements within %v", extra, asked)
	}
}

// TestOneOrderTwice sends two versions of an order to three replicas at once, 10 times each.
func TestOneOrderTwice(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	replicas := []*engine.Engine{b.engine, b.replica(t, byCallers), b.replica(t, byCallers)}
	other := request("one")
	other.Amount, other.Item = decimal.MustParse("99.98"), "gadget"
	var sent [2]atomic.Int64
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			in := []engine.Input{request("one"), other}[i%2]
			order, err := replicas[i/2%3].Process(t.Context(), in)
			var conflict *orders.Conflict
			switch {
			case err == nil && order.Status == "completed" && order.Item == in.Item:
				sent[i%2].Add(1)
			case errors.As(err, &conflict):
				var differ []string
				for _, d := range conflict.Differences {
					differ = append(differ, d.Pointer, d.Stored, d.Sent)
				}
				want := []string{"/amount", "99.99", "99.98", "/item", "widget", "gadget"}
				if i%2 == 0 {
					want = []string{"/amount", "99.98", "99.99", "/item", "gadget", "widget"}
				}
				if !slices.Equal(differ, want) || conflict.Order.OrderID != "one" {
					t.Errorf("conflict with %q in %s", differ, conflict.Order.OrderID)
				}
			default:
				t.Errorf("%s: %v", order.Status, err)
			}
		})
	}
	wg.Wait()
	if a, c := sent[0].Load(), sent[1].Load(); a+c != 30 || a != 0 && c != 0 {
		t.Errorf("%d callers of one version and %d of the other were told it is completed", a, c)
	}
	assert.Equal(t, value[int](t, b.Pool, `SELECT count(*) FROM books.charges`), 1, "charges")
	proveBooks(t, b.Pool)
}

// TestWatchUnderLoad has a caller wait for another replica's order while newcomers wait for others all the time.
func TestWatchUnderLoad(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, "one")
	answers := ask(t, b.engine, request("one"))
	eventually(t, "the caller waits", func() bool { return b.engine.InFlight() == 1 })
	g.advance(t, "completed", "one")
	start := time.Now()
	for time.Since(start) < patience { // for ever, if every newcomer began the pause anew
		select {
		case a := <-answers:
			t.Logf("told after %v", time.Since(start))
			if a.err != nil || a.order.Status != "completed" {
				t.Errorf("told %s: %v", a.order.Status, a.err)
			}
			return
		default:
			b.engine.WakeWatcher()
		}
	}
	t.Error("told nothing while newcomers came")
}
