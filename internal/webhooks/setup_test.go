package webhooks_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// shop is a database whose history the test writes, with a relay that numbers its events.
type shop struct {
	*testing.T
	*dbtest.Database
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t, dbtest.New(t)}
	relay := events.NewRelay(db.New(s.open()), events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
	return s
}

// open opens a pool as the service does.
func (s *shop) open() *pg.Pool {
	s.Helper()
	return dbtest.Open(s, s.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
}

// deliverer starts one more replica.
func (s *shop) deliverer(cfg webhooks.Config) *webhooks.Deliverer {
	s.Helper()
	query := db.New(s.open())
	d := webhooks.NewDeliverer(query, events.NewReader(query, orders.NewReader(context.WithoutCancel(s.Context()), query)), cfg)
	d.Start()
	s.Cleanup(func() { s.stop(d) })
	return d
}

func (s *shop) stop(d *webhooks.Deliverer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
	defer cancel()
	d.Stop(ctx)
}

// deliver starts a replica whose endpoints are on this machine.
func (s *shop) deliver() *webhooks.Deliverer {
	s.Helper()
	return s.deliverer(webhooks.Config{AllowPrivate: true, Registerer: prometheus.NewRegistry()})
}

// patience is how long a test waits for what must come about. It is no measure of speed.
const patience = 2 * time.Minute

// eventually looks until something is so.
func (s *shop) eventually(what string, so func() bool) {
	s.Helper()
	for until := time.Now().Add(patience); !so(); {
		if time.Now().After(until) {
			s.Fatal("in vain: ", what, "\n", s.state())
		}
		pg.Sleep(s.Context(), 10*time.Millisecond)
	}
}

// state is the content of the tables, for the message of a failed test.
func (s *shop) state() string {
	return one[string](s, `SELECT coalesce((SELECT jsonb_pretty(jsonb_agg(to_jsonb(e) - 'secret')) FROM webhook_endpoints e), 'no endpoint')
		|| coalesce((SELECT jsonb_pretty(jsonb_agg(d)) FROM (SELECT * FROM webhook_deliveries WHERE finished_at IS NULL
			ORDER BY delivery_no LIMIT 5) d), 'all finished')`)
}

func (s *shop) exec(sql string, args ...any) {
	s.Helper()
	assert.NoError(s, assert.Err(s.Pool.Exec(s.Context(), sql, args...)), sql)
}

func one[T any](s *shop, sql string, args ...any) (v T) {
	s.Helper()
	rows, err := s.Pool.Query(s.Context(), sql, args...)
	if err == nil {
		v, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	}
	assert.NoError(s, err, sql)
	return v
}

// moves writes the history of some orders: from 1 on, each with so many moves.
func (s *shop) moves(orders, moves int) {
	s.Helper()
	s.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
		SELECT o, m + coalesce((SELECT max(t.seq) FROM transitions AS t WHERE t.order_no = o), 0), 'pending', 'charging', 1
		FROM generate_series(1, $1::integer) AS o, generate_series(1, $2::integer) AS m ORDER BY m, o`, orders, moves)
}

// hurry has what waits be due now.
func (s *shop) hurry() {
	s.Helper()
	s.exec(`WITH d AS (UPDATE webhook_deliveries SET due_at = now() WHERE due_at > now())
		UPDATE webhook_endpoints SET seq = seq + 1, paused_until = NULL`)
}

// endpoint makes an endpoint for all events, or those of some types.
func (s *shop) endpoint(url string, types ...string) (no int32) {
	s.Helper()
	if types == nil {
		types = []string{}
	}
	return one[int32](s, `INSERT INTO webhook_endpoints (url, secret, event_no, created_by, types) VALUES ($1, $2, 0, 'test', $3) RETURNING endpoint_no`,
		url, secret, types)
}

// finished reports whether the endpoint has so many deliveries, all of them delivered.
func (s *shop) finished(no int32, deliveries int) func() bool {
	return func() bool {
		return one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE endpoint_no = $1 AND state = 'delivered'`, no) == deliveries
	}
}

// tried reports whether so many deliveries were tried once.
func (s *shop) tried(deliveries int) func() bool {
	return func() bool {
		return one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE attempts = 1`) == deliveries
	}
}

var secret = signing.NewSecret()

// received is a request that a receiver has got.
type received struct {
	id, kind string
	order    string // of the id
	seq      int64
	body     string
	header   http.Header
}

// receiver is the server of a webhook endpoint.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	all    []received
	atOnce int
	most   int // requests at one time
}

// receiver starts one that answers as told; nil: 204.
func (s *shop) receiver(answer http.HandlerFunc) *receiver {
	s.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.note(s, q)
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.atOnce--
		}()
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, q)
	}))
	s.Cleanup(r.Close)
	return r
}

// failing starts a receiver that answers 500 until it is well.
func (s *shop) failing() (r *receiver, well *atomic.Bool) {
	s.Helper()
	well = new(atomic.Bool)
	return s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}), well
}

// holding starts a receiver that answers nothing until hold is closed.
func (s *shop) holding() (r *receiver, hold chan struct{}) {
	s.Helper()
	hold = make(chan struct{})
	return s.receiver(func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-hold:
		case <-q.Context().Done():
		}
	}), hold
}

func (r *receiver) note(s *shop, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // its sender was stopped
	}
	if err := signing.Verify(secret, q.Header, body, time.Now()); err != nil {
		s.Errorf("%s: %v", q.Header.Get("Webhook-Id"), err)
	}
	var e events.Event
	if err := json.Unmarshal(body, &e); err != nil || e.ID != q.Header.Get("Webhook-Id") {
		s.Errorf("%s: %v", body, err)
	}
	got := received{id: e.ID, kind: e.Type, seq: e.Data.Seq + e.Data.Version, body: string(body), header: q.Header}
	if parts := strings.Split(e.ID, "_"); parts[0] == "evt" {
		got.order = parts[1]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, got)
	r.atOnce++
	r.most = max(r.most, r.atOnce)
}

// got is what it has received so far.
func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// inOrder checks that the first time each event of an order came was after the first time the one before it did, and that none is missing.
func (s *shop) inOrder(got []received, orders, moves int) {
	s.Helper()
	next := map[string]int64{}
	for _, g := range got {
		if g.seq > next[g.order]+1 {
			s.Errorf("order %s: %d came after %d", g.order, g.seq, next[g.order])
		}
		next[g.order] = max(next[g.order], g.seq)
	}
	for order, last := range next {
		assert.Equal(s, last, int64(moves), "last event of order", order)
	}
	assert.Equal(s, len(next), orders, "orders")
}
