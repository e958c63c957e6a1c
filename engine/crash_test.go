package engine_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// crash is a server that forgets orders: one engine admits them behind a proxy, which keeps their next statements. Then
// a process of the server is killed, and what was not flushed is gone.
type crash struct {
	*bundle // its engine has connections of its own
	proxy   *proxy
	behind  *engine.Engine
	reads   atomic.Int32 // by order id, through the proxy
}

// setupCrash makes a server that flushes its log for nothing but commits that wait for it.
func setupCrash(t *testing.T) *crash {
	t.Helper()
	server := dbtest.Restartable(t)
	server.Set(t, "wal_writer_delay", "10s")
	server.Set(t, "wal_writer_flush_after", "1GB")
	pool, err := pgxpool.New(t.Context(), server.URL)
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	c := &crash{bundle: &bundle{Database: &dbtest.Database{URL: server.URL, Pool: pool}}, proxy: newProxy(t, server.URL)}
	quiet := engine.Config{Lease: time.Minute, RecoveryInterval: time.Hour}
	c.engine, c.behind = startEngine(t, server.URL, quiet), startPatient(t, c.proxy, quiet)
	return c
}

// kill ends a process of the server with SIGKILL, and returns when the server has ended the others, and recovered.
func (c *crash) kill(t *testing.T) {
	t.Helper()
	var conns [2]*pgx.Conn
	for i := range conns {
		conn, err := pgx.Connect(t.Context(), c.URL)
		assert.NoError(t, err)
		defer conn.Close(t.Context())
		conns[i] = conn
	}
	assert.NoError(t, syscall.Kill(int(conns[0].PgConn().PID()), syscall.SIGKILL))
	assert.Eventually(t, "the server has noticed", func() bool { return conns[1].Ping(t.Context()) != nil })
	c.Pool.Reset()
	assert.Eventually(t, "the server has recovered", func() bool { return c.Pool.Ping(t.Context()) == nil })
}

