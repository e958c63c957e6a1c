package webhooks_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/webhooks"
)

// people is what they change endpoints by.
func (s *shop) people() *webhooks.Endpoints {
	s.Helper()
	query := db.New(s.open())
	return webhooks.NewEndpoints(query, orders.NewReader(context.WithoutCancel(s.Context()), query), webhooks.Options{
		Private: true, Now: time.Now,
		Latest: func(context.Context) (events.Cursor, error) { return events.Cursor{}, nil },
	})
}

// TestChangesWhileAnAttemptIsUnderWay: an endpoint is disabled, deleted, or gets another secret while its receiver works on a delivery.
// What the receiver answers then counts, nothing else is sent that should not be, and nothing twice.
func TestChangesWhileAnAttemptIsUnderWay(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	people := s.people()
	arrived, answer := make(chan struct{}, 3*6), make(chan struct{})
	held := func() (*receiver, int32, string) {
		r := s.receiver(func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-answer
		})
		no := s.endpoint(r.URL)
		return r, no, webhooks.EndpointID(no)
	}
	off, offNo, offID := held()
	gone, goneNo, goneID := held()
	turned, turnedNo, turnedID := held()
	s.deliver()
	s.moves(3, 2)
	for range 3 {
		<-arrived
	}
	_, err := people.Stop(t.Context(), webhooks.At{ID: offID}, webhooks.Disabled, by("off"))
	_, err2 := people.Stop(t.Context(), webhooks.At{ID: goneID}, webhooks.Deleted, by("gone"))
	_, err3 := people.RotateSecret(t.Context(), turnedID, time.Hour, by("turned"))
	if err != nil || err2 != nil || err3 != nil {
		t.Fatal(err, err2, err3)
	}
	close(answer)

	s.eventually("the one with another secret has all", s.finished(turnedNo, 6))
	s.inOrder(turned.got(), 3, 2)
	signatures := func(g received) int { return len(strings.Fields(g.header.Get("Webhook-Signature"))) }
	if got := turned.got(); len(got) != 6 || signatures(got[0]) != 1 || signatures(got[5]) != 2 {
		t.Errorf("%d requests; the first has %d signatures, the last %d", len(got), signatures(got[0]), signatures(got[len(got)-1]))
	}
	s.eventually("the deleted one is gone", func() bool {
		return one[int](s, `SELECT count(*) FROM webhook_endpoints WHERE endpoint_no = $1`, goneNo) == 0 &&
			one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE endpoint_no = $1`, goneNo) == 0
	})
	s.eventually("the answer to the disabled one counts", s.finished(offNo, 1))
	if len(gone.got()) != 1 || len(off.got()) != 1 {
		t.Errorf("%d requests to the deleted one, %d to the disabled one", len(gone.got()), len(off.got()))
	}
	if _, err := people.Enable(t.Context(), offID, false, by("on")); err != nil {
		t.Fatal(err)
	}
	s.eventually("the enabled one gets the rest", s.finished(offNo, 6))
	s.inOrder(off.got(), 3, 2)
	if len(off.got()) != 6 {
		t.Errorf("%d requests", len(off.got()))
	}
}

// TestGoneFromBeforeEnable: an endpoint answers 410 to an attempt that began before a person had enabled it again. It stays
// enabled, is not paused, and the delivery is sent again at once, although that was its last attempt.
func TestGoneFromBeforeEnable(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"gone": http.StatusGone, "too much": http.StatusServiceUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			arrived, answer := make(chan struct{}), make(chan struct{})
			var hung atomic.Bool
			r := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
				if hung.CompareAndSwap(false, true) {
					close(arrived)
					<-answer
					w.Header().Set("Retry-After", "3000")
					w.WriteHeader(status)
				}
			})
			no := s.endpoint(r.URL)
			s.exec(`UPDATE webhook_endpoints SET failures = 1, failing_since = now() - interval '6 days'`)
			s.moves(1, 1)
			s.eventually("the event has a number", func() bool { return one[int](s, `SELECT count(*) FROM event_batches`) == 1 })
			s.exec(`INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, event_id, type, subject, attempts, due_at)
				VALUES ($1, 1, 1, 1, `+eventID(1)+`, 'order.charging', 'order 1', 10, now())`, no) // its last attempt is next
			s.exec(`UPDATE webhook_endpoints SET event_no = 1, delivery_no = 1`)
			s.deliver()
			<-arrived
			people, id := s.people(), webhooks.EndpointID(no)
			if _, err := people.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("off")); err != nil {
				t.Fatal(err)
			}
			if _, err := people.Enable(t.Context(), id, false, by("on")); err != nil {
				t.Fatal(err)
			}
			close(answer)
			s.eventually("the delivery is sent again at once", s.finished(no, 1))
			if state := one[string](s, `SELECT concat_ws(' ', state, failures, failing_since, paused_until) FROM webhook_endpoints`); state != "enabled 0" {
				t.Error(state)
			}
		})
	}
}
