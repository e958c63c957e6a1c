package browser

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pawl/client"
)

// axe is the text of axe-core.
var axe = sync.OnceValue(func() string {
	text, err := os.ReadFile(filepath.Join(shared.dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		panic(err)
	}
	return string(text)
})

// fill stores something of every kind, so that no screen is empty. Tests that change orders make orders of their own.
func fill() error {
	ctx := context.Background()
	return errors.Join(fillStock(ctx), fillWebhooks(ctx), fillOrders(ctx))
}

func fillStock(ctx context.Context) error {
	_, err := shared.api.SetInventory(ctx, "lamp", &client.SetInventoryParams{IfNoneMatch: "*"}, client.SetInventoryBody{OnHand: 40, Reason: "counted"})
	if err == nil {
		_, err = shared.api.AdjustInventory(ctx, "lamp", nil, client.AdjustInventoryBody{Change: -2, Reason: "two are broken"})
	}
	return err
}

func fillWebhooks(ctx context.Context) error {
	for path, about := range map[string]string{"/hook": "the shop", "/broken": "the warehouse, which is away"} {
		made, err := shared.api.CreateWebhookEndpoint(ctx, nil, client.WebhookEndpointBody{URL: "http://" + shared.shop.address() + path, Description: about})
		if err != nil {
			return err
		}
		if path == "/broken" {
			shared.broken = made.ID
		}
	}
	return nil
}

func fillOrders(ctx context.Context) error {
	for _, body := range []client.ProcessBody{
		{OrderID: "done-1", Amount: "49.90", Item: "lamp", Quantity: new(2), CustomerID: "c-17", Metadata: map[string]string{"cart": "c-1"}},
		{OrderID: "done-2", Amount: "9.99", Item: "widget"},
		{OrderID: "declined-1", Amount: "250", Item: "declined"},
		{OrderID: "declined-2", Amount: "99", Item: "declined"},
		{OrderID: "declined-3", Amount: "1.50", Item: "declined"},
		{OrderID: "stuck-1", Amount: "120", Item: "stuck", CustomerID: "c-18"},
		{OrderID: "stuck-2", Amount: "33", Item: "stuck"},
		{OrderID: "waits-1", Amount: "990000", Item: "yacht", CustomerID: "c-19"},
		{OrderID: "later-1", Amount: "15", Item: "later"},
		{OrderID: "scheduled-1", Amount: "15", Item: "widget", StartAt: time.Now().Add(100 * time.Hour)},
	} {
		if _, err := shared.api.ProcessOrder(ctx, &client.ProcessOrderParams{Prefer: "wait=1"}, body); err != nil {
			return err
		}
	}
	_, err := shared.api.RefundOrder(ctx, "done-1", nil, client.RefundBody{Amount: new("12.50"), Reason: "one is broken", RequestID: "ticket-1"})
	return err
}
