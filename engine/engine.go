package engine

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/fsm"
	"pawl/step"
)

// Order is the stored order with what stands and what was undone of its effects.
type Order = db.OrdersByIDRow

// Config is what an engine can be told. Zero values mean the defaults.
type Config struct {
	Lease       time.Duration // how long an order is ours without a sign of life; 10 s
	Poll        time.Duration // how often to look for orders left behind; 500 ms ± 20 %
	MaxSet      int           // orders in one statement; 512
	MaxInFlight int           // orders in memory before new ones are turned away; 20,000
	Currency    string        // of orders that name none; USD
	Log         *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.Poll = cmp.Or(c.Poll, 500*time.Millisecond)
	c.MaxSet = cmp.Or(c.MaxSet, 512)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 20_000)
	c.Currency = cmp.Or(c.Currency, "USD")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Engine drives orders against one database. Its methods are safe for concurrent use
// between Start and Stop.
type Engine struct {
	cfg   Config
	pool  *pgxpool.Pool
	query *db.Queries
	owner uuid.UUID // of this process start; who drives, in the database
	log   *slog.Logger

	Stats Stats

	runs    registry
	admits  *line
	lines   map[fsm.State]*line
	slow    *slowLane
	watches *watcher

	ctx      context.Context // ends when statements must not be sent any more
	cancel   context.CancelFunc
	stopping atomic.Bool
	wg       sync.WaitGroup
}

// New returns an engine that does nothing until Start.
func New(pool *pgxpool.Pool, cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, pool: pool, query: db.New(pool), owner: uuid.New(), log: cfg.Log,
		lines: map[fsm.State]*line{},
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.runs.init()
	e.admits = newLine(cfg.MaxSet, e.admit)
	for state, move := range step.Ledger {
		e.lines[state] = newLine(cfg.MaxSet, func(set []*run) { e.move(state, move, set) })
	}
	e.slow = newSlowLane(e)
	e.watches = newWatcher(e)
	return e
}

// Start starts the goroutines: one per line, one that watches the orders of other
// replicas for our callers, one that claims what is due, one that renews leases.
func (e *Engine) Start() {
	for _, l := range e.lines {
		e.goLine(l)
	}
	e.goLine(e.admits)
	e.goLine(e.slow.line)
	e.wg.Go(func() { e.watches.loop(e.ctx) })
	e.wg.Go(func() { e.recoverLoop(e.ctx) })
	e.wg.Go(func() { e.renewLoop(e.ctx) })
}

func (e *Engine) goLine(l *line) {
	e.wg.Go(func() { l.loop(e.ctx) })
}

// Stop takes no more orders, lets those in flight finish until ctx ends, hands the
// others back so that another replica takes them over at once, and waits for every
// goroutine. Callers that still wait are answered with what is known.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopping.Store(true)
	e.watches.dropAll()
	err := e.runs.waitEmpty(ctx)
	e.cancel()
	e.wg.Wait()
	e.handBack()
	return err
}

// Ready returns nil when the database answers and its schema is there.
func (e *Engine) Ready(ctx context.Context) error {
	if e.stopping.Load() {
		return ErrStopping
	}
	_, err := e.query.InstallationID(ctx)
	return err
}
