package webhooks_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/webhooks"
)

// TestEndpointWhoseDeliveriesAreGivenUpIsTriedOn: one that fails, and has nothing left that is due, gets what comes next. Else it would
// never be found to be well again, nor be disabled.
func TestEndpointWhoseDeliveriesAreGivenUpIsTriedOn(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	no := s.endpoint(s.receiver(nil).URL)
	s.exec(`INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, event_id, type, subject, state, attempts)
		VALUES ($1, 1, 1, 1, 'evt_1_1_0', 'order.charging', 'order 1', 'exhausted', 11)`, no)
	s.exec(`UPDATE webhook_endpoints SET failures = 20, failing_since = now() - interval '4 days', delivery_no = 1, event_no = 1`)
	s.deliver()
	s.moves(2, 1)
	s.eventually("what comes next is delivered", s.finished(no, 1))
	if state := one[string](s, `SELECT concat_ws(' ', state, failures) FROM webhook_endpoints`); state != "enabled 0" {
		t.Error(state)
	}
}

// TestPauseIsKept: what comes of requests that were under way does not end a pause that the endpoint has asked for.
func TestPauseIsKept(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var asked atomic.Bool
	paused := make(chan struct{})
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		switch id := q.Header.Get("Webhook-Id"); {
		case strings.HasPrefix(id, "evt_1_2_") && asked.CompareAndSwap(false, true):
			w.Header().Set("Retry-After", "1800")
			w.WriteHeader(http.StatusTooManyRequests)
		case strings.Split(id, "_")[2] == "2":
			<-paused
		}
	})
	no := s.endpoint(r.URL)
	s.deliver()
	s.moves(4, 1) // after which some are sent at one time
	s.eventually("all is delivered", s.finished(no, 4))
	s.moves(3, 1)
	s.eventually("a pause is asked for", func() bool { return one[bool](s, `SELECT paused_until IS NOT NULL FROM webhook_endpoints`) })
	close(paused)
	s.eventually("the others are delivered", s.finished(no, 6))
	if kept := one[bool](s, `SELECT paused_until > now() + interval '20 minutes' AND state = $1 FROM webhook_endpoints`, webhooks.Enabled); !kept {
		t.Error(s.state())
	}
}

// TestStatusCounts: an answer says what its status says, also when its body breaks off.
func TestStatusCounts(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusGone)
		w.Write([]byte("nobody")) //nolint:errcheck // more was promised
	})
	s.endpoint(r.URL)
	s.deliver()
	s.moves(1, 1)
	s.eventually("it is disabled", func() bool { return one[string](s, `SELECT state FROM webhook_endpoints`) == webhooks.Disabled })
	if said := one[string](s, `SELECT concat(log -> 0 ->> 'status', ' ', log -> 0 ->> 'answer') FROM webhook_deliveries`); said != "410 nobody" {
		t.Error(said)
	}
}

