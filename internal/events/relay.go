// Package events is the feed: every row of the history and every stock movement, once, with a number. The Relay assigns
// the numbers, on one replica at a time. The Reader reads the events after a cursor, and the Tail keeps the newest ones
// for listeners. An Event has the same bytes wherever it is sent.
//
// Events are not copied. Stored is only which range of transactions a batch of numbers covers; its events and their
// order follow from the rows (the view pawl.events).
package events

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/pg"
)

// RelayConfig configures a Relay. Zero values mean the defaults.
type RelayConfig struct {
	Lease      time.Duration // how long another replica waits before it takes over; 10 s
	Retention  time.Duration // how long events stay in the feed; 30 days
	Log        *slog.Logger
	Registerer prometheus.Registerer // of metrics; nil: none
}

// Relay numbers events while it holds the lease, which one replica can have. A relay that was suspended and has lost
// its lease writes nothing.
type Relay struct {
	query *db.Queries
	cfg   RelayConfig
	owner uuid.UUID
	log   *slog.Logger

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	// Used only by the loop.
	fence    int64
	renewAt  time.Time // when to renew the lease; zero: it is not ours
	purgeAt  time.Time
	horizon  int64
	movedAt  time.Time // when the horizon last moved
	troubled string    // the last logged failure, to log it once

	holds, heldBackNanos, numbered atomic.Int64 // for the metrics
}

const (
	busy         = 10 * time.Millisecond // between looks while there are listeners and events
	soon         = 50 * time.Millisecond // without events
	unhurried    = time.Second           // without listeners
	purgeEvery   = time.Minute
	purgedAtOnce = 1000
)

// NewRelay returns a relay that does nothing until Start.
func NewRelay(query *db.Queries, cfg RelayConfig) *Relay {
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Retention = cmp.Or(cfg.Retention, 30*24*time.Hour)
	r := &Relay{query: query, cfg: cfg, owner: uuid.New(), log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))}
	r.life, r.end = context.WithCancel(context.Background())
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(metrics{r})
	}
	return r
}

// Start begins to number events in the background. Call it once.
func (r *Relay) Start() {
	r.running.Go(func() {
		for r.life.Err() == nil {
			pg.Sleep(r.life, r.step(r.life))
		}
	})
}

// releaseLimit is how long Stop waits for the database, which may be away.
const releaseLimit = 2 * time.Second

// Stop ends the relay and releases the lease, so that another replica can take over at once.
func (r *Relay) Stop() {
	r.end()
	r.running.Wait()
	if r.renewAt.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if _, err := r.query.EventRelayRelease(ctx, db.EventRelayReleaseParams{Owner: r.owner, Fence: r.fence}); err != nil {
		r.log.Warn("release the lease of the event relay", "error", err)
	}
}

// step numbers the next events, and returns how long to wait until the next step.
func (r *Relay) step(ctx context.Context) time.Duration {
	if !time.Now().Before(r.renewAt) {
		if err := r.hold(ctx); err != nil {
			r.trouble(ctx, "take the lease of the event relay", err)
			return unhurried
		}
	}
	if r.renewAt.IsZero() {
		return min(unhurried, r.cfg.Lease/4)
	}
	added, err := r.query.EventBatchAdd(ctx, db.EventBatchAddParams{Owner: r.owner, Fence: r.fence})
	if err != nil {
		r.lose()
		r.trouble(ctx, "number events", err)
		return unhurried
	}
	r.note(&added)
	if err := r.purge(ctx); err != nil {
		r.trouble(ctx, "remove old events", err)
	}
	return r.pause(&added)
}

// note updates the metrics after a step.
func (r *Relay) note(added *db.EventBatchAddRow) {
	r.troubled = ""
	r.numbered.Add(added.Events)
	now := time.Now()
	if added.Horizon != r.horizon || !added.HeldBack {
		r.horizon, r.movedAt = added.Horizon, now
	}
	r.heldBackNanos.Store(int64(now.Sub(r.movedAt)))
}

func (r *Relay) pause(added *db.EventBatchAddRow) time.Duration {
	switch {
	case !added.Ours: // or the server has begun another timeline, which needs a new lease
		r.lose()
		return soon
	case added.More && added.Events > 0:
		return 0
	case !added.Wanted:
		return unhurried
	case added.Events > 0:
		return busy
	default:
		return soon
	}
}

// hold takes or renews the lease, if it is free or ours.
func (r *Relay) hold(ctx context.Context) error {
	until := time.Now().Add(r.cfg.Lease / 3)
	held, err := r.query.EventRelayHold(ctx, db.EventRelayHoldParams{Owner: r.owner, LeaseSeconds: r.cfg.Lease.Seconds()})
	if errors.Is(err, pgx.ErrNoRows) {
		r.lose()
		return nil
	}
	if err != nil {
		return err
	}
	if r.renewAt.IsZero() {
		r.log.Info("this replica numbers events", "fence", held.Fence, "epoch", held.Epoch)
	}
	r.fence, r.renewAt = held.Fence, until
	r.holds.Store(1)
	return nil
}

// lose records that the lease is not ours.
func (r *Relay) lose() {
	r.renewAt = time.Time{}
	r.holds.Store(0)
	r.heldBackNanos.Store(0)
}

// trouble logs an error, once until a step succeeds or another action fails.
func (r *Relay) trouble(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil || r.troubled == doing {
		return
	}
	r.troubled = doing
	r.log.Warn("events are not numbered", "doing", doing, "error", err)
}

// purge removes old events from the feed, a few at a time.
func (r *Relay) purge(ctx context.Context) error {
	if time.Now().Before(r.purgeAt) {
		return nil
	}
	n, err := r.query.EventBatchesPurge(ctx, db.EventBatchesPurgeParams{
		RetentionSeconds: r.cfg.Retention.Seconds(), Most: purgedAtOnce})
	if err != nil || n < purgedAtOnce {
		r.purgeAt = time.Now().Add(purgeEvery)
	}
	return err
}

// metrics are read at each scrape: of the feed from the database, of the relay from this process.
type metrics struct{ relay *Relay }

// Describe implements prometheus.Collector. It names nothing, because metrics are missing while the database is away.
func (metrics) Describe(chan<- *prometheus.Desc) {}

// scrapeLimit is how long the database may take for a scrape.
const scrapeLimit = 2 * time.Second

// Collect implements prometheus.Collector. If the database does not answer in time, it leaves out the feed.
func (m metrics) Collect(to chan<- prometheus.Metric) {
	metric := func(name, help string, kind prometheus.ValueType, v float64) {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("pawl_events_"+name, help, nil, nil), kind, v)
	}
	metric("relay", "1: this replica numbers events.", prometheus.GaugeValue, float64(m.relay.holds.Load()))
	metric("numbered_total", "Events numbered by this replica.", prometheus.CounterValue, float64(m.relay.numbered.Load()))
	metric("horizon_age_seconds", "How long the oldest open transaction has held events back, "+
		"as seen by the replica that numbers them; 0: none does.",
		prometheus.GaugeValue, time.Duration(m.relay.heldBackNanos.Load()).Seconds())
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	state, err := m.relay.query.EventRelayState(ctx)
	if err != nil {
		return
	}
	metric("last_number", "Number of the last event. Of all replicas.", prometheus.GaugeValue, float64(state.LastEventNo))
	metric("lag_seconds", "How long the oldest event without a number has waited; up to two seconds if there are no listeners. "+
		"Of all replicas.", prometheus.GaugeValue, max(state.Lag, 0))
}
