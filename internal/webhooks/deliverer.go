// Package webhooks sends events to the configured endpoints: in order for each subject (an order, an item), at least
// once, and signed as in Standard Webhooks 1.0.0.
//
// Each endpoint is served by one replica, which holds a lease on its row. The replica reads the feed from the
// endpoint's position, stores a delivery for each event that the endpoint subscribes to, sends those that are due, and
// stores the results. One goroutine of the owner (endpointSender) runs all statements about an endpoint. Each raises
// the endpoint's seq, so that a person's change in between is noticed.
package webhooks

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/events"
)

// Config configures a Deliverer. Zero values mean the defaults.
type Config struct {
	Lease        time.Duration         // of endpoints; 10 s
	Retention    time.Duration         // of finished deliveries; 30 days
	AllowPrivate bool                  // allow endpoints on this machine and in private networks
	Registerer   prometheus.Registerer // of metrics; nil: none
	Log          *slog.Logger          // nil: discarded
}

const (
	lookEvery = 100 * time.Millisecond // while there are endpoints
	unhurried = time.Second            // while there are none
)

// Deliverer sends events to the endpoints whose leases it holds. Replicas share the endpoints: each claims one at a time.
type Deliverer struct {
	query   *db.Queries
	feed    *events.Reader
	sender  *sender
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	owner   uuid.UUID

	statements, sending       context.Context // statements outlive requests
	endStatements, endSending context.CancelFunc
	stopping                  chan struct{}
	stop                      sync.Once
	loop, running             sync.WaitGroup // the loop, and the senders

	senders map[int32]*endpointSender // of the loop alone
	renewed time.Time                 // of the loop alone
	held    atomic.Int32              // number of senders
}

// NewDeliverer returns a deliverer that reads events from feed. Call Start to begin.
func NewDeliverer(query *db.Queries, feed *events.Reader, cfg Config) *Deliverer {
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Retention = cmp.Or(cfg.Retention, 30*24*time.Hour)
	d := &Deliverer{
		query: query, feed: feed, sender: newSender(cfg.AllowPrivate), cfg: cfg, owner: uuid.New(),
		log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), metrics: newMetrics(cfg.Registerer, query),
		stopping: make(chan struct{}), senders: map[int32]*endpointSender{},
	}
	d.statements, d.endStatements = context.WithCancel(context.Background())
	d.sending, d.endSending = context.WithCancel(d.statements)
	return d
}

// Start begins to deliver in the background. It must be called only once.
func (d *Deliverer) Start() {
	d.loop.Go(func() {
		tick := time.NewTimer(0)
		defer tick.Stop()
		for {
			select {
			case <-d.stopping:
				return
			case <-tick.C:
				tick.Reset(d.step())
			}
		}
	})
}

// Stop starts no more attempts, waits until ctx ends for those under way, and releases the endpoints. A second call has
// no effect.
func (d *Deliverer) Stop(ctx context.Context) { d.stop.Do(func() { d.end(ctx) }) }

func (d *Deliverer) end(ctx context.Context) {
	close(d.stopping)
	defer context.AfterFunc(ctx, func() {
		d.endSending()
		time.AfterFunc(releaseLimit, d.endStatements) // the database may be away
	})()
	d.loop.Wait()
	for _, c := range d.senders {
		c.leave()
	}
	d.running.Wait()
	d.endSending()
	release, cancel := context.WithTimeout(d.statements, releaseLimit)
	defer cancel()
	if len(d.senders) > 0 {
		if err := d.query.WebhookEndpointsRelease(release, d.owner); err != nil {
			d.log.Warn("release webhook endpoints", "error", err)
		}
	}
	d.endStatements()
	d.sender.CloseIdleConnections()
}

// releaseLimit is how long Stop waits for the database, which may be away.
const releaseLimit = 2 * time.Second

// step reads all endpoints, passes them to their senders, and claims one that has no owner. It returns how long to wait
// until the next step.
func (d *Deliverer) step() time.Duration {
	d.renew()
	heard := time.Now() // the rows that follow are not older than this
	rows, err := d.query.WebhookEndpointsLook(d.statements)
	if err != nil {
		d.log.Warn("read webhook endpoints", "error", err)
		return unhurried
	}
	free, enabled := d.share(rows, heard)
	if enabled {
		d.feed.Want(d.statements)
	}
	if slices.ContainsFunc(rows, d.leaseTooLong) {
		if err := d.query.WebhookEndpointsShortenLeases(d.statements, d.cfg.Lease.Seconds()); err != nil {
			d.log.Warn("shorten the leases of webhook endpoints", "error", err)
		}
	}
	if free {
		err := d.query.WebhookEndpointClaim(d.statements, db.WebhookEndpointClaimParams{Owner: d.owner, LeaseSeconds: d.cfg.Lease.Seconds()})
		if err != nil { // it may have been claimed all the same, which the next step finds out
			d.log.Warn("claim a webhook endpoint", "error", err)
		}
	}
	if len(rows) == 0 {
		return unhurried
	}
	return lookEvery
}

// leaseTooLong reports whether a lease ends later than is possible, because the clock of the database was set back.
func (d *Deliverer) leaseTooLong(row db.WebhookEndpointsLookRow) bool {
	return row.WebhookEndpoint.DueAt.Sub(row.At) > 2*d.cfg.Lease
}

// share passes each sender the row of its endpoint, starts senders for endpoints of ours that have none, and ends those
// whose endpoint belongs to another replica.
func (d *Deliverer) share(rows []db.WebhookEndpointsLookRow, heard time.Time) (free, enabled bool) {
	ours := map[int32]bool{}
	for i := range rows {
		e := &rows[i].WebhookEndpoint
		enabled = enabled || e.State == Enabled
		if e.Owner == nil || *e.Owner != d.owner {
			free = free || !e.DueAt.After(rows[i].At)
			continue
		}
		if c := d.senderOf(e); c != nil {
			ours[e.EndpointNo] = true
			c.see(&look{rows[i], heard})
		}
	}
	for no, c := range d.senders {
		if !ours[no] {
			c.leave()
		}
		select {
		case <-c.gone:
			delete(d.senders, no)
		default:
		}
	}
	d.held.Store(int32(len(d.senders)))
	return free, enabled
}

// senderOf returns the sender of an endpoint of ours, or nil while the one of an earlier claim has not ended.
func (d *Deliverer) senderOf(e *db.WebhookEndpoint) *endpointSender {
	c, ok := d.senders[e.EndpointNo]
	switch {
	case ok && c.fence == e.Fence:
		return c
	case ok:
		c.leave()
		return nil
	}
	c = newEndpointSender(d, e)
	d.senders[e.EndpointNo] = c
	d.running.Go(c.run)
	return c
}

// renew extends our leases, each third of their duration.
func (d *Deliverer) renew() {
	if len(d.senders) == 0 || time.Since(d.renewed) < d.cfg.Lease/3 {
		return
	}
	d.renewed = time.Now()
	if err := d.query.WebhookEndpointsRenew(d.statements, db.WebhookEndpointsRenewParams{
		Owner: d.owner, EndpointNos: slices.Collect(maps.Keys(d.senders)), LeaseSeconds: d.cfg.Lease.Seconds(),
	}); err != nil {
		d.log.Warn("renew the leases of webhook endpoints", "error", err)
	}
}

// atOnce is how many concurrent requests an endpointSender may make: each has a fixed part, so that endpoints don't
// compete.
func (d *Deliverer) atOnce() int {
	return max(1, min(mostAtOnce, mostOverall/max(1, int(d.held.Load()))))
}
