package webhooks_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/webhooks"
	"pawl/test/assert"
)

// TestGone: an endpoint that answers 410 is disabled at once, also when the body of the answer breaks off. All others are told, whatever their filter, and the feed
// continues.
func TestGone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	gone := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusGone)
		w.Write([]byte("nobody")) //nolint:errcheck // more was promised
	})
	other, off := s.receiver(nil), s.receiver(nil)
	no, told, untold := s.endpoint(gone.URL, "order.charging"), s.endpoint(other.URL, "stock.*"), s.endpoint(off.URL)
	s.exec(`UPDATE webhook_endpoints SET state = 'disabled', disabled_at = now(), disabled_reason = 'by test' WHERE endpoint_no = $1`, untold)
	s.deliver()
	s.moves(1, 2)
	s.eventually("the other one is told", s.finished(told, 1))
	assert.Equal(t, one[string](s, `SELECT concat_ws(' ', state, disabled_reason, version, failures) FROM webhook_endpoints
		WHERE endpoint_no = $1`, no), "disabled it answered 410 Gone 2 1")
	var m struct {
		Type string
		Data struct{ EndpointID, URL, Reason string }
	}
	err := json.Unmarshal([]byte(other.got()[0].body), &m)
	assert.True(t, err == nil && m.Type == "webhook_endpoint.disabled" && m.Data.EndpointID == webhooks.EndpointID(no) &&
		m.Data.URL == gone.URL && m.Data.Reason == "it answered 410 Gone", other.got()[0].body, err)
	assert.True(t, len(gone.got()) == 1 && len(off.got()) == 0,
		len(gone.got()), "requests to the one that is gone", len(off.got()), "to the one that was disabled")
	waiting := one[string](s, `SELECT string_agg(concat(regexp_replace(event_id, '_[^_]*$', ''), state, attempts, log -> 0 ->> 'status', log -> 0 ->> 'answer'), ' '
		ORDER BY delivery_no) FROM webhook_deliveries WHERE endpoint_no = $1`, no)
	assert.Equal(t, waiting, "evt_1_1pending1410nobody evt_1_2pending0")
	assert.Equal(t, one[int](s, `SELECT count(*) FROM books.access_log WHERE event = 'webhook_endpoint_disabled'
		AND subject = $1`, webhooks.EndpointID(no)), 1, "entries in the access log")
}

// TestFiveDaysOfFailure: then an endpoint is disabled, and not because it failed long ago and has succeeded since.
func TestFiveDaysOfFailure(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r, well := s.failing()
	well.Store(true)
	no := s.endpoint(r.URL)
	failing := func() {
		s.exec(`UPDATE webhook_endpoints SET failures = 3, failing_since = now() - interval '5 days 1 minute', seq = seq + 1`)
	}
	failing()
	s.deliver()
	s.moves(1, 1)
	s.eventually("a success is counted", s.finished(no, 1))
	assert.Equal(t, one[string](s, `SELECT concat_ws(' ', state, failures, failing_since) FROM webhook_endpoints`), "enabled 0")
	failing()
	well.Store(false)
	s.moves(1, 1)
	s.eventually("it is disabled", func() bool { return one[string](s, `SELECT state FROM webhook_endpoints`) == webhooks.Disabled })
	assert.Equal(t, one[string](s, `SELECT disabled_reason FROM webhook_endpoints`), "nothing was delivered for five days")
}

// TestRetryAfter: an endpoint that has too much to do is left alone for as long as it asks, up to an hour.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		after := map[string]string{"1": "600", "2": "99999999"}[strings.Split(q.Header.Get("Webhook-Id"), "_")[1]]
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
	})
	s.endpoint(r.URL)
	s.deliver()
	for order, want := range []string{"00:10", "01:00"} {
		s.moves(order+1, 1)
		s.exec(`UPDATE webhook_endpoints SET paused_until = NULL, seq = seq + 1`)
		s.eventually("it is left alone", func() bool {
			return one[bool](s, `SELECT count(*) FILTER (WHERE paused_until > now() AND failures = $1) = 1 FROM webhook_endpoints`, order+1)
		})
		paused := one[string](s, `SELECT to_char(date_trunc('minute', paused_until - d.attempted_at + interval '30 s'), 'HH24:MI')
			FROM webhook_endpoints JOIN webhook_deliveries AS d USING (endpoint_no)
				WHERE d.event_id ^@ $1`, []string{"evt_1_1_", "evt_2_1_"}[order])
		assert.Equal(t, paused, want, "paused for")
	}
	assert.True(t, one[bool](s, `SELECT due_at > attempted_at + interval '9 minutes' FROM webhook_deliveries WHERE event_id ^@ 'evt_1_1_'`), s.state())
	assert.Equal(t, len(r.got()), 2, "requests")
}

