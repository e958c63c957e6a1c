package webhooks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// make makes an endpoint.
func (b *bundle) make(url string) db.WebhookEndpoint {
	b.Helper()
	made, err := b.Create(b.Context(), webhooks.Spec{URL: url}, webhooks.By{Actor: "test"})
	assert.NoError(b.T, err)
	return made
}

func by(requestID string) webhooks.By {
	return webhooks.By{Actor: "token:ops", OnBehalfOf: "maria", Reason: "a test", RequestID: requestID}
}

// TestEndpointIsMadeOnce: a repeated request gets the same secret; no other request does.
func TestEndpointIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	want := webhooks.Spec{URL: "http://127.0.0.1:9/hook", Description: "the shop", Types: []string{"order.*"}}
	first, err := b.Create(t.Context(), want, by("1"))
	assert.Require(t, err == nil && strings.HasPrefix(first.Secret, "whsec_") && first.EventNo == 41 && first.CreatedBy == "token:ops",
		first, err)
	again, err := b.Create(t.Context(), want, by("1"))
	assert.True(t, err == nil && again.EndpointNo == first.EndpointNo && again.Secret == first.Secret, "again", again, err)
	var at sync.WaitGroup
	for range 8 { // the same request at once, as by a caller whose answers are lost
		at.Go(func() {
			made, err := b.Create(t.Context(), want, by("2"))
			assert.True(t, err == nil && made.Secret != "", made, err)
		})
	}
	at.Wait()
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_endpoints`), 2, "endpoints")
	want.Description = "another"
	assert.ErrorIs(t, assert.Err(b.Create(t.Context(), want, by("1"))), orders.ErrKeyReused, "another payload:")
	id := webhooks.EndpointID(first.EndpointNo)
	read, err := b.Get(t.Context(), id)
	all, listErr := b.List(t.Context())
	assert.True(t, err == nil && listErr == nil && len(all) == 2 && read.Secret+all[0].Secret == "" && read.Url == first.Url, read, err, all, listErr)
	for _, absent := range []string{"whe_0", "whe_01", "whe_99", "whe_x", "1", ""} {
		assert.ErrorIs(t, assert.Err(b.Get(t.Context(), absent)), orders.ErrNotFound, absent)
	}
}

// TestSecretsOverlap: the one before is kept until its time is over. A rotation whose answer was lost is not done again,
// which would forget the secret that the receiver has.
func TestSecretsOverlap(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	made := b.make("http://127.0.0.1:9/hook")
	id := webhooks.EndpointID(made.EndpointNo)
	rotated, err := b.RotateSecret(t.Context(), id, time.Hour, by("1"))
	again, err2 := b.RotateSecret(t.Context(), id, time.Hour, by("1"))
	assert.Require(t, err == nil && err2 == nil && rotated.Secret != made.Secret && again.Secret == rotated.Secret,
		err, err2, rotated, "again", again)
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_endpoints WHERE secret = $1 AND previous_secret = $2
		AND previous_secret_until > now() + interval '50 minutes'`,
		rotated.Secret, made.Secret), 1, "the secret before")
	assert.NoError(t, assert.Err(b.RotateSecret(t.Context(), id, 0, by("2"))))
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_endpoints WHERE previous_secret IS NULL AND version = 3`), 1,
		"a secret that others know is kept")
	late, err := b.RotateSecret(t.Context(), id, time.Hour, by("1"))
	assert.True(t, err == nil && late.Secret == "", "the secret of another request is shown", late.Secret, err)
}

// TestChangesOfEndpoints: only of the version that was read, each once, and who made them is known afterwards.
func TestChangesOfEndpoints(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	id := webhooks.EndpointID(b.make("http://127.0.0.1:9/hook").EndpointNo)
	b.exec(`UPDATE webhook_endpoints SET failures = 3, failing_since = now(), last_failure = '{}', paused_until = now() + interval '1 hour'`)
	want := webhooks.Spec{URL: "http://127.0.0.1:9/other", Types: []string{"stock.set"}}
	changed, err := b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("1"))
	assert.True(t, err == nil && changed.Url == want.URL && slices.Equal(changed.Types, want.Types) && changed.Version == 2 && changed.Secret == "" &&
		changed.Failures == 0 && changed.FailingSince == nil && changed.LastFailure == nil && changed.PausedUntil == nil, changed, err)
	again, err := b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("1"))
	assert.True(t, err == nil && again.Version == 2, again, err)
	assert.ErrorIs(t, assert.Err(b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("2"))), orders.ErrPrecondition)
	disabled, err := b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("3"))
	assert.True(t, err == nil && disabled.State == webhooks.Disabled && disabled.DisabledReason != nil && disabled.DisabledAt != nil,
		disabled, err)
	enabled, err := b.Enable(t.Context(), id, false, by("4"))
	assert.True(t, err == nil && enabled.State == webhooks.Enabled && enabled.DisabledAt == nil, enabled, err)
	for range 2 {
		assert.NoError(t, assert.Err(b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Deleted, by("5"))), "deleted, twice")
	}
	assert.ErrorIs(t, assert.Err(b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Deleted, by("6"))), orders.ErrNotFound,
		"deleted by another request")
	var events []string
	err = b.Pool.QueryRow(t.Context(), `SELECT array_agg(event ORDER BY at) FROM books.access_log
		WHERE subject = $1 AND (actor, on_behalf_of, detail) = ('token:ops', 'maria', 'a test')`, id).Scan(&events)
	assert.NoError(t, err)
	assert.Equal(t, events, []string{"webhook_endpoint_changed", "webhook_endpoint_disabled", "webhook_endpoint_enabled", "webhook_endpoint_deleted"})
}

func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	b.exec(`INSERT INTO webhook_endpoints (url, event_no, created_by, secret)
		SELECT 'http://127.0.0.1:9/', 0, 'test', 'whsec_' FROM generate_series(1, $1::integer)`, webhooks.MostEndpoints)
	assert.ErrorIs(t, assert.Err(b.Create(t.Context(), webhooks.Spec{URL: "http://127.0.0.1:9/"}, by("1"))), webhooks.ErrTooMany)
}

// TestTestEvent: it is signed, and what came back is told, also by an endpoint that is disabled or not there.
func TestTestEvent(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	var secret string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		err := signing.Verify(secret, r.Header, body, time.Now())
		assert.True(t, err == nil && strings.Contains(string(body), `"type":"webhook_endpoint.test"`), body, err)
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("thanks, " + secret))
	}))
	t.Cleanup(receiver.Close)
	made := b.make(receiver.URL)
	secret = made.Secret
	id := webhooks.EndpointID(made.EndpointNo)
	assert.NoError(t, assert.Err(b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("1"))))
	sent, err := b.Test(t.Context(), id)
	assert.True(t, err == nil && !sent.Delivered() && sent.Status == http.StatusTeapot &&
		strings.HasPrefix(sent.Answer, "thanks, ") && !strings.Contains(sent.Answer, secret[6:]), sent, err)
	receiver.Close()
	sent, err = b.Test(t.Context(), id)
	assert.True(t, err == nil && sent.Status == 0 && sent.Error != "", "nobody there", sent, err)
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_deliveries`), 0, "deliveries are stored")
}