// lose asks for an order until one is lost, and returns the number that it had, the answer that is still to come, and what
// lets the engine find out. Until then only its callers can read.
func (c *crash) lose(t *testing.T, in func(orderID string) engine.Input) (orderID string, number int64, answers <-chan answer, goOn func()) {
	t.Helper()
	for try := 1; ; try++ {
		orderID = fmt.Sprint("lost ", try)
		c.reads.Store(0)
		arrived, release := c.proxy.stall(t, func(statement string) bool {
			if statement == "OrdersByID" {
				c.reads.Add(1)
			}
			return statement == "OrdersCharge" || statement == "OrdersByNo"
		})
		answers = ask(t, c.behind, in(orderID))
		assert.Eventually(t, "it is admitted", func() bool { return arrived.Load() > 0 })
		number = value[int64](t, c.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
		c.kill(t)
		if value[int](t, c.Pool, `SELECT count(*) FROM orders WHERE order_id = $1`, orderID) == 0 {
			return orderID, number, answers, release
		}
		release() // its log was flushed all the same
		isNow(t, (<-answers).order, fsm.Completed)
	}
}

// TestOrderLostInACrash takes an order from the engine that drives it, which has told nobody of it. What the engine remembers
// of it is worth nothing: others may have been asked for an order with that id meanwhile.
func TestOrderLostInACrash(t *testing.T) {
	t.Parallel()
	plain := request
	with := func(key string) func(string) engine.Input {
		return func(orderID string) engine.Input { return keyed(request(orderID), key) }
	}
	other := func(orderID string) engine.Input {
		in := request(orderID)
		in.Amount = decimal.MustParse("5")
		return in
	}
	for name, c := range map[string]struct {
		lost, meanwhile func(orderID string) engine.Input
		conflict        bool
	}{
		"it is admitted anew":                        {plain, nil, false},
		"with its key":                               {with("k"), nil, false},
		"another replica was asked for another":      {plain, other, true},
		"with a key, and another for the same":       {with("k"), plain, false},
		"without, and another for the same with one": {plain, with("k"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setupCrash(t)
			orderID, number, answers, goOn := s.lose(t, c.lost)
			if c.meanwhile != nil {
				assert.Eventually(t, "another replica completes it", func() bool {
					order, err := deref(s.engine.Process(t.Context(), c.meanwhile(orderID)))
					return err == nil && order.Status == fsm.Completed
				})
			}
			goOn()
			a := <-answers
			told := a.order
			if conflict, ok := errors.AsType[*orders.Conflict](a.err); ok && c.conflict {
				told = conflict.Order
			} else {
				assert.NoError(t, a.err)
				assert.Equal(t, c.conflict, false)
			}
			stored := value[int64](t, s.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
			assert.Equal(t, told.OrderNo, stored)
			assert.True(t, stored >= number+1_000_000_000, "order_no", stored, "comes after", number, "which was lost")
			assert.Equal(t, told.Status, fsm.Completed)
			proveBooks(t, s.Pool)
		})
	}
}

// TestCallersOfALostOrder join the run of an order while it is lost, each with a request of its own.
func TestCallersOfALostOrder(t *testing.T) {
	t.Parallel()
	s := setupCrash(t)
	orderID, _, first, goOn := s.lose(t, request)
	in := request(orderID)
	in.Item = "sofa"
	different := ask(t, s.behind, in)
	withKey := ask(t, s.behind, keyed(request(orderID), "k"))
	assert.Eventually(t, "one is about to report a conflict, and one could not keep its key", func() bool { return s.reads.Load() >= 2 })
	assert.Equal(t, value[int](t, s.Pool, `SELECT count(*) FROM idempotency_keys`), 0, "keys of an order that is not there")
	goOn()
	told := map[string]int{}
	for _, answers := range []<-chan answer{first, different, withKey} {
		a := <-answers
		if _, ok := errors.AsType[*orders.Conflict](a.err); ok {
			told["conflict"]++
			continue
		}
		assert.NoError(t, a.err)
		told[string(a.order.Status)]++
	}
	// Which of them is first now decides what the order is about.
	assert.True(t, told["conflict"] != 0 && told["completed"] != 0 && told["conflict"]+told["completed"] == 3, told)
	proveBooks(t, s.Pool)
}

// journey is a way that an order takes, and what takes it along.
type journey struct {
	name string
	path []string
	part bool // all its statements are those of another journey
	take func(t *testing.T, b *bundle, orderID string) orders.Order
}

// endedBefore is the journey of an order that another replica has ended.
const endedBefore = "known and asked for again"

// journeys are those of orders that go on because of a caller.
var journeys = []journey{
	{"completed", []string{"charging", "reserving", "confirming", "completed"}, false, processed},
	{endedBefore, []string{"charging", "reserving", "confirming", "completed"}, false, processedTwice},
	{"out of stock", []string{"charging", "reserving", "refunding", "failed"}, false, refused},
	{"canceled before the charge", []string{"charging", "canceled"}, true, canceledFrom(fsm.Charging)},
	{"canceled before the reservation", []string{"charging", "reserving", "refunding", "canceled"}, true, canceledFrom(fsm.Reserving)},
	{"canceled before the confirmation", []string{"charging", "reserving", "confirming", "releasing", "refunding", "canceled"},
		false, canceledFrom(fsm.Confirming)},
}

var takeOvers = []journey{{"taken over", []string{"charging", "reserving", "confirming", "completed"}, false, takenOver}}

// byCallers keeps the engine from looking for orders by itself: an order goes on because somebody waits for it, or not
// at all.
var byCallers = engine.Config{RecoveryInterval: time.Hour}

func processed(t *testing.T, b *bundle, orderID string) orders.Order {
	t.Helper()
	return b.process(t, request(orderID))
}

func processedTwice(t *testing.T, b *bundle, orderID string) orders.Order {
	t.Helper()
	g := newGhost(b.Pool)
	g.admit(t, time.Minute, orderID)
	g.advance(t, fsm.Completed, orderID)
	return b.process(t, request(orderID))
}

func refused(t *testing.T, b *bundle, orderID string) orders.Order {
	t.Helper()
	b.exec(t, `INSERT INTO inventory (item, on_hand, tracked) VALUES ('gone', 0, true) ON CONFLICT DO NOTHING`)
	in := request(orderID)
	in.Item = "gone"
	return b.process(t, in)
}

// canceledFrom cancels an order that waits in a state. A read that is cut may be asked for again, as a caller would.
func canceledFrom(state fsm.State) func(*testing.T, *bundle, string) orders.Order {
	return func(t *testing.T, b *bundle, orderID string) orders.Order {
		t.Helper()
		g := newGhost(b.Pool)
		g.admit(t, time.Minute, orderID)
		g.advance(t, state, orderID)
		g.letGo(t, orderID)
		for {
			order, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: orderID, Actor: "tester", RequestID: "1"})
			if err == nil {
				return order
			}
			assert.ErrorIs(t, err, orders.ErrUnavailable, "cancel")
		}
	}
}

