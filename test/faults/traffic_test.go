package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"pawl/internal/load"
)

// traffic is a closed loop of callers that send new orders. Most of them send an order until they know how it ended;
// every third order is sent once, whatever comes back: only the service will finish it.
type traffic struct {
	t       testing.TB
	url     func(*rand.Rand) string
	prefer  string
	cuts    bool // connections may break: processes are being killed
	once    bool // no order is sent twice
	order   func(n int, random *rand.Rand) order
	callers int
	idle    time.Duration // that a caller waits before the next order
	seed    uint64

	client  *client
	running *load.Running

	mu     sync.Mutex
	orders []*sent
	counts counts
}

// sent is an order as its caller knows it.
type sent struct {
	order
	stored  bool // some answer showed it
	final   string
	cut     bool // some try ended without an answer
	torn    bool // some answer began and did not end
	refused bool // some try was answered 503
}

// counts are what the callers saw, all orders together.
type counts struct {
	answered   int // with a final order
	cut        int // tries without an answer
	refused    int // tries answered 503
	unfinished int // tries answered 202
	suppressed int // tries again of an order that an earlier try had stored
}

func (c counts) String() string {
	return fmt.Sprintf("%d answered, %d cut, %d refused, %d unfinished, %d duplicates suppressed",
		c.answered, c.cut, c.refused, c.unfinished, c.suppressed)
}

// pace is how long a caller waits who did not learn how an order ended: so long at first, and up to pauseLimit where it
// does not learn it for long.
const (
	pace       = 10 * time.Millisecond
	pauseLimit = 200 * time.Millisecond
)

// patience is how long a caller tries to learn how an order ended.
const patience = 60 * time.Second

// start sets the callers going until finish. Orders get ids that begin with the name of the traffic.
func (f *traffic) start(t testing.TB) {
	t.Helper()
	f.t = t
	f.client = newClient(f.callers, true)
	f.running = load.Load{Callers: f.callers, Caller: func(caller int) (send func(int) error, end func()) {
		random := rand.New(rand.NewPCG(f.seed, uint64(caller)))
		return func(n int) error {
			f.deliver(&sent{order: f.order(n+1, random)}, f.once || n%3 == 2, random)
			if f.idle > 0 {
				<-time.After(f.idle)
			}
			return nil
		}, func() {}
	}}.Start()
	t.Cleanup(f.finish)
}

// finish lets the callers finish what they are at. Calling it again is harmless.
func (f *traffic) finish() {
	f.running.Halt()
	f.running.Wait()
	f.client.close()
}

// deliver sends an order, once or until it is known how it ended.
func (f *traffic) deliver(s *sent, once bool, random *rand.Rand) {
	f.mu.Lock()
	f.orders = append(f.orders, s)
	f.mu.Unlock()
	end := time.Now().Add(patience)
	for pause := pace; ; pause = min(2*pause, pauseLimit) {
		began := time.Now()
		a := f.client.process(context.WithoutCancel(f.t.Context()), f.url(random), s.order, f.prefer)
		f.note(s, a, began)
		if s.final != "" {
			return
		}
		<-time.After(pause)
		if once {
			return
		}
		if time.Now().After(end) {
			f.t.Errorf("order %s: no final answer within %s", s.id, patience)
			return
		}
	}
}

// note writes an answer down and judges it.
func (f *traffic) note(s *sent, a *answer, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case a.err != nil:
		f.counts.cut++
		if !f.cuts {
			f.t.Errorf("order %s: %v", s.id, a.err)
		}
	case a.wrong(s.order) != "":
		f.t.Errorf("order %s: %s: %s", s.id, a.wrong(s.order), a)
	case a.code == http.StatusServiceUnavailable:
		f.counts.refused++
	case s.final != "" && s.final != a.state():
		f.t.Errorf("order %s: was %s, is now %s", s.id, s.final, a.state())
	default:
		f.noteOrder(s, a, began)
	}
	s.cut = s.cut || a.err != nil
	s.torn = s.torn || a.err != nil && a.began.Load()
	s.refused = s.refused || a.code == http.StatusServiceUnavailable
}

func (f *traffic) noteOrder(s *sent, a *answer, began time.Time) {
	if (s.cut || s.refused) && !s.stored && a.body.CreatedAt.Before(began) {
		f.counts.suppressed++
	}
	s.stored = true
	if !a.final() {
		f.counts.unfinished++
		return
	}
	s.final = a.state()
	f.counts.answered++
}

func (f *traffic) seen() counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// flows waits until another n orders were answered with how they ended.
func (f *traffic) flows(n int) {
	f.t.Helper()
	want := f.seen().answered + n
	eventually(f.t, patience, "orders are answered", func() bool { return f.seen().answered >= want })
}

// smallOrders spreads over many items, and one that soon runs out.
func smallOrders(name string) func(int, *rand.Rand) order {
	return func(n int, random *rand.Rand) order {
		item := fmt.Sprintf("item-%d", random.IntN(50))
		if random.IntN(8) == 0 {
			item = scarce
		}
		return order{id: fmt.Sprintf("%s-%d", name, n), amount: fmt.Sprintf("%d.%02d", random.IntN(500), 1+random.IntN(99)), item: item}
	}
}

// scarce is an item with a stock.
const scarce = "scarce"