// TestAddresses: Create rejects URLs to which no events may be sent.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for private, s := range map[bool]*webhooks.Endpoints{true: endpoints(t, true).Endpoints, false: endpoints(t, false).Endpoints} {
		for _, c := range []struct {
			url              string
			always, privates bool
		}{
			{"https://1.1.1.1/hook", true, true},
			{"https://not-there.example/hook", true, true}, // it may be there when it is dialed
			{"http://1.1.1.1/hook", false, true},
			{"https://127.0.0.1/hook", false, true},
			{"https://localhost/hook", false, true},
			{"https://[::ffff:10.0.0.1]/hook", false, true},
			{"https://169.254.169.254/latest", false, false},
			{"https://[fd00:ec2::254]/latest", false, false},
			{"https://0.0.0.0/", false, false},
			{"https://1.1.1.1:65535/", true, true},
			{"https://1.1.1.1:65536/", false, false},
			{"https://1.1.1.1:0/", false, false},
		} {
			want := c.always || private && c.privates
			_, err := s.Create(t.Context(), webhooks.Spec{URL: c.url}, webhooks.By{Actor: "test"})
			var refused *webhooks.AddressRefused
			assert.True(t, (err == nil) == want && (err == nil || errors.As(err, &refused)),
				c.url, "private ones", private, err)
		}
	}
}