func takenOver(t *testing.T, b *bundle, orderID string) orders.Order {
	t.Helper()
	g := newGhost(b.Pool)
	g.admit(t, 0, orderID)
	reaches(t, b.Pool, orderID, "completed")
	return g.stored(t, orderID)[0]
}

// thorough tells to lose more than each statement of each journey in each way once.
var thorough = os.Getenv("PAWL_FAULT_ROUNDS") != ""

// times is how often a test does something: the second number with PAWL_FAULT_ROUNDS.
func times(usual, thoroughly int) int {
	if thorough {
		return thoroughly
	}
	return usual
}

// TestLostConnections loses every statement of every journey in turn, each in five ways, until a journey passes without
// a loss. A router that answers instead, with a code that says nothing about the statement, is no more than a loss: no
// order waits for a person. Where its reply is lost, the two statements after it are lost as well; with
// PAWL_FAULT_ROUNDS also where it is lost in another way that takes no time, and in journeys that are part of another.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushRequest, dbtest.HushReply, dbtest.RouteRequest, dbtest.RouteReply} {
		t.Run(fmt.Sprintf("%s, with a caller", f), func(t *testing.T) {
			t.Parallel()
			loseAll(t, byCallers, f, journeys)
		})
		t.Run(fmt.Sprintf("%s, without", f), func(t *testing.T) {
			t.Parallel()
			loseAll(t, engine.Config{RecoveryInterval: often, Lease: time.Second}, f, takeOvers)
		})
	}
}

// loseAll takes one journey after the other: each loses statements by their number, so nothing else may go on.
func loseAll(t *testing.T, cfg engine.Config, f fate, journeys []journey) {
	t.Helper()
	l := &losses{registry: prometheus.NewRegistry(), fate: f}
	cfg.Registerer = l.registry
	l.bundle, l.proxy = setupWatchful(t, cfg)
	for _, j := range journeys {
		if !j.part || thorough && f < dbtest.HushRequest {
			t.Run(j.name, func(t *testing.T) { l.loses(t, j) })
		}
	}
	proveBooks(t, l.Pool)
}

// losses is a bundle whose statements are lost.
type losses struct {
	*bundle
	proxy    *proxy
	registry *prometheus.Registry
	fate     fate
}

func (l *losses) loses(t *testing.T, j journey) {
	t.Helper()
	last := j.path[len(j.path)-1]
	counted := max(metric(t, l.registry, "pawl_orders_finished_total", last), 0)
	var lost []string
	for _, more := range []int{0, 2} {
		if more > 0 && (l.fate >= dbtest.HushRequest || l.fate != loseReply && !thorough) {
			continue
		}
		for n := 1; ; n++ {
			orderID := fmt.Sprintf("%s, %d to %d", j.name, n, n+more)
			cut := l.proxy.cut(n, n+more, l.fate)
			order := j.take(t, l.bundle, orderID)
			l.proxy.On(nil)
			j.arrived(t, l.bundle, orderID, order)
			if lost = append(lost, cut()...); len(cut()) == 0 {
				break
			}
		}
	}
	l.counted(t, j, counted)
	slices.Sort(lost)
	t.Logf("%d statements lost: %q", len(lost), slices.Compact(lost))
}

// arrived fails the test unless the order went its way and no other, and the caller knows.
func (j journey) arrived(t *testing.T, b *bundle, orderID string, told orders.Order) {
	t.Helper()
	assert.True(t, told.OrderID == orderID && string(told.Status) == j.path[len(j.path)-1],
		orderID, "the caller is told that", told.OrderID, "is", told.Status)
	assert.Equal(t, states(t, b.Pool, orderID), j.path, orderID, "went")
	canceled := 0
	for _, verb := range verbs(t, b.Pool, orderID) {
		if verb == "cancel" {
			canceled++
		}
	}
	assert.True(t, canceled <= 1, orderID, "canceled", canceled, "times")
}

