// Package events is the feed: every row of the history and every stock movement, once, with a number. The relay gives the
// numbers, one of all replicas at a time. The Reader reads the events after a cursor. An Event has the same bytes wherever
// it is sent.
//
// Nothing is copied: what is stored is which range of transactions a batch of numbers stands for. What a batch holds, and in
// which order, follows from the rows (the view pawl.events).
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

// RelayConfig is what a relay can be told. Zero values mean the defaults.
type RelayConfig struct {
	Lease      time.Duration // how long events are ours to number without a sign of life; 10 s
	Retention  time.Duration // how long the numbers of events are kept; 30 days
	Log        *slog.Logger
	Registerer prometheus.Registerer // of metrics; nil: none
}

// Relay gives events their numbers, if no other replica does it. Where it is taken over by another one while it is asleep, it
// writes nothing any more.
type Relay struct {
	query *db.Queries
	cfg   RelayConfig
	owner uuid.UUID
	log   *slog.Logger

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	// Of the loop alone.
	fence    int64
	renewAt  time.Time // when the lease is to be renewed; zero: it is not ours
	purgeAt  time.Time
	horizon  int64
	movedAt  time.Time // when the horizon was seen to move last
	troubled string    // what was logged last, so that it is logged once

	holds, heldBackNanos, numbered atomic.Int64 // of metrics
}

const (
	busy         = 10 * time.Millisecond // between looks while there are listeners and events
	soon         = 50 * time.Millisecond // without events
	unhurried    = time.Second           // without listeners
	purgeEvery   = time.Minute
	purgedAtOnce = 1000
)

// NewRelay returns a relay that does nothing yet.
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

// Stop ends it, and lets another replica go on at once.
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

// step does what is to be done now, and returns how long to wait until the next one.
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
		r.trouble(ctx, "forget old events", err)
	}
	return r.pause(&added)
}

// note keeps what a look has told.
func (r *Relay) note(added *db.EventBatchAddRow) {
	r.troubled = ""
	r.numbered.Add(added.Events)
	now := time.Now()
	if added.Horizon != r.horizon || !added.HeldBack {
		r.horizon, r.movedAt = added.Horizon, now
	}
	r.heldBackNanos.Store(int64(now.Sub(r.movedAt)))
}

// pause is how long to wait after a look.
func (r *Relay) pause(added *db.EventBatchAddRow) time.Duration {
	switch {
	case !added.Ours: // also on a server that has begun another timeline: the lease is taken anew
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

// lose forgets that the lease is ours.
func (r *Relay) lose() {
	r.renewAt = time.Time{}
	r.holds.Store(0)
	r.heldBackNanos.Store(0)
}

// trouble logs an error, once until something succeeds or another one comes.
func (r *Relay) trouble(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil || r.troubled == doing {
		return
	}
	r.troubled = doing
	r.log.Warn("events are not numbered", "doing", doing, "error", err)
}

// purge forgets, now and then, the numbers of old events.
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

// metrics are read at each scrape: those of the feed from the database, those of the relay from this process.
type metrics struct{ relay *Relay }

// Describe implements prometheus.Collector. It names nothing, because metrics are missing while the database is away.
func (metrics) Describe(chan<- *prometheus.Desc) {}

// scrapeLimit is how long the database may take for a scrape.
const scrapeLimit = 2 * time.Second

// Collect implements prometheus.Collector. It leaves out what the database does not say in time.
func (m metrics) Collect(to chan<- prometheus.Metric) {
	metric := func(name, help string, kind prometheus.ValueType, v float64) {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("pawl_events_"+name, help, nil, nil), kind, v)
	}
	metric("relay", "1: this replica numbers events.", prometheus.GaugeValue, float64(m.relay.holds.Load()))
	metric("numbered_total", "Events that this replica has numbered.", prometheus.CounterValue, float64(m.relay.numbered.Load()))
	metric("horizon_age_seconds", "For how long the oldest transaction that has not ended has been holding events back, "+
		"as seen by the replica that numbers them; 0: none does.", prometheus.GaugeValue, time.Duration(m.relay.heldBackNanos.Load()).Seconds())
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	state, err := m.relay.query.EventRelayState(ctx)
	if err != nil {
		return
	}
	metric("last_number", "The number of the last event. Of all replicas.", prometheus.GaugeValue, float64(state.LastEventNo))
	metric("lag_seconds", "For how long the oldest event that has no number yet has waited. Up to two seconds without listeners. "+
		"Of all replicas.", prometheus.GaugeValue, max(state.Lag, 0))
}
