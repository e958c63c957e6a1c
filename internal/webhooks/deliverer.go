// Package webhooks sends events to endpoints that people have named: each event of a subject (an order, an item) after the
// one before it, at least once, signed as Standard Webhooks 1.0.0 says.
//
// An endpoint is sent to by one replica, which holds a lease on its row. It reads the feed from where the endpoint stands,
// stores a delivery for each event that the endpoint wants, sends those that are due, and stores what came of them. All
// statements about an endpoint come from one goroutine of its owner (endpointSender), and each raises the seq of the endpoint, so
// a person's request in between is noticed.
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

// Config is what a Deliverer can be told. Zero values mean the defaults.
type Config struct {
	Lease        time.Duration         // how long an endpoint is ours without a sign of life; 10 s
	Retention    time.Duration         // how long finished deliveries are kept; 30 days
	AllowPrivate bool                  // endpoints may be on this machine and in private networks
	Registerer   prometheus.Registerer // of metrics; nil: none
	Log          *slog.Logger          // nil: discarded
}

const (
	lookEvery = 100 * time.Millisecond // while there are endpoints
	unhurried = time.Second            // while there are none
)

// Deliverer sends events to the endpoints that it gets hold of. Replicas share them: each takes up one at a time.
type Deliverer struct {
	query   *db.Queries
	feed    *events.Reader
	sender  *Sender
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	owner   uuid.UUID

	statements, sending       context.Context // of statements, which outlive what is sent, and of what is sent
	endStatements, endSending context.CancelFunc
	stopping                  chan struct{}
	stop                      sync.Once
	loop, running             sync.WaitGroup // the loop, and the senders

	senders map[int32]*endpointSender // of the loop alone
	renewed time.Time                 // of the loop alone
	held    atomic.Int32              // how many senders there are
}

// NewDeliverer returns a deliverer that does nothing yet. It reads the events from feed.
func NewDeliverer(query *db.Queries, feed *events.Reader, cfg Config) *Deliverer {
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Retention = cmp.Or(cfg.Retention, 30*24*time.Hour)
	d := &Deliverer{
		query: query, feed: feed, sender: NewSender(cfg.AllowPrivate), cfg: cfg, owner: uuid.New(),
		log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), metrics: newMetrics(cfg.Registerer, query),
		stopping: make(chan struct{}), senders: map[int32]*endpointSender{},
	}
	d.statements, d.endStatements = context.WithCancel(context.Background())
	d.sending, d.endSending = context.WithCancel(d.statements)
	return d
}

// Start begins to deliver in the background. Call it once.
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

// Stop starts no more attempts, waits for those under way until ctx ends, and hands the endpoints back. A second call does
// nothing.
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
			d.log.Warn("hand back webhook endpoints", "error", err)
		}
	}
	d.endStatements()
	d.sender.Close()
}

// releaseLimit is how long Stop waits for the database, which may be away.
const releaseLimit = 2 * time.Second

// step looks at all endpoints, tells the senders about theirs, and claims one that has no owner. It returns how
// long to wait until the next one.
func (d *Deliverer) step() time.Duration {
	d.renew()
	heard := time.Now() // what the database says is not older than this
	rows, err := d.query.WebhookEndpointsLook(d.statements)
	if err != nil {
		d.log.Warn("look at webhook endpoints", "error", err)
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
		if err != nil { // it may be ours for all that: the next look tells
			d.log.Warn("take up a webhook endpoint", "error", err)
		}
	}
	if len(rows) == 0 {
		return unhurried
	}
	return lookEvery
}

// leaseTooLong reports whether a lease lies further ahead than any can: the clock of the database was set back since it was written.
func (d *Deliverer) leaseTooLong(row db.WebhookEndpointsLookRow) bool {
	return row.WebhookEndpoint.DueAt.Sub(row.At) > 2*d.cfg.Lease
}

// share hands each sender the row of its endpoint, begins one for each endpoint that is ours and has none, and ends those whose
// endpoint is another's.
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

// senderOf is the sender of an endpoint that is ours; nil: the one of an earlier claim has not ended yet.
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

// renew extends the leases of what is ours, a third of their time after the last renewal.
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

// atOnce is how many requests an endpointSender may make at one time: each has its part, so that no endpoint takes those of another.
func (d *Deliverer) atOnce() int {
	return max(1, min(mostAtOnce, mostOverall/max(1, int(d.held.Load()))))
}