// counted fails the test unless each order of a journey that the engine has ended was counted once.
func (l *losses) counted(t *testing.T, j journey, before float64) {
	t.Helper()
	last := j.path[len(j.path)-1]
	ended := value[int64](t, l.Pool, `SELECT count(*) FROM orders WHERE ended_as = $1 AND starts_with(order_id, $2)`, last, j.name+", ")
	if j.name == endedBefore {
		ended = 0
	}
	finished := func() float64 { return max(metric(t, l.registry, "pawl_orders_finished_total", last), 0) - before }
	eventually(t, "all are counted", func() bool { return finished() >= float64(ended) }) // the row ends before the engine hears of it
	assert.Equal(t, finished(), float64(ended), "orders are counted as", last, ended)
}

// TestStatementExecutedAfterItsConnectionIsLost has statements that are still at work, for as long as it takes, when their client has lost its
// connection and looks for their outcome.
func TestStatementExecutedAfterItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ statement, toStatus string }{
		{"OrdersCharge", "reserving"}, {"OrdersReserve", "confirming"}, {"OrdersConfirm", "completed"},
	} {
		t.Run(c.statement, func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			unlock := b.delay(t, c.toStatus)
			tries, atWork := p.loseFirst(c.statement)
			answers := ask(t, b.engine, requests("order", 1)...)
			eventually(t, "the statement whose client is lost is at work", func() bool { return b.atWork(t, c.statement) == 1 })
			atWork()
			// In vain: its row is locked, or when the one at work has given up meanwhile, it waits as long.
			eventually(t, "the move is tried again, in vain", func() bool { return tries.Load() >= 4 })
			unlock()
			b.completes(t, answers, 1)
			proveBooks(t, b.Pool)
		})
	}
	t.Run("LeasesClaim", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, engine.Config{RecoveryInterval: often, Lease: 3 * time.Second})
		newGhost(b.Pool).admit(t, time.Minute, "one")
		unlock := b.delay(t, "charging")
		claims, atWork := p.loseFirst("LeasesClaim")
		b.exec(t, `UPDATE orders SET due_at = now()`)
		eventually(t, "the claim whose client is lost is at work", func() bool { return b.atWork(t, "LeasesClaim") == 1 })
		atWork()
		eventually(t, "the claim is lost, and tried again in vain", func() bool { return claims.Load() >= 3 })
		unlock()
		reaches(t, b.Pool, "one", "completed")
		// The row named a driver that did not know of it, until that lease had ended.
		assert.Equal(t, verbs(t, b.Pool, "one"), []string{"take_over", "take_over"}, "to the order was done")
		proveBooks(t, b.Pool)
	})
}

// setupBehind is a bundle whose engine reaches the database through a proxy. What the proxy keeps is not given up: see
// setupWatchful.
func setupBehind(t testing.TB, cfg engine.Config) (*bundle, *proxy) {
	t.Helper()
	b := &bundle{Database: dbtest.New(t)}
	p := newProxy(t, b.URL)
	b.engine = startPatient(t, p, cfg)
	return b, p
}

// startPatient starts an engine that gives up no statement while the proxy keeps it.
func startPatient(t testing.TB, p *proxy, cfg engine.Config) *engine.Engine {
	t.Helper()
	return startOn(t, dbtest.Open(t, p.URL, pg.Options{MaxConns: 8, Patience: time.Hour}), cfg)
}

// setupWatchful is setupBehind with the service's own patience: what the proxy keeps is asked about, and given up.
func setupWatchful(t testing.TB, cfg engine.Config) (*bundle, *proxy) {
	t.Helper()
	b := &bundle{Database: dbtest.New(t)}
	p := newProxy(t, b.URL)
	b.engine = startWatchful(t, p, cfg)
	return b, p
}

func startWatchful(t testing.TB, p *proxy, cfg engine.Config) *engine.Engine {
	t.Helper()
	return startOn(t, dbtest.Open(t, p.URL, pg.Options{MaxConns: 8}), cfg)
}

// The reply of our own statement is lost: nobody has taken the order over, and no answer was fenced.
func TestLostReplyIsNoFencedAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"CallsSuspend", "RemoteCharged", "RemoteReserved", "RemoteConfirmed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openBehind(t)
			s.faults(t, "not-done1@charge")
			lost := s.proxy.loseOne(name, loseReply)
			s.admit(t, request("one"))
			reaches(t, s.Pool, "one", "completed")
			eventually(t, "it was lost", lost.Load)
			assert.Equal(t, s.engine.Stats.FencedAnswers.Load(), 0, "answers were fenced")
		})
	}
}

