package webhooks_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/orders"
	"pawl/internal/webhooks"
	"pawl/test/assert"
)

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
			func(id string, who webhooks.By) error {
				_, err := b.Recover(t.Context(), id, since, who)
				return err
			},
			"1 pending!, 2 pending, 3 pending!, 4 delivered"},
		{"recover what was given up later", []string{"1 a exhausted"},
			func(id string, who webhooks.By) error {
				_, err := b.Recover(t.Context(), id, later, who)
				return err
			},
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
				if err := c.ask(webhooks.EndpointID(no), by(c.name)); err != nil {
					t.Error(err)
				}
			}
			assert.Equal(t, b.standing(no), c.want)
			changes := one[int](b.shop, `SELECT count(*) FROM webhook_changes WHERE request_id = $2 AND endpoint_no = $1`, no, c.name)
			if seq := one[int](b.shop, `SELECT seq FROM webhook_endpoints WHERE endpoint_no = $1`, no); changes != 1 || seq != 1 {
				t.Errorf("%d changes, seq %d", changes, seq)
			}
			if at := one[int](b.shop, `SELECT event_no FROM webhook_endpoints
				WHERE endpoint_no = $1`, no); (at == 41) != strings.Contains(c.name, "from now") {
				t.Errorf("it stands at %d", at)
			}
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
		if strings.Join(got, " ") != c.want || err != nil {
			t.Errorf("%+v: %s, %v, want %s", c.filter, got, err, c.want)
		}
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
			if got = append(got, fmt.Sprintf("%d/%d", row.EndpointNo, row.DeliveryNo)); row.OrderID != "order-7" {
				t.Errorf("%+v", row)
			}
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%d: %s, %v, want %s", limit, got, err, want)
		}
	}
	if rows, err := b.DeliveriesOf(t.Context(), "order-8", 50); len(rows) > 0 || err != nil {
		t.Errorf("%+v, %v", rows, err)
	}
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
	if err != nil || d.Status != 503 || len(d.Log) != 1 || d.Log[0].Answer != "later" || d.Log[0].LatencyMs != 12 {
		t.Errorf("%+v, %v", d, err)
	}
	if len(d.Changes) != 1 || d.Changes[0].Verb != "skipped" || d.Changes[0].Actor != "token:ops" ||
		*d.Changes[0].Reason != "a test" || *d.Changes[0].OnBehalfOf != "maria" {
		t.Errorf("%+v", d.Changes)
	}
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
				if _, err := b.Pool.Exec(t.Context(), `UPDATE webhook_endpoints SET seq = seq + 1 WHERE endpoint_no = $1`, no); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for i := range 20 {
		people.Go(func() {
			if _, err := b.Skip(t.Context(), webhooks.EndpointID(no), int64(i+1), webhooks.By{Actor: "test"}); err != nil {
				t.Error(err)
			}
		})
	}
	people.Wait()
	close(stop)
	owner.Wait()
	if left := one[int](b.shop, `SELECT count(*) FROM webhook_deliveries WHERE state <> 'skipped' OR due_at IS NOT NULL`); left != 0 {
		t.Errorf("%d are left: %s", left, b.standing(no))
	}
}
