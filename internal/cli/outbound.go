package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/events"
	"pawl/internal/webhooks"
)

// outbound is what tells others of events: it numbers them, and sends them to webhook endpoints, each where this replica is the one
// that does. People see and change the endpoints over the API.
type outbound struct {
	feed      *events.Reader
	relay     *events.Relay
	deliverer *webhooks.Deliverer
	endpoints *webhooks.Endpoints
}

// telemetry is where the parts of the service put what they have to tell.
type telemetry struct {
	registry *prometheus.Registry
	log      *slog.Logger
}

func newOutbound(cfg *config, query *db.Queries, orders *engine.Engine, to telemetry) *outbound {
	feed := events.NewReader(query, orders.Orders)
	return &outbound{
		feed:  feed,
		relay: events.NewRelay(query, events.RelayConfig{Lease: cfg.Lease, Retention: cfg.EventRetention, Log: to.log, Registerer: to.registry}),
		deliverer: webhooks.NewDeliverer(query, feed, webhooks.Config{
			Lease: cfg.Lease, Retention: cfg.EventRetention, AllowPrivate: cfg.Bounds.AllowPrivate, Log: to.log, Registerer: to.registry,
		}),
		endpoints: webhooks.NewEndpoints(query, orders.Orders, webhooks.Options{Private: cfg.Bounds.AllowPrivate, Latest: feed.Latest, Now: orders.Now}),
	}
}

func (o *outbound) start() {
	o.relay.Start()
	o.deliverer.Start()
}

// stop begins to end both, until a deadline. What it returns is closed when they have.
func (o *outbound) stop(deadline time.Time) <-chan error {
	stopped := make(chan error)
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		o.deliverer.Stop(ctx)
		o.relay.Stop()
	}()
	return stopped
}