// The reply of the statement that keeps a callback is lost: the provider tells again, and nobody
// drives the order until a lease ends that names a process which does not know of it.
func TestCallbackRepeatedAfterALostReply(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, "callback-late:100ms@charge")
	lost := s.proxy.loseOne("AnswerStore", loseReply)
	s.admit(t, request("one"))
	reaches(t, s.Pool, "one", "completed")
	assert.True(t, lost.Load(), "no reply was lost")
}

// The reply of the move that begins the call of the confirmation is lost: no call was made
// under it, and this process knows. The first call is refused: a person is asked all the same.
func TestRefusalAfterALostBeginAsksNobody(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, "decline@confirm")
	lost := s.proxy.loseOne("RemoteReserved", loseReply)
	s.admit(t, request("one"))
	start := time.Now()
	eventually(t, "it is at rest", s.answers(t, true,
		`SELECT ended_as IS NOT NULL OR coalesce(hold = 'attention', false) FROM orders`))
	if got := status(t, s.Pool, "one"); got != "failed" {
		t.Errorf("after %s %s, held: %s", time.Since(start), got, value[string](t, s.Pool, `SELECT coalesce(hold_reason, '') FROM orders`))
	}
	for _, row := range column[string](t, s.Pool, `SELECT format('%s %s %s %s', call, step, operation, outcome) FROM step_calls ORDER BY call`) {
		t.Log(row)
	}
	assert.True(t, lost.Load(), "nothing was lost")
}

// A callback that comes between the commit that lets the order wait and the end of its run
// is given an order whose run is about to be forgotten: nobody drives it until its lease ends.
func TestCallbackWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, "callback-never@charge")
	held, release := s.holdRead(t, "CallsSuspend")
	s.admit(t, request("one"))
	eventually(t, "the order waits", func() bool {
		return held.Load() && value[bool](t, s.Pool, `SELECT coalesce(hold = 'callback', false) FROM orders`)
	})
	r, err := s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "done"})
	assert.Require(t, err == nil && r.Accepted, r, err)
	eventually(t, "the order is woken", s.answers(t, true, `SELECT hold IS NULL FROM orders`))
	release()
	reaches(t, s.Pool, "one", "completed")
}

// holdRead keeps the first read of an order that follows a statement: that of a run which is about to be told to its callers.
func (s *behind) holdRead(t *testing.T, after string) (held *atomic.Bool, release func()) {
	t.Helper()
	var came atomic.Bool
	held = &atomic.Bool{}
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	s.proxy.On(func(statement string) fate {
		switch {
		case statement == after:
			came.Store(true)
		case statement == "OrdersByNo" && came.Load() && !held.Swap(true):
			<-gate
		}
		return passes
	})
	return held, release
}

type behind struct {
	*shop
	proxy *proxy
}

// openBehind is a shop whose engine reaches the database through a proxy. Its leases last longer than a test: what nobody
// drives stays where it is.
func openBehind(t *testing.T) *behind {
	t.Helper()
	s := openShop(t, 0+1, quick)
	p := newProxy(t, s.URL)
	e := startEngine(t, p.URL, engine.Config{RecoveryInterval: often, Lease: time.Hour, PublicURL: s.cfg.PublicURL})
	stop(t, s.engine)
	s.only(e)
	s.use(t, allAtTheSimulator)
	return &behind{s, p}
}

// The same for a permit: granted between the commit of the wait and the end of the run.
func TestPermitGrantedWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.use(t, allAtTheSimulator+"\nconcurrency: {by: item, limit: 1}\n")
	s.faults(t, "callback-never@charge,order=first")
	s.admit(t, request("first"))
	s.until(t, "first", "callback") // and keeps its permit
	in := request("second")
	// Held for a time first: it comes to its permit by way of OrdersHold.
	in.StartAt = time.Now().Add(time.Hour)
	s.admit(t, in)
	s.until(t, "second", "scheduled")
	held, release := s.holdRead(t, "OrdersHold")
	s.startNow(t, "second")
	eventually(t, "the second waits for its permit", func() bool {
		return held.Load() && value[bool](t, s.Pool, `SELECT coalesce(hold = 'queued', false) FROM orders WHERE order_id = 'second'`)
	})
	r, err := s.engine.Answer(t.Context(), s.tokenOf(t, "first"), engine.CallbackResult{Outcome: "done"})
	assert.Require(t, err == nil && r.Accepted, r, err)
	eventually(t, "the second was given its permit", s.answers(t, 2, `SELECT count(*) FROM transitions WHERE verb = 'permit'`))
	release()
	reaches(t, s.Pool, "second", "completed")
}
