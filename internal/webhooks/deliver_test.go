package webhooks_test

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestDelivers: every event goes to every endpoint that wants it, of those about driving only if it names them, once, in order per order, byte by byte as the feed has it.
func TestDelivers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	all, some := s.receiver(nil), s.receiver(nil)
	first, second := s.endpoint(all.URL), s.endpoint(some.URL, "stock.*", "order.woken")
	s.deliver()
	s.moves(20, 5)
	s.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb) VALUES (1, 6, 'charging', 'charging', 1, 'wake')`)
	s.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id)
		VALUES ('widget', 1, 'set', 5, 5, 0, 'test', 'x')`)
	s.eventually("all is delivered", func() bool { return s.finished(first, 101)() && s.finished(second, 2)() })
	got := all.got()
	assert.Equal(t, len(got), 101, "requests")
	var ofOrders []received
	for _, g := range got {
		if strings.HasPrefix(g.id, "evt_") {
			ofOrders = append(ofOrders, g)
		}
	}
	s.inOrder(ofOrders, 20, 5)
	other := some.got()
	assert.True(t, len(other) == 2 && other[0].kind != other[1].kind && other[0].header.Get("Content-Type") == "application/json", other)
	assert.Equal(t, one[int](s, `SELECT count(*) FROM webhook_deliveries
		WHERE attempts <> 1 OR log -> 0 ->> 'status' <> '204' OR jsonb_array_length(log) <> 1`), 0, s.state())
}

// TestFlappingReceiver: a receiver that fails now and then gets every event, none before the one before it of its order.
func TestFlappingReceiver(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var requests atomic.Int64
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		switch n := requests.Add(1); {
		case n%40 > 25: // it is away for a while
			w.WriteHeader(http.StatusServiceUnavailable)
		case n%7 == 0: // it has the event, and says it has not
			w.WriteHeader(http.StatusInternalServerError)
		case n%11 == 0: // or ends without a word
			panic(http.ErrAbortHandler)
		}
	})
	r.Config.ErrorLog = nil
	no := s.endpoint(r.URL)
	s.deliver()
	s.moves(30, 6)
	s.eventually("all is delivered", func() bool {
		s.exec(`UPDATE webhook_deliveries SET attempts = 1 WHERE attempts > 5`) // nothing is to be given up
		s.hurry()
		return s.finished(no, 180)()
	})
	s.inOrder(r.got(), 30, 6)
	assert.True(t, one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE jsonb_array_length(log) > 1`) != 0,
		"no attempt has failed")
	ids := map[string]string{}
	for _, g := range r.got() {
		body, again := ids[g.id]
		assert.True(t, !again || body == g.body, g.id, "came again as another", body, g.body)
		ids[g.id] = g.body
	}
}

// TestSlowEndpointDelaysNobody: one that does not answer has only its own requests, and those behind them, wait.
func TestSlowEndpointDelaysNobody(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	slow, hold := s.holding()
	quick := s.receiver(nil)
	held, free := s.endpoint(slow.URL), s.endpoint(quick.URL)
	s.deliver()
	s.moves(200, 2)
	s.eventually("the quick one has all", s.finished(free, 400))
	assert.Equal(t, one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE endpoint_no = $1 AND finished_at IS NOT NULL`, held), 0,
		"are finished at one that does")
	close(hold)
	s.eventually("the slow one has all", s.finished(held, 400))
}

