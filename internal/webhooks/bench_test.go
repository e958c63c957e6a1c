package webhooks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/dbtest"
)

// BenchmarkDeliver delivers 20,000 events of 5,000 orders to a receiver on this machine, from the feed until the results are stored.
func BenchmarkDeliver(b *testing.B) {
	const ordersOfFeed, moves = 5000, 4
	for b.Loop() {
		b.StopTimer()
		database := dbtest.New(b)
		exec := func(sql string, args ...any) {
			if _, err := database.Pool.Exec(b.Context(), sql, args...); err != nil {
				b.Fatal(err)
			}
		}
		var got atomic.Int64
		r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			io.Copy(io.Discard, q.Body) //nolint:errcheck // nobody reads it
			got.Add(1)
			w.WriteHeader(http.StatusNoContent)
		}))
		pool, err := pg.Open(b.Context(), database.URL, pg.Options{MaxConns: 12})
		if err != nil {
			b.Fatal(err)
		}
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
			if err := database.Pool.QueryRow(b.Context(), `SELECT count(*) FROM webhook_deliveries WHERE state = 'delivered'`).Scan(&stored); err != nil {
				b.Fatal(err)
			}
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
