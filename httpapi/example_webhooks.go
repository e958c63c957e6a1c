package httpapi

import (
	"time"

	"pawl/db"
	"pawl/internal/webhooks"
)

func exampleEndpoint(change func(*db.WebhookEndpoint)) webhookEndpoint {
	e := db.WebhookEndpoint{
		EndpointNo: 1, Url: "https://shop.example/pawl", Description: new("the shop"), Types: []string{"order.completed", "order.failed"},
		State: webhooks.Enabled, EventNo: 1041, Version: 1, CreatedAt: exampleTime, CreatedBy: "token:operations",
	}
	change(&e)
	return webhookEndpointOf(&e)
}

func nothing(*db.WebhookEndpoint) {}

func secretShown(e *db.WebhookEndpoint) { e.Secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }

func changed(e *db.WebhookEndpoint) { e.Version, e.Types = 2, []string{"order.*"} }

func rotated(e *db.WebhookEndpoint) {
	secretShown(e)
	e.Version, e.PreviousSecretUntil = 3, new(exampleTime.Add(day))
}

func disabled(e *db.WebhookEndpoint) {
	e.State, e.Version, e.DisabledAt, e.DisabledReason = webhooks.Disabled, 4, &exampleTime, new("by token:operations: the shop moves")
}

func exampleDelivery(change func(*webhooks.Delivery)) delivery {
	d := webhooks.Delivery{WebhookDeliveriesListRow: db.WebhookDeliveriesListRow{
		EndpointNo: 1, DeliveryNo: 1042, EventID: "evt_17_4_660e29dbaab52", Type: "order.completed", Subject: webhooks.OrderSubject(17), OrderID: "order-123", CreatedAt: exampleTime,
	}}
	change(&d)
	return deliveryOf(&d)
}

func exhausted(d *webhooks.Delivery) {
	last := exampleTime.Add(75 * time.Hour)
	d.State, d.Attempts, d.Status, d.AttemptedAt = webhooks.Exhausted, 10, 503, &last
	d.Log = []webhooks.Entry{{At: last, Status: 503, LatencyMs: 41, Answer: "closed for the day"}}
}

func resent(d *webhooks.Delivery) {
	exhausted(d)
	d.State, d.Attempts, d.DueAt = webhooks.Pending, 0, new(exampleTime.Add(80*time.Hour))
	d.Changes = []db.WebhookChangesOfDeliveryRow{{At: *d.DueAt, Verb: "resent", Actor: "token:operations", Reason: new("the shop was down")}}
}

func skipped(d *webhooks.Delivery) {
	exhausted(d)
	d.State, d.FinishedAt = webhooks.Skipped, new(exampleTime.Add(80*time.Hour))
	d.Changes = []db.WebhookChangesOfDeliveryRow{{At: *d.FinishedAt, Verb: "skipped", Actor: "token:operations", Reason: new("entered by hand")}}
}

func listed(d *webhooks.Delivery) {
	exhausted(d)
	d.Log = nil
}
