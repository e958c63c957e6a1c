package webhooks_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"pawl/internal/webhooks"
)

// TestGone: an endpoint that answers 410 is disabled at once. All others are told, whatever they want, and the feed goes on.
func TestGone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	gone := s.receiver(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	other, off := s.receiver(nil), s.receiver(nil)
	no, told, untold := s.endpoint(gone.URL, "order.charging"), s.endpoint(other.URL, "stock.*"), s.endpoint(off.URL)
	s.exec(`UPDATE webhook_endpoints SET state = 'disabled', disabled_at = now(), disabled_reason = 'by test' WHERE endpoint_no = $1`, untold)
	s.deliver()
	s.moves(1, 2)
	s.eventually("the other one is told", s.finished(told, 1))
	if state := one[string](s, `SELECT concat_ws(' ', state, disabled_reason, version, failures) FROM webhook_endpoints WHERE endpoint_no = $1`, no); state != "disabled it answered 410 Gone 2 1" {
		t.Error(state)
	}
	var m struct {
		Type string
		Data struct{ EndpointID, URL, Reason string }
	}
	if err := json.Unmarshal([]byte(other.got()[0].body), &m); err != nil || m.Type != "webhook_endpoint.disabled" ||
		m.Data.EndpointID != webhooks.EndpointID(no) || m.Data.URL != gone.URL || m.Data.Reason != "it answered 410 Gone" {
		t.Errorf("%s, %v", other.got()[0].body, err)
	}
	if len(gone.got()) != 1 || len(off.got()) != 0 {
		t.Errorf("%d requests to the one that is gone, %d to the one that was disabled", len(gone.got()), len(off.got()))
	}
	if waiting := one[string](s, `SELECT string_agg(concat(regexp_replace(event_id, '_[^_]*$', ''), state, attempts), ' ' ORDER BY delivery_no) FROM webhook_deliveries WHERE endpoint_no = $1`, no); waiting !=
		"evt_1_1pending1 evt_1_2pending0" {
		t.Error(waiting)
	}
	if n := one[int](s, `SELECT count(*) FROM books.access_log WHERE event = 'webhook_endpoint_disabled' AND subject = $1`, webhooks.EndpointID(no)); n != 1 {
		t.Errorf("%d entries in the access log", n)
	}
}

// TestFiveDaysOfFailure: then an endpoint is disabled, and not because it failed long ago and has succeeded since.
func TestFiveDaysOfFailure(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var well atomic.Bool
	well.Store(true)
	r := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	no := s.endpoint(r.URL)
	failing := func() {
		s.exec(`UPDATE webhook_endpoints SET failures = 3, failing_since = now() - interval '5 days 1 minute', seq = seq + 1`)
	}
	failing()
	s.deliver()
	s.moves(1, 1)
	s.eventually("a success is counted", s.finished(no, 1))
	if state := one[string](s, `SELECT concat_ws(' ', state, failures, failing_since) FROM webhook_endpoints`); state != "enabled 0" {
		t.Error(state)
	}
	failing()
	well.Store(false)
	s.moves(1, 1)
	s.eventually("it is disabled", func() bool { return one[string](s, `SELECT state FROM webhook_endpoints`) == webhooks.Disabled })
	if why := one[string](s, `SELECT disabled_reason FROM webhook_endpoints`); why != "nothing was delivered for five days" {
		t.Error(why)
	}
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
		if paused := one[string](s, `SELECT to_char(date_trunc('minute', paused_until - d.attempted_at + interval '30 s'), 'HH24:MI')
			FROM webhook_endpoints JOIN webhook_deliveries AS d USING (endpoint_no) WHERE d.event_id ^@ $1`, []string{"evt_1_1_", "evt_2_1_"}[order]); paused != want {
			t.Errorf("paused for %s, want %s", paused, want)
		}
	}
	if due := one[bool](s, `SELECT due_at > attempted_at + interval '9 minutes' FROM webhook_deliveries WHERE event_id ^@ 'evt_1_1_'`); !due {
		t.Error(s.state())
	}
	if len(r.got()) != 2 {
		t.Errorf("%d requests", len(r.got()))
	}
}

// TestFailingEndpointIsProbed: one that fails again and again gets one request after a pause, and what follows waits with it. Once
// it answers, it gets everything.
func TestFailingEndpointIsProbed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var well atomic.Bool
	r := s.receiver(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
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
	if r.most > 1 {
		t.Errorf("%d requests at one time", r.most)
	}
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
	s.exec(`UPDATE webhook_endpoints SET owner = gen_random_uuid(), fence = fence + 1, due_at = now() + interval '1 hour'`)
	close(hold)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first.Stop(ctx)
	if attempts := one[string](s, `SELECT string_agg(attempts::text, '') FROM webhook_deliveries`); strings.Trim(attempts, "0") != "" {
		t.Error("it has stored an attempt: ", attempts)
	}
	s.exec(`UPDATE webhook_endpoints SET due_at = now()`)
	s.deliver()
	s.eventually("the other one delivers", s.finished(no, 3))
	s.inOrder(r.got(), 1, 3)
	if ids := r.got(); len(ids) != 4 || ids[0].id != ids[1].id || ids[0].body != ids[1].body {
		t.Errorf("%v", ids)
	}
}

// TestReplicasShareEndpoints: each endpoint has one sender at a time, and when one ends, the other goes on.
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first.Stop(ctx)
	s.moves(10, 4)
	for i, no := range endpoints {
		s.eventually("all is delivered", s.finished(no, 80))
		got := receivers[i].got()
		s.inOrder(got, 10, 8)
		if len(got) != 80 {
			t.Errorf("endpoint %d has got %d", no, len(got))
		}
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d.Stop(ctx)
	s.exec(`UPDATE webhook_deliveries SET created_at = now() - interval '31 days', finished_at = finished_at - interval '31 days'`)
	s.exec(`UPDATE webhook_endpoints SET state = 'deleted' WHERE endpoint_no = $1`, deleted)
	s.moves(1, 1)
	s.deliver()
	s.eventually("one endpoint and three deliveries are left", func() bool {
		return one[string](s, `SELECT concat((SELECT count(*) FROM webhook_endpoints), ' ', (SELECT string_agg(regexp_replace(event_id, '_[^_]*$', '') || state, ' ' ORDER BY delivery_no) FROM webhook_deliveries))`) ==
			"1 evt_2_1pending evt_2_2pending evt_1_3delivered"
	})
	if n := one[int](s, `SELECT count(*) FROM webhook_endpoints WHERE endpoint_no = $1`, kept); n != 1 {
		t.Error("the wrong endpoint is gone")
	}
}
