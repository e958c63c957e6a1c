package webhooks_test

import (
	"math/rand/v2"
	"testing"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/webhooks"
	"pawl/test/dbtest"
)

// TestLostStatements: whatever becomes of statements and their replies, every event is delivered, in order per order.
func TestLostStatements(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(nil)
	no := s.endpoint(r.URL)
	proxy := dbtest.NewProxy(t, s.URL)
	pool, err := pg.Open(t.Context(), proxy.URL, pg.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	query := db.New(pool)
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
	if n := one[int](s, `SELECT count(DISTINCT event_no) FROM webhook_deliveries`); n != 200 {
		t.Errorf("%d events have a delivery", n)
	}
}