// TestFailingEndpointIsProbed: one that fails again and again gets one request after a pause, and what follows waits with it. Once
// it answers, it gets everything.
func TestFailingEndpointIsProbed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r, well := s.failing()
	no := s.endpoint(r.URL)
	s.exec(`UPDATE webhook_endpoints SET failures = 10, failing_since = now() - interval '1 hour'`)
	s.deliver()
	s.moves(30, 1)
	s.eventually("it is left alone", func() bool { return one[bool](s, `SELECT paused_until IS NOT NULL FROM webhook_endpoints`) })
	for range 5 {
		before := one[int](s, `SELECT failures FROM webhook_endpoints`)
		s.exec(`UPDATE webhook_endpoints SET paused_until = NULL, seq = seq + 1`)
		s.eventually("it is tried once", func() bool {
			return one[bool](s, `SELECT failures > $1 AND paused_until > now() + interval '30 s' FROM webhook_endpoints`, before)
		})
	}
	r.mu.Lock()
	assert.True(t, r.most <= 1, r.most, "requests at one time")
	r.mu.Unlock()
	well.Store(true)
	s.eventually("all is delivered", func() bool {
		s.hurry()
		return s.finished(no, 30)()
	})
}

// TestFence: a replica that was asleep while another took its endpoint up stores nothing any more.
func TestFence(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	arrived, hold := make(chan struct{}, 1), make(chan struct{})
	r := s.receiver(func(_ http.ResponseWriter, q *http.Request) {
		select {
		case arrived <- struct{}{}:
			<-hold
		default:
		}
	})
	no := s.endpoint(r.URL)
	first := s.deliver()
	s.moves(1, 3)
	<-arrived
	asleep := db.WebhookDeliveriesAddParams{EndpointNo: no, EventNo: 99, EventNos: []int64{99}, Seqs: []int64{1},
		EventIds: []string{"evt_9_1_0"}, Types: []string{"order.completed"}, Subjects: []string{"o"}, Firsts: []bool{true}}
	assert.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT owner, fence, seq FROM webhook_endpoints`).Scan(&asleep.Owner, &asleep.Fence, &asleep.Seq))
	late := asleep
	late.Seq-- // something was stored since
	s.addsNothing(late)
	s.exec(`UPDATE webhook_endpoints SET owner = gen_random_uuid(), fence = fence + 1, due_at = now() + interval '1 hour'`)
	s.addsNothing(asleep)
	close(hold)
	s.stop(first)
	attempts := one[string](s, `SELECT string_agg(attempts::text, '') FROM webhook_deliveries`)
	assert.Equal(t, strings.Trim(attempts, "0"), "", "it has stored an attempt", attempts)
	s.exec(`UPDATE webhook_endpoints SET due_at = now()`)
	s.deliver()
	s.eventually("the other one delivers", s.finished(no, 3))
	s.inOrder(r.got(), 1, 3)
	ids := r.got()
	assert.True(t, len(ids) == 4 && ids[0].id == ids[1].id && ids[0].body == ids[1].body, ids)
}

// addsNothing checks that a statement of a sender that is late stores no deliveries.
func (s *shop) addsNothing(of db.WebhookDeliveriesAddParams) {
	s.Helper()
	rows, err := db.New(s.open()).WebhookDeliveriesAdd(s.Context(), of)
	assert.NoError(s, err)
	assert.Equal(s, len(rows), 0, "deliveries")
}

// TestReplicasShareEndpoints: each endpoint has one sender at a time, and when one replica ends, the other takes over.
func TestReplicasShareEndpoints(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var receivers []*receiver
	var endpoints []int32
	for range 6 {
		r := s.receiver(nil)
		receivers, endpoints = append(receivers, r), append(endpoints, s.endpoint(r.URL))
	}
	first := s.deliver()
	s.deliver()
	s.moves(10, 4)
	s.eventually("each has some", func() bool { return one[int](s, `SELECT count(DISTINCT endpoint_no) FROM webhook_deliveries`) == 6 })
	s.stop(first)
	s.moves(10, 4)
	for i, no := range endpoints {
		s.eventually("all is delivered", s.finished(no, 80))
		got := receivers[i].got()
		s.inOrder(got, 10, 8)
		assert.Equal(t, len(got), 80, "endpoint", no, "has got")
	}
}

// TestOldDeliveriesAreForgotten: finished ones after a while; those of a deleted endpoint at once, and then it.
func TestOldDeliveriesAreForgotten(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.receiver(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.Header.Get("Webhook-Id"), "evt_2_") {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	kept, deleted := s.endpoint(r.URL), s.endpoint(r.URL)
	d := s.deliver()
	s.moves(2, 2)
	s.eventually("all that can be is delivered", func() bool { return s.finished(kept, 2)() && s.finished(deleted, 2)() })
	s.stop(d)
	s.exec(`UPDATE webhook_deliveries SET created_at = now() - interval '31 days', finished_at = finished_at - interval '31 days'`)
	s.exec(`UPDATE webhook_endpoints SET state = 'deleted' WHERE endpoint_no = $1`, deleted)
	s.moves(1, 1)
	s.deliver()
	s.eventually("one endpoint and three deliveries are left", func() bool {
		return one[string](s, `SELECT concat((SELECT count(*) FROM webhook_endpoints), ' ', (SELECT string_agg(regexp_replace(event_id, '_[^_]*$', '') || state, ' ' ORDER BY delivery_no) FROM webhook_deliveries))`) ==
			"1 evt_2_1pending evt_2_2pending evt_1_3delivered"
	})
	assert.Equal(t, one[int](s, `SELECT count(*) FROM webhook_endpoints WHERE endpoint_no = $1`, kept), 1,
		"the wrong endpoint is gone")
}

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
	assert.Equal(t, one[string](s, `SELECT concat_ws(' ', state, failures) FROM webhook_endpoints`), "enabled 0")
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
	assert.True(t, one[bool](s, `SELECT paused_until > now() + interval '20 minutes' AND state = $1 FROM webhook_endpoints`, webhooks.Enabled), s.state())
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
	n := one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE state <> 'delivered' AND attempts = 0 AND due_at IS NOT NULL`)
	assert.True(t, n <= 155, n, "are due and not tried")
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
	s.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT o, 1, 'pending', 'charging', 1
		FROM generate_series(2, 31) AS o`)
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
	got := r.got()[before:]
	assert.True(t, len(got) == 31 && strings.HasPrefix(got[0].id, "evt_32_1_"), len(got), "requests, the first for", got[0].id)
	assert.True(t, one[bool](s, `SELECT attempts = 3 AND due_at > now() + interval '20 minutes' FROM webhook_deliveries
		WHERE delivery_no = 1`), s.state())
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
	return fmt.Sprintf(`(SELECT 'evt_%d_1_' || to_hex((extract(epoch FROM t.at) * 1000000)::bigint) FROM transitions AS t
		WHERE t.order_no = %[1]d AND t.seq = 1)`, orderNo)
}

// TestChangesWhileAnAttemptIsUnderWay: an endpoint is disabled, deleted, or gets another secret while its receiver works on a delivery.
// What the receiver answers then counts, nothing else is sent that should not be, and nothing twice.
func TestChangesWhileAnAttemptIsUnderWay(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	people := s.people(true)
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
	assert.Require(t, err == nil && err2 == nil && err3 == nil, err, err2, err3)
	close(answer)

	s.eventually("the one with another secret has all", s.finished(turnedNo, 6))
	s.inOrder(turned.got(), 3, 2)
	signatures := func(g received) int { return len(strings.Fields(g.header.Get("Webhook-Signature"))) }
	got := turned.got()
	assert.True(t, len(got) == 6 && signatures(got[0]) == 1 && signatures(got[5]) == 2, got)
	s.eventually("the deleted one is gone", func() bool {
		return one[int](s, `SELECT count(*) FROM webhook_endpoints WHERE endpoint_no = $1`, goneNo) == 0 &&
			one[int](s, `SELECT count(*) FROM webhook_deliveries WHERE endpoint_no = $1`, goneNo) == 0
	})
	s.eventually("the answer to the disabled one counts", s.finished(offNo, 1))
	assert.True(t, len(gone.got()) == 1 && len(off.got()) == 1,
		len(gone.got()), "requests to the deleted one", len(off.got()), "to the disabled one")
	assert.NoError(t, assert.Err(people.Enable(t.Context(), offID, false, by("on"))))
	s.eventually("the enabled one gets the rest", s.finished(offNo, 6))
	s.inOrder(off.got(), 3, 2)
	assert.Equal(t, len(off.got()), 6, "requests")
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
			people, id := s.people(true), webhooks.EndpointID(no)
			assert.NoError(t, assert.Err(people.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("off"))))
			assert.NoError(t, assert.Err(people.Enable(t.Context(), id, false, by("on"))))
			close(answer)
			s.eventually("the delivery is sent again at once", s.finished(no, 1))
			state := one[string](s, `SELECT concat_ws(' ', state, failures, failing_since, paused_until) FROM webhook_endpoints`)
			assert.Equal(t, state, "enabled 0")
		})
	}
}