// TestExhausted: a delivery that failed too often is given up. What follows of its order waits, what others have does not.
func TestExhausted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.Header.Get("Webhook-Id"), "evt_3_") {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	no := s.endpoint(r.URL)
	s.deliver()
	s.moves(5, 3)
	s.eventually("one is given up, and the others go on", func() bool {
		s.hurry()
		return s.finished(no, 12)() && one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE state = 'exhausted'`) == 1
	})
	waiting := one[string](s, `SELECT string_agg(concat(regexp_replace(event_id, '_[^_]*$', ''), state, attempts, due_at IS NULL), ' ' ORDER BY delivery_no) FROM webhook_deliveries WHERE finished_at IS NULL`)
	assert.Equal(t, waiting, "evt_3_1exhausted11t evt_3_2pending0t evt_3_3pending0t")
}

// TestRotation: while one secret takes the place of another, what is sent is signed with both.
func TestRotation(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(nil)
	before := signing.NewSecret()
	no := s.endpoint(r.URL)
	s.exec(`UPDATE webhook_endpoints SET previous_secret = $1, previous_secret_until = now() + interval '1 hour'`, before)
	s.deliver()
	s.moves(1, 1)
	s.eventually("it is delivered", s.finished(no, 1))
	s.exec(`UPDATE webhook_endpoints SET previous_secret_until = now(), seq = seq + 1`)
	s.moves(1, 1)
	s.eventually("the next one is delivered", s.finished(no, 2))
	got := r.got()
	assert.NoError(t, signing.Verify(before, got[0].header, []byte(got[0].body), time.Now()))
	assert.True(t, signing.Verify(before, got[1].header, []byte(got[1].body), time.Now()) != nil, got[1].header)
	assert.Equal(t, len(strings.Fields(got[0].header.Get("Webhook-Signature"))), 2, got[0].header)
	assert.Equal(t, len(strings.Fields(got[1].header.Get("Webhook-Signature"))), 1, got[1].header)
}

// TestAnswersAreKept: status and answer, clipped, printable, and without the secret; and no redirect is followed.
func TestAnswersAreKept(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	elsewhere := s.receiver(nil)
	r := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
		text := "the key is " + strings.TrimPrefix(secret, signing.Prefix) + "\x00\n" + strings.Repeat("é", 5000)
		io.WriteString(w, text) //nolint:errcheck // it is cut off
	})
	s.endpoint(r.URL)
	s.deliver()
	s.moves(1, 1)
	s.eventually("it is tried", s.tried(1))
	answer := one[string](s, `SELECT log -> 0 ->> 'answer' FROM webhook_deliveries`)
	assert.True(t, strings.HasPrefix(answer, "the key is *** ") && len(answer) <= 1024 && len(answer) >= 1000,
		len(answer), "bytes", answer)
	assert.Equal(t, one[string](s, `SELECT concat(log -> 0 ->> 'status', ' ', state)
		FROM webhook_deliveries`), "307 pending")
	assert.Equal(t, len(elsewhere.got()), 0, "requests elsewhere")
}

// TestPrivateAddress: without leave, nothing is sent to this machine, and the log of the delivery says why.
func TestPrivateAddress(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(nil)
	s.endpoint(r.URL)
	s.deliverer(webhooks.Config{})
	s.moves(1, 1)
	s.eventually("it is tried", s.tried(1))
	said := one[string](s, `SELECT log -> 0 ->> 'error' FROM webhook_deliveries`)
	assert.True(t, strings.Contains(said, "is private") && len(r.got()) == 0, said, "and", len(r.got()), "requests")
}

// TestBodiesAreReadAgain: after a restart, what is sent has the same bytes as the feed, also if the feed has forgotten its number.
func TestBodiesAreReadAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r, well := s.failing()
	no := s.endpoint(r.URL)
	d := s.deliver()
	s.moves(3, 1)
	s.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id, reason)
		VALUES ('a b', 1, 'set', 5, 5, 0, 'test', 'x', 'counted')`)
	s.eventually("all are tried", s.tried(4))
	d.Stop(s.Context())
	before := map[string]string{}
	for _, g := range r.got() {
		before[g.id] = g.body
	}
	s.exec(`INSERT INTO event_batches (first_event_no, last_event_no, position_from, position_to, epoch, whole)
		SELECT last_event_no + 1, last_event_no + 1, position_to, position_to + 1, epoch, false FROM event_batches ORDER BY first_event_no DESC LIMIT 1`)
	s.exec(`DELETE FROM event_batches WHERE first_event_no < (SELECT max(first_event_no) FROM event_batches)`)
	well.Store(true)
	s.deliver()
	s.eventually("all are delivered", func() bool {
		s.hurry()
		return s.finished(no, 4)()
	})
	for _, g := range r.got() {
		assert.Equal(t, before[g.id], g.body, g.id)
	}
	assert.True(t, len(before) == 4 && strings.Count(before[r.got()[0].id], `"cursor"`) == 1, before)
}

// TestRunsAheadABit: of an endpoint that is away, the backlog stays in the feed.
func TestRunsAheadABit(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r, hold := s.holding()
	no := s.endpoint(r.URL)
	s.moves(3000, 1)
	s.deliver()
	s.eventually("some are stored", func() bool { return one[int](s, `SELECT count(*) FROM webhook_deliveries`) >= 1000 && len(r.got()) > 0 })
	n := one[int](s, `SELECT count(*) FROM webhook_deliveries`)
	assert.True(t, n <= 1500, n, "deliveries are stored before they can be sent")
	close(hold)
	s.eventually("all are delivered", s.finished(no, 3000))
	s.inOrder(r.got(), 3000, 1)
	assert.True(t, r.most <= 64, r.most, "requests at one time")
	assert.Equal(t, one[int64](s, `SELECT event_no FROM webhook_endpoints`), 3000, "the endpoint stands at")
}

// TestLostStatements: whatever becomes of statements and their replies, every event is delivered, in order per order.
func TestLostStatements(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(nil)
	no := s.endpoint(r.URL)
	proxy := dbtest.NewProxy(t, s.URL)
	query := db.New(dbtest.Open(t, proxy.URL, pg.Options{MaxConns: 4}))
	d := webhooks.NewDeliverer(query, events.NewReader(query, orders.NewReader(t.Context(), query)), webhooks.Config{AllowPrivate: true})
	d.Start()
	t.Cleanup(func() { d.Stop(t.Context()) })
	proxy.On(func(statement string) dbtest.Fate {
		switch name := dbtest.QueryName(statement); {
		case name != "WebhookDeliveriesRecord" && name != "WebhookDeliveriesAdd" && name != "WebhookEndpointClaim" && name != "WebhookDeliveriesDue":
			return dbtest.Passes
		case rand.N(3) == 0:
			return dbtest.LoseRequest
		case rand.N(3) == 0:
			return dbtest.LoseReply
		}
		return dbtest.Passes
	})
	for range 5 {
		s.moves(20, 2)
	}
	s.eventually("all is delivered", s.finished(no, 200))
	s.inOrder(r.got(), 20, 10)
	assert.Equal(t, one[int](s, `SELECT count(DISTINCT event_no) FROM webhook_deliveries`), 200, "events have a delivery")
}

// BenchmarkDeliver delivers 20,000 events of 5,000 orders to a receiver on this machine, from the feed until the results are stored.
func BenchmarkDeliver(b *testing.B) {
	const ordersOfFeed, moves = 5000, 4
	for b.Loop() {
		b.StopTimer()
		database := dbtest.New(b)
		exec := func(sql string, args ...any) {
			assert.NoError(b, assert.Err(database.Pool.Exec(b.Context(), sql, args...)))
		}
		var got atomic.Int64
		r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			io.Copy(io.Discard, q.Body) //nolint:errcheck // it is not needed
			got.Add(1)
			w.WriteHeader(http.StatusNoContent)
		}))
		pool, err := pg.Open(b.Context(), database.URL, pg.Options{MaxConns: 12})
		assert.NoError(b, err)
		query := db.New(pool)
		for i := range ordersOfFeed / 250 {
			exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
				SELECT $1 * 250 + o, m, 'pending', 'charging', 1 FROM generate_series(1, 250) AS o, generate_series(1, $2::integer) AS m ORDER BY m, o`, i, moves)
		}
		exec(`INSERT INTO webhook_endpoints (url, secret, event_no, created_by) VALUES ($1, $2, 0, 'test')`, r.URL, signing.NewSecret())
		relay := events.NewRelay(query, events.RelayConfig{})
		relay.Start()
		d := webhooks.NewDeliverer(query, events.NewReader(query, orders.NewReader(b.Context(), query)), webhooks.Config{AllowPrivate: true})
		b.StartTimer()
		d.Start()
		for stored := 0; stored < ordersOfFeed*moves; {
			if got.Load() < ordersOfFeed*moves {
				pg.Sleep(b.Context(), 20*time.Millisecond)
				continue
			}
			err := database.Pool.QueryRow(b.Context(), `SELECT count(*) FROM webhook_deliveries WHERE state = 'delivered'`).Scan(&stored)
			assert.NoError(b, err)
		}
		b.StopTimer()
		d.Stop(b.Context())
		relay.Stop()
		pool.Close()
		r.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*ordersOfFeed*moves)/b.Elapsed().Seconds(), "deliveries/s")
}

// TestPlans: no statement reads all deliveries or all of the history, also in a database that is empty when it is planned.
func TestPlans(t *testing.T) {
	t.Parallel()
	conn, err := dbtest.New(t).Pool.Acquire(t.Context())
	assert.NoError(t, err)
	defer conn.Release()
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`)))
	whole := regexp.MustCompile(`Seq Scan on (webhook_deliveries|transitions|stock_movements|orders|refunds)`)
	seen := 0
	dbtest.Generated(t, []string{"../../db/webhooks.sql.go", "../../db/webhook_changes.sql.go", "../../db/events.sql.go"}, func(name, sql string) {
		if !strings.HasPrefix(name, "Webhook") && name != "EventsByKey" {
			return
		}
		seen++
		plan, err := dbtest.Explain(t.Context(), conn.Conn(), name, sql)
		assert.True(t, err == nil && !whole.MatchString(plan), name, err, plan)
	})
	assert.True(t, seen >= 15, seen, "statements")
}