// bundle is what people see and change of the endpoints of a database, in which nothing is delivered.
type bundle struct {
	*shop
	*webhooks.Endpoints
}

func endpoints(t *testing.T, private bool) *bundle {
	t.Helper()
	s := &shop{t, dbtest.New(t)}
	return &bundle{s, s.people(private)}
}

// newest is the last event of the feed, as Endpoints is told.
const newest = 41

func (s *shop) people(private bool) *webhooks.Endpoints {
	s.Helper()
	query := db.New(s.open())
	return webhooks.NewEndpoints(query, orders.NewReader(context.WithoutCancel(s.Context()), query), webhooks.Options{
		Private: private, Now: time.Now,
		Latest: func(context.Context) (events.Cursor, error) { return events.Cursor{No: newest}, nil },
	})
}

// deliver stores deliveries of an endpoint, each as "number subject state", as they stand when the subject's first one that
// is not finished is due.
func (b *bundle) deliver(endpointNo int32, deliveries ...string) {
	b.Helper()
	for _, d := range deliveries {
		var no int64
		var subject, state string
		assert.NoError(b.T, assert.Err(fmt.Sscan(d, &no, &subject, &state)))
		b.exec(`INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, type, event_id, subject, state, attempts, attempted_at, finished_at, due_at)
			SELECT $1::integer, $2::bigint, $2::bigint, 1, 'order.completed', 'evt_' || $2::bigint, $3::text, $4::text, 3, now(), CASE WHEN $4::text IN ('delivered', 'skipped') THEN now() END,
				CASE WHEN $4::text = 'pending' AND NOT EXISTS (SELECT FROM webhook_deliveries WHERE endpoint_no = $1::integer
					AND subject = $3::text AND finished_at IS NULL) THEN now() + interval '1 hour' END`,
			endpointNo, no, strings.ReplaceAll(subject, "_", " "), state)
	}
}

// standing is how the deliveries of an endpoint stand: "number state", with ! if one is due.
func (b *bundle) standing(endpointNo int32) string {
	b.Helper()
	return one[string](b.shop, `SELECT string_agg(delivery_no || ' ' || state || CASE WHEN due_at IS NOT NULL
		THEN '!' ELSE '' END, ', ' ORDER BY delivery_no)
		FROM webhook_deliveries WHERE endpoint_no = $1`, endpointNo)
}