// TestOrdersThatFailHoldUpNoOther: a receiver that never takes the events of some orders gets those of all others at once, however many
// wait behind the ones it does not take.
func TestOrdersThatFailHoldUpNoOther(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		if strings.Contains("13579", strings.Split(q.Header.Get("Webhook-Id"), "_")[1][:1]) { //nolint:gocritic // the first digit is odd
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	no := s.endpoint(r.URL)
	s.deliver()
	s.moves(299, 8) // 1, 3, 5, 7, 9, and what begins with them: 155
	s.eventually("the others are delivered", s.finished(no, 144*8))
	if n := one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE state <> 'delivered' AND attempts = 0 AND due_at IS NOT NULL`); n > 155 {
		t.Errorf("%d are due and not tried", n)
	}
}

// TestEndpointThatAnswersAgain: what failed only while the endpoint was down is sent when it answers again, one after the other at
// first. What it refuses while it takes others keeps its pause.
func TestEndpointThatAnswersAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var well atomic.Bool
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		switch id := q.Header.Get("Webhook-Id"); {
		case strings.HasPrefix(id, "evt_1_"):
			w.WriteHeader(http.StatusBadRequest)
		case !well.Load():
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	no := s.endpoint(r.URL)
	s.moves(1, 1)
	s.eventually("the event has a number", func() bool { return one[int](s, `SELECT count(*) FROM event_batches`) == 1 })
	s.exec(`INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, event_id, type, subject, attempts, created_at, attempted_at, due_at, log)
		VALUES ($1, 1, 1, 1, `+eventID(1)+`, 'order.charging', 'order 1', 3, now() - interval '2 hours', now() - interval '1 hour', now() + interval '29 minutes',
			jsonb_build_array(jsonb_build_object('at', now() - interval '100 minutes'), jsonb_build_object('at', now() - interval '90 minutes'),
				jsonb_build_object('at', now() - interval '1 hour')))`, no)
	s.exec(`UPDATE webhook_endpoints SET event_no = 1, delivery_no = 1`)
	s.deliver()
	s.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT o, 1, 'pending', 'charging', 1 FROM generate_series(2, 31) AS o`)
	s.eventually("all of them have failed", func() bool {
		return one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE delivery_no > 1 AND attempts > 0`) == 30
	})
	// They failed twenty minutes ago, and wait.
	s.exec(`WITH d AS (UPDATE webhook_deliveries SET due_at = now() + interval '20 minutes', attempted_at = now() - interval '10 minutes', attempts = 2,
			log = jsonb_build_array(jsonb_build_object('at', now() - interval '20 minutes'), jsonb_build_object('at', now() - interval '10 minutes'))
			WHERE delivery_no > 1)
		UPDATE webhook_endpoints SET seq = seq + 1, failures = 3, failing_since = now() - interval '20 minutes', paused_until = NULL`)
	well.Store(true)
	before := len(r.got())
	s.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence) VALUES (32, 1, 'pending', 'charging', 1)`)
	s.eventually("all that failed while it was down is delivered", s.finished(no, 31))
	if got := r.got()[before:]; len(got) != 31 || !strings.HasPrefix(got[0].id, "evt_32_1_") {
		t.Errorf("%d requests, the first for %s", len(got), got[0].id)
	}
	if refused := one[bool](s, `SELECT attempts = 3 AND due_at > now() + interval '20 minutes' FROM webhook_deliveries WHERE delivery_no = 1`); !refused {
		t.Error(s.state())
	}
}

// TestClockSetBack: leases, pauses and next attempts that were written before the clock of the database was set back by days last
// no longer than any can.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(nil)
	no := s.endpoint(r.URL)
	s.moves(2, 1)
	s.eventually("the events have numbers", func() bool { return one[int](s, `SELECT coalesce(max(last_event_no), 0) FROM event_batches`) == 2 })
	s.exec(`INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, event_id, type, subject, attempts, due_at, log)
		VALUES ($1, 1, 1, 1, `+eventID(1)+`, 'order.charging', 'order 1', 0, now() + interval '3 days', '[]'),
			($1, 2, 2, 1, `+eventID(2)+`, 'order.charging', 'order 2', 1, now() + interval '3 days', '[{}]')`, no)
	s.exec(`UPDATE webhook_endpoints SET event_no = 2, delivery_no = 2, owner = gen_random_uuid(), fence = 1,
		due_at = now() + interval '3 days', paused_until = now() + interval '3 days'`)
	s.exec(`UPDATE event_relay SET owner = gen_random_uuid(), fence = fence + 1, due_at = now() + interval '3 days'`)
	s.deliverer(webhooks.Config{AllowPrivate: true, Lease: time.Second})
	s.eventually("both are delivered", s.finished(no, 2))
	s.moves(1, 1)
	s.eventually("what comes is numbered and delivered", s.finished(no, 3))
}

// eventID is an SQL expression for the id of the first event of an order.
func eventID(orderNo int) string {
	return fmt.Sprintf(`(SELECT 'evt_%d_1_' || to_hex((extract(epoch FROM t.at) * 1000000)::bigint) FROM transitions AS t WHERE t.order_no = %[1]d AND t.seq = 1)`, orderNo)
}
