package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// troubled is a shop with orders that have ended in every way, and with orders that wait.
func troubled(t *testing.T) *shop {
	t.Helper()
	s := openShop(t, 1, quick)
	for i := range 3 {
		s.process(t, request(fmt.Sprintf("done%d", i)))
	}
	s.setStock(t, "gone", 0)
	for _, in := range withItem("gone", requests("refused", 2)) {
		s.process(t, in)
	}
	if _, err := s.engine.Do(t.Context(), engine.Request{OrderID: "refused 000", Verb: orders.Retry, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	s.until(t, "refused 000", "failed")
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms, maxRetries: 1, budget: 0s}, breaker: {failures: 2, open: 1h}}
approval: [{items: [dear]}]`)
	s.faults(t, simulator.Rule{Fault: simulator.Error, Status: 500, OrderPrefix: "ill"}, simulator.Rule{Fault: simulator.Decline, OrderPrefix: "declined"})
	s.admit(t, withItem("dear", requests("approval", 1))[0])
	s.process(t, request("declined"))
	s.admit(t, request("ill"))
	s.until(t, "ill", "attention")
	return s
}

// What is shown of the service is what is in the database, and what is shown of the replica is what the history says.
func TestOverview(t *testing.T) {
	t.Parallel()
	s := troubled(t)
	v, err := s.engine.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range v.Statuses {
		if n := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE status = $1`, string(count.Status)); count.Orders != n || count.More {
			t.Errorf("%+v, want %d", count, n)
		}
	}
	oldest := value[string](t, s.Pool, `SELECT order_id FROM orders WHERE ended_as IS NULL ORDER BY order_no LIMIT 1`)
	if len(v.Statuses) != len(fsm.States()) || v.Oldest == nil || v.Oldest.OrderID != oldest || text(v.Oldest.Hold) != "approval" || v.Held["attention"].Orders != 1 {
		t.Errorf("%+v, want the oldest to be %s", v, oldest)
	}
	for _, hold := range fsm.Holds() {
		if n := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = $1`, hold); v.Held[hold].Orders != n || n > 0 && v.Held[hold].Longest <= 0 {
			t.Errorf("%s: %+v, want %d", hold, v.Held[hold], n)
		}
	}
	s.engine.NoteActivity(t.Context())
	s.engine.NoteActivity(t.Context()) // in which nothing happened
	points := s.engine.Activity()
	last := points[len(points)-1]
	all := together(points)
	if all.Admitted != 8 || all.Ended[fsm.Failed] != 4 || last.OnHold["attention"] != 1 || last.OnHold["approval"] != 1 || all.Median <= 0 || all.Slow < all.Median {
		t.Fatalf("%+v", points)
	}
	edges := 0
	for _, edge := range fsm.Edges() {
		n := value[int64](t, s.Pool, `SELECT count(*) FROM transitions WHERE from_status = $1 AND to_status = $2`, string(edge.From), string(edge.To))
		if got := all.Moves[[2]fsm.State{edge.From, edge.To}]; got != n {
			t.Errorf("%d moves from %s to %s, want %d", got, edge.From, edge.To, n)
		}
		edges += int(min(n, 1))
	}
	if calls := all.Calls[fsm.Charge]; edges < 7 || calls["refused"] != 1 || calls["done"]+calls["unknown"] == 0 {
		t.Errorf("%d edges were taken; calls: %v", edges, calls)
	}
	if last.Admitted != 0 || last.Ended != nil || last.Moves != nil || len(last.OnHold) != 2 || last.Calls != nil || last.Median != 0 || last.Breakers[fsm.Charge].String() != "open" {
		t.Errorf("%+v", last)
	}
	gone, end := context.WithCancel(t.Context())
	end()
	s.engine.NoteActivity(gone)
	points = s.engine.Activity()
	if last = points[len(points)-1]; last.OnHold != nil {
		t.Errorf("nobody could count, and %v wait", last.OnHold)
	}
	if !s.engine.HeldCountedLately() {
		t.Error("it is tried again before a minute is over")
	}
}

// together is what was done in all the points: on a slow machine ten seconds have passed by themselves before the test asks.
func together(points []engine.Activity) engine.Activity {
	all := engine.Activity{Ended: map[fsm.State]int64{}, Moves: map[[2]fsm.State]int64{}, Calls: map[fsm.Step]map[string]int64{}}
	for _, p := range points {
		all.Admitted += p.Admitted
		all.Median, all.Slow = max(all.Median, p.Median), max(all.Slow, p.Slow)
		sum(all.Ended, p.Ended)
		sum(all.Moves, p.Moves)
		for step, calls := range p.Calls {
			if all.Calls[step] == nil {
				all.Calls[step] = map[string]int64{}
			}
			sum(all.Calls[step], calls)
		}
	}
	return all
}

func sum[K comparable](to, counts map[K]int64) {
	for key, n := range counts {
		to[key] += n
	}
}

func TestErrorGroups(t *testing.T) {
	t.Parallel()
	s := troubled(t)
	found, err := s.engine.ErrorGroups(t.Context())
	if err != nil || found.More {
		t.Fatal(found, err)
	}
	for _, g := range found.Groups {
		o := s.get(t, g.Example)
		began := value[time.Time](t, s.Pool, `SELECT at FROM transitions WHERE order_no = $1 AND seq = $2`, o.OrderNo, o.Seq)
		if g.First.After(g.Last) || !g.Last.Equal(began) && g.Status != fsm.Failed || o.Status != g.Status {
			t.Errorf("%+v; the example is %s", g, brief(o))
		}
	}
	got := fmt.Sprint(len(found.Groups))
	for _, g := range found.Groups {
		got += fmt.Sprintf(", %s %s %s %d", g.Status, g.Step, g.Code, g.Orders)
	}
	if want := "3, failed reserve out_of_stock 2, charging charge retries_exhausted 1, failed charge card_declined 1"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// However many ask, and however long it takes, one look serves them all for a while.
func TestLooksAreShared(t *testing.T) {
	t.Parallel()
	var shared engine.Shared[int64]
	var reads atomic.Int64
	slow, release := make(chan struct{}), make(chan struct{})
	read := func(ctx context.Context) (int64, error) {
		close(slow)
		<-release
		return reads.Add(1), ctx.Err()
	}
	gone, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if n, err := shared.Get(gone, read); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	<-slow
	leave() // the others still wait for it
	close(release)
	callers.Wait()
	if n, err := shared.Get(t.Context(), read); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var failing engine.Shared[int64]
	broken := errors.New("broken")
	for range 2 {
		if _, err := failing.Get(t.Context(), func(context.Context) (int64, error) { reads.Add(1); return 0, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	if reads.Load() != 3 {
		t.Errorf("%d reads: what failed is not kept", reads.Load())
	}
}