// TestUndelivered: what is not delivered is what will be sent.
func TestUndelivered(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	for _, types := range []string{"{}", "{stock.*}", "{order.awaiting_retry,order.charging}", "{order.refund_done}"} {
		b.exec(`INSERT INTO webhook_endpoints (event_no, created_by, secret, url, types) VALUES (1, 'test', 'whsec_', 'http://127.0.0.1:9', $1)`, types)
	}
	b.deliver(1, "1 order_1 pending", "2 order_2 delivered")
	relay := events.NewRelay(db.New(b.open()), events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
	b.moves(1, 3) // the first has been sent
	b.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb) VALUES (1, 4, 'charging', 'charging', 1, 'retry')`)
	b.exec(`SET session_replication_role = replica; INSERT INTO charge_operations (order_no, generation, number, currency, amount, request_id)
		VALUES (2, 0, 1, 'USD', 1, 'r'); RESET session_replication_role`) // the ledger has refunded
	b.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, actor, request_id)
		VALUES (2, 1, 'completed', 'completed', 1, 'refund', 'local', 'r')`)
	b.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) VALUES ('rug', 1, 'set', 5, 5, 0, 'local', 'x')`)
	b.eventually("all but what drives orders counts", func() bool {
		counts, err := b.Undelivered(t.Context(), 1, 2, 3, 4)
		return err == nil && counts[1].Events == 5 && counts[2].Events == 1 && counts[3].Events == 3 && counts[4].Events == 1
	})
}

// TestWhatPeopleAskOfDeliveries: of an order, only the first delivery that is not finished is ever due.
func TestWhatPeopleAskOfDeliveries(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	since, later := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for _, c := range []struct {
		name       string
		deliveries []string
		ask        func(id string, by webhooks.By) error
		want       string
	}{
		{"skip what was given up", []string{"1 a exhausted", "2 a pending", "3 a pending", "4 b pending"},
			func(id string, who webhooks.By) error { _, err := b.Skip(t.Context(), id, 1, who); return err },
			"1 skipped, 2 pending!, 3 pending, 4 pending!"},
		{"skip what waits behind another", []string{"1 a pending", "2 a pending", "3 a pending"},
			func(id string, who webhooks.By) error { _, err := b.Skip(t.Context(), id, 2, who); return err },
			"1 pending!, 2 skipped, 3 pending"},
		{"resend what was given up", []string{"1 a exhausted", "2 a pending"},
			func(id string, who webhooks.By) error { _, err := b.Resend(t.Context(), id, 1, who); return err },
			"1 pending!, 2 pending"},
		{"resend what was delivered before one that is due", []string{"1 a delivered", "2 a pending", "3 a pending", "4 b pending"},
			func(id string, who webhooks.By) error { _, err := b.Resend(t.Context(), id, 1, who); return err },
			"1 pending!, 2 pending, 3 pending, 4 pending!"},
		{"resend what was skipped behind one that was given up", []string{"1 a exhausted", "2 a skipped"},
			func(id string, who webhooks.By) error { _, err := b.Resend(t.Context(), id, 2, who); return err },
			"1 exhausted, 2 pending"},
		{"recover", []string{"1 a exhausted", "2 a pending", "3 b exhausted", "4 c delivered"},
			func(id string, who webhooks.By) error { return assert.Err(b.Recover(t.Context(), id, since, who)) },
			"1 pending!, 2 pending, 3 pending!, 4 delivered"},
		{"recover what was given up later", []string{"1 a exhausted"},
			func(id string, who webhooks.By) error { return assert.Err(b.Recover(t.Context(), id, later, who)) },
			"1 exhausted"},
		{"enable from where it stood", []string{"1 a exhausted", "2 b pending", "3 b pending"},
			func(id string, who webhooks.By) error { _, err := b.Enable(t.Context(), id, false, who); return err },
			"1 exhausted, 2 pending!, 3 pending"},
		{"enable from now", []string{"1 a exhausted", "2 b pending", "3 b pending", "4 c delivered"},
			func(id string, who webhooks.By) error { _, err := b.Enable(t.Context(), id, true, who); return err },
			"1 skipped, 2 skipped, 3 skipped, 4 delivered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := &bundle{&shop{t, b.Database}, b.Endpoints}
			no := b.make("http://127.0.0.1:9/").EndpointNo
			b.exec(`UPDATE webhook_endpoints SET event_no = 1 WHERE endpoint_no = $1`, no)
			b.deliver(no, c.deliveries...)
			for range 2 { // it is done once
				assert.NoError(t, c.ask(webhooks.EndpointID(no), by(c.name)))
			}
			assert.Equal(t, b.standing(no), c.want)
			changes := one[int](b.shop, `SELECT count(*) FROM webhook_changes WHERE request_id = $2 AND endpoint_no = $1`, no, c.name)
			seq := one[int](b.shop, `SELECT seq FROM webhook_endpoints WHERE endpoint_no = $1`, no)
			assert.True(t, changes == 1 && seq == 1, changes, "changes, seq", seq)
			at := one[int](b.shop, `SELECT event_no FROM webhook_endpoints WHERE endpoint_no = $1`, no)
			assert.Equal(t, at == newest, strings.Contains(c.name, "from now"), "it stands at", at)
		})
	}
}

// TestDeliveriesAreListed, by state and by what they are about, page by page.
func TestDeliveriesAreListed(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	b.exec(`INSERT INTO orders (order_no, order_id, status, fence, owner, due_at, amount, currency, item) OVERRIDING SYSTEM VALUE
		VALUES (7, 'order-7', 'charging', 1, gen_random_uuid(), now(), 1, 'USD', 'i')`)
	no := b.make("http://127.0.0.1:9/").EndpointNo
	id := webhooks.EndpointID(no)
	b.deliver(no, "1 order_7 delivered", "2 item_widget delivered", "3 order_7 exhausted", "4 order_7 pending",
		"5 order_8 skipped", "6 item_widget pending")
	for _, c := range []struct {
		filter webhooks.Filter
		want   string
	}{
		{webhooks.Filter{}, "6 5 4 3 2 1"},
		{webhooks.Filter{Before: 3}, "2 1"},
		{webhooks.Filter{Limit: 2}, "6 5"},
		{webhooks.Filter{State: "pending"}, "6 4"},
		{webhooks.Filter{State: "exhausted"}, "3"},
		{webhooks.Filter{State: "skipped"}, "5"},
		{webhooks.Filter{State: "delivered"}, "2 1"},
		{webhooks.Filter{OrderID: "order-7"}, "4 3 1"},
		{webhooks.Filter{OrderID: "order-7", State: "delivered"}, "1"},
		{webhooks.Filter{Item: "widget", Before: 6}, "2"},
	} {
		if c.filter.Before == 0 {
			c.filter.Before = math.MaxInt64
		}
		if c.filter.Limit == 0 {
			c.filter.Limit = 50
		}
		rows, err := b.Deliveries(t.Context(), id, c.filter)
		var got []string
		for _, row := range rows {
			got = append(got, fmt.Sprint(row.DeliveryNo))
			if about := row.OrderID + row.Item(); row.Subject == "order 7" && about != "order-7" || row.Subject == "item widget" && about != "widget" {
				t.Errorf("%s is about %s", row.Subject, about)
			}
		}
		assert.True(t, strings.Join(got, " ") == c.want && err == nil, c.filter, got, err, c.want)
	}
	assert.ErrorIs(t, assert.Err(b.Deliveries(t.Context(), id, webhooks.Filter{OrderID: "none"})), orders.ErrNotFound)
}

// TestDeliveriesOfAnOrder at all endpoints: those of the newest events, and what holds them back, however old that is.
func TestDeliveriesOfAnOrder(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	b.exec(`INSERT INTO orders (order_no, order_id, status, fence, owner, due_at, amount, currency, item) OVERRIDING SYSTEM VALUE
		VALUES (7, 'order-7', 'charging', 1, gen_random_uuid(), now(), 1, 'USD', 'i'), (8, 'order-8', 'charging', 1, gen_random_uuid(), now(), 1, 'USD', 'i')`)
	for _, deliveries := range [][]string{
		{"1 order_7 delivered", "2 order_7 exhausted", "3 item_widget pending", "4 order_7 pending", "5 order_7 pending"},
		{"9 order_7 delivered", "10 order_7 delivered", "11 order_7 delivered"},
		{"5 order_7 delivered"},
	} {
		b.deliver(b.make("http://127.0.0.1:9/").EndpointNo, deliveries...)
	}
	b.exec(`UPDATE webhook_deliveries SET seq = CASE WHEN endpoint_no = 2 THEN delivery_no - 8 ELSE delivery_no END`)
	b.exec(`UPDATE webhook_endpoints SET state = 'deleted' WHERE endpoint_no = 3`)
	for limit, want := range map[int32]string{50: "1/5 1/4 2/11 1/2 2/10 1/1 2/9", 2: "1/5 1/4 1/2", 4: "1/5 1/4 2/11 1/2"} {
		rows, err := b.DeliveriesOf(t.Context(), "order-7", limit)
		var got []string
		for _, row := range rows {
			got = append(got, fmt.Sprintf("%d/%d", row.EndpointNo, row.DeliveryNo))
			assert.Equal(t, row.OrderID, "order-7", row)
		}
		assert.True(t, strings.Join(got, " ") == want && err == nil, limit, got, err, want)
	}
	rows, err := b.DeliveriesOf(t.Context(), "order-8", 50)
	assert.True(t, len(rows) == 0 && err == nil, rows, err)
	assert.ErrorIs(t, assert.Err(b.DeliveriesOf(t.Context(), "none", 50)), orders.ErrNotFound)
}

// TestDeliveryShowsItsHistory: attempts, and who asked for what and why.
func TestDeliveryShowsItsHistory(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	no := b.make("http://127.0.0.1:9/").EndpointNo
	id := webhooks.EndpointID(no)
	b.deliver(no, "1 a exhausted")
	b.exec(`UPDATE webhook_deliveries SET log = '[{"at":"2026-11-22T19:00:00Z","status":503,"latencyMs":12,"answer":"later"}]'`)
	d, err := b.Skip(t.Context(), id, 1, by("1"))
	assert.True(t, err == nil && d.Status == 503 && len(d.Log) == 1 && d.Log[0].Answer == "later" && d.Log[0].LatencyMs == 12,
		d, err)
	assert.True(t, len(d.Changes) == 1 && d.Changes[0].Verb == "skipped" && d.Changes[0].Actor == "token:ops" &&
		*d.Changes[0].Reason == "a test" && *d.Changes[0].OnBehalfOf == "maria", d.Changes)
	assert.ErrorIs(t, assert.Err(b.Skip(t.Context(), id, 1, by("2"))), webhooks.ErrFinished, "skipped again:")
	assert.ErrorIs(t, assert.Err(b.Skip(t.Context(), id, 2, by("3"))), orders.ErrNotFound, "there is no other:")
	assert.ErrorIs(t, assert.Err(b.Resend(t.Context(), "whe_99", 1, by("4"))), orders.ErrNotFound, "there is no such endpoint:")
}

// TestSkipWhileADeliveryIsStored: the sender stores the next delivery of the order while Skip waits for the endpoint's row.
// Skip must not work with its snapshot from before, in which nothing comes next.
func TestSkipWhileADeliveryIsStored(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	no := b.make("http://127.0.0.1:9/").EndpointNo
	b.deliver(no, "1 a pending")
	sender, err := b.Pool.Begin(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(sender.Exec(t.Context(), `UPDATE webhook_endpoints SET seq = seq + 1 WHERE endpoint_no = $1`, no)))
	assert.NoError(t, assert.Err(sender.Exec(t.Context(), `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, type, event_id, subject)
		VALUES ($1, 2, 2, 2, 'order.completed', 'evt_2', 'a')`, no)))
	skipped := make(chan error, 1)
	go func() { skipped <- assert.Err(b.Skip(t.Context(), webhooks.EndpointID(no), 1, by("1"))) }()
	b.eventually("Skip waits for the row", func() bool {
		return one[int](b.shop, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%WebhookDeliverySkip%'`) == 1
	})
	assert.NoError(t, sender.Commit(t.Context()))
	assert.NoError(t, <-skipped)
	assert.Equal(t, b.standing(no), "1 skipped, 2 pending!")
}

// TestPeopleAndOwnersMeet: requests of people succeed while the sender writes the endpoint all the time, and each
// delivery is skipped once.
func TestPeopleAndOwnersMeet(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	no := b.make("http://127.0.0.1:9/").EndpointNo
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprintf("%d a pending", i+1))
	}
	b.deliver(no, all...)
	stop := make(chan struct{})
	var owner, people sync.WaitGroup
	owner.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, err := b.Pool.Exec(t.Context(), `UPDATE webhook_endpoints SET seq = seq + 1 WHERE endpoint_no = $1`, no)
				assert.True(t, err == nil, err)
			}
		}
	})
	for i := range 20 {
		people.Go(func() {
			_, err := b.Skip(t.Context(), webhooks.EndpointID(no), int64(i+1), webhooks.By{Actor: "test"})
			assert.True(t, err == nil, err)
		})
	}
	people.Wait()
	close(stop)
	owner.Wait()
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_deliveries WHERE state <> 'skipped' OR due_at IS NOT NULL`), 0, b.standing(no))
}
