package browser

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/client"
	"pawl/internal/pgembed"
)

// deliveryTasks are what people do about a delivery that its receiver does not take, and what becomes of it.
var deliveryTasks = []struct {
	name    string
	givenUp bool // ten attempts have failed
	becomes client.DeliveryState
	steps   []string // on the page of the delivery, or of the endpoint where it was given up
}{
	{"resend", false, client.DeliveryStateDelivered, []string{"press Send it again", "reason = it is mended", "press Send it again", "shows What people asked for", "shows it is mended"}},
	{"skip", false, client.DeliveryStateSkipped, []string{"press Skip it", "reason = nobody wants it", "press Skip it", "shows What people asked for", "shows nobody wants it"}},
	{"recover", true, client.DeliveryStateDelivered, []string{"shows Deliveries were given up", "press Recover", "reason = it is mended", "press Send it again", "shows 1 delivery is sent again", "press Go on"}},
}

// TestDeliveries does what people do about webhooks, in a browser that runs no scripts.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	for _, task := range deliveryTasks {
		t.Run(task.name, func(t *testing.T) {
			t.Parallel()
			began(t)
			path := "/mended/" + task.name
			endpoint, err := shared.api.CreateWebhookEndpoint(t.Context(), nil, client.WebhookEndpointBody{URL: "http://" + shared.shop.address() + path, Types: []string{"stock.adjustment"}})
			if err != nil {
				t.Fatal(err)
			}
			item := "told of by " + task.name
			if _, err := shared.api.AdjustInventory(t.Context(), item, nil, client.AdjustInventoryBody{Change: 1, Reason: "found"}); err != nil {
				t.Fatal(err)
			}
			refused := delivery(t, endpoint.ID, item, func(d *client.Delivery) bool { return d.Attempts > 0 })
			page := "/console/delivery?" + url.Values{"endpoint": {endpoint.ID}, "delivery": {strconv.FormatInt(refused.Delivery, 10)}}.Encode()
			if task.givenUp {
				giveUp(t, refused)
				page = "/console/webhook?id=" + endpoint.ID
			}
			if task.becomes == client.DeliveryStateDelivered {
				shared.shop.mended.Store(path, true)
			}
			b := maria(t)
			b.withoutScript()
			b.visit(page)
			for _, step := range task.steps {
				b.take(step)
			}
			delivery(t, endpoint.ID, item, func(d *client.Delivery) bool { return d.State == task.becomes })
		})
	}
}

// delivery waits until the first delivery of an item is as it should be.
func delivery(t *testing.T, endpoint, item string, good func(*client.Delivery) bool) *client.Delivery {
	t.Helper()
	for end := time.Now().Add(limit); ; {
		list, err := shared.api.ListDeliveries(t.Context(), endpoint, &client.ListDeliveriesParams{Item: item})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(list.Deliveries); n == 1 && good(&list.Deliveries[0]) {
			return &list.Deliveries[0]
		}
		if time.Now().After(end) {
			t.Fatalf("deliveries %+v", list.Deliveries)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// giveUp stores of a delivery that its ten attempts have failed, which take three days.
func giveUp(t *testing.T, d *client.Delivery) {
	t.Helper()
	database, ok := pgembed.Running(shared.data)
	if !ok {
		t.Fatal("no database runs")
	}
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	if _, err := db.Exec(t.Context(), `UPDATE pawl.webhook_deliveries SET state = 'exhausted', attempts = 10, due_at = NULL WHERE event_id = $1 AND state = 'pending'`, d.EventID); err != nil {
		t.Fatal(err)
	}
}
