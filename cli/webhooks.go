package cli

import (
	"pawl/db"
	"pawl/engine"
	"pawl/events"
	"pawl/webhooks"
)

// webhookEndpoints are those that people see and change over the API.
func webhookEndpoints(cfg *config, orders *engine.Engine, query *db.Queries) *webhooks.Endpoints {
	return webhooks.NewEndpoints(query, orders.Orders, webhooks.Options{
		Private: cfg.Bounds.AllowPrivate, Latest: events.NewReader(query, orders.Orders).Latest, Now: orders.Now,
	})
}
