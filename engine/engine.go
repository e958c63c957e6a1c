package engine

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"pawl/batch"
	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
	"pawl/policy"
)

// Config is what an engine can be told. Zero values mean the defaults.
type Config struct {
	Lease            time.Duration // how long an order is ours without a sign of life; 10 s
	RecoveryInterval time.Duration // how often to look for orders left behind; 500 ms ± 20 %
	MaxBatch         int           // orders in one statement; 512
	MaxInFlight      int           // orders in memory before new ones are turned away; 20,000
	Currency         string        // of orders that name none; USD
	PublicURL        string        // where providers reach this service, for callbacks; http://localhost:3000
	Log              *slog.Logger

	// Bounds is what policies may name: which secrets, which addresses. By default no file, no private address,
	// and variables with policy.SecretEnvPrefix.
	Bounds policy.Bounds

	// Registerer takes the metrics that have labels. Nil means nobody reads them.
	Registerer prometheus.Registerer

	// SchemaVersion is the migration without which Ready fails; 0: any will do.
	SchemaVersion int64
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.RecoveryInterval = cmp.Or(c.RecoveryInterval, 500*time.Millisecond)
	c.MaxBatch = cmp.Or(c.MaxBatch, 512)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 20_000)
	c.Currency = cmp.Or(c.Currency, "USD")
	c.Bounds.SecretEnvPrefix = cmp.Or(c.Bounds.SecretEnvPrefix, policy.SecretEnvPrefix)
	c.PublicURL = strings.TrimSuffix(cmp.Or(c.PublicURL, "http://localhost:3000"), "/")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Engine drives orders against one database. Its methods are safe for concurrent use
// between Start and Stop.
type Engine struct {
	cfg   Config
	pool  *db.Pool
	query *db.Queries
	owner uuid.UUID // of this process start; who drives, in the database
	log   *slog.Logger

	Stats   Stats
	metrics *metrics
	Orders  *orders.Reader // what is stored

	notReady     rate.Sometimes // log lines that say why
	badWebhooks  rate.Sometimes // log lines of webhooks that anybody can send
	schemaHealth *schemaHealth  // whether the statements can run on the schema

	knownReads chan struct{} // a place for each read of an order while new ones are turned away

	runs     registry
	policies *policies
	watches  *watcher
	limiter  *concurrencyLimiter
	hot      *hotItems

	lateUndos *sideCalls
	refunds   *sideCalls
	identity  atomic.Pointer[identity]
	clock     atomic.Pointer[reading] // nil: the database's was never read
	overdue   atomic.Pointer[overdue]
	activity  *activity

	overview    overview
	errorGroups shared[ErrorGroups]

	lastAdmitted atomic.Pointer[int64] // the number of the order that was admitted last; the next one names it

	callPoolsMu sync.Mutex
	callPools   map[poolKey]*callPool

	// What waits for the same statement waits in a queue.
	admits     *queue               // new orders
	moves      map[fsm.State]*queue // orders whose step the ledger does
	preflights *queue               // orders that may have been called for before
	begins     *queue               // calls to be committed before they are made
	results    *queue               // answers to be committed
	waits      *queue               // orders to be held before their start, or paused
	leaves     *queue               // orders to be released
	unwritten  *queue               // fenced answers that could not be written
	queues     []*queue             // all of them
	turns      *batch.Turns         // of the ledger's statements

	// ctx is that of every statement, and ends when none must be sent any more. A caller who hangs up must not cut off
	// a compare-and-set, and no time limit can tell a statement that is lost from one that waits for a standby. db.Pool
	// can, and gives up the former.
	ctx      context.Context
	cancel   context.CancelFunc
	stopping atomic.Bool
	wg       sync.WaitGroup
}

// New returns an engine that does nothing until Start.
func New(pool *db.Pool, cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, pool: pool, schemaHealth: newSchemaHealth(cfg.Log), owner: uuid.New(), log: cfg.Log, metrics: newMetrics(cfg.Registerer),
		moves: map[fsm.State]*queue{}, callPools: map[poolKey]*callPool{},
		notReady: rate.Sometimes{Interval: time.Second}, badWebhooks: rate.Sometimes{Interval: time.Minute},
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.query = db.New(pool)
	e.Orders = orders.NewReader(e.ctx, e.query)
	e.runs.init()
	e.overdue.Store(&overdue{})
	e.knownReads = make(chan struct{}, knownReadsMost)
	e.policies = newPolicies(e.query, e.log)
	e.limiter = newConcurrencyLimiter(e)
	e.makeQueues()
	e.watches = newWatcher(e)
	e.lateUndos = newSideCalls(e, e.claimLateUndos)
	e.refunds = newSideCalls(e, e.claimRefunds)
	e.activity = newActivity(e)
	return e
}

// StartReading starts what reads need, and nothing that writes or calls: the loops that read policies, and that watch orders for
// callers who wait for a change. Instead of Start, it makes an engine that only shows what is stored. Such an engine must be
// asked for nothing else.
func (e *Engine) StartReading() {
	e.readClock()
	e.startPolicies()
	e.wg.Go(func() { e.watches.loop(e.ctx) })
}

// Start starts the goroutines: those of StartReading, one for each queue, and the loops that claim what is due, renew
// leases, give concurrency permits, look for deadlines, make side calls, and note what was done.
func (e *Engine) Start() {
	e.StartReading()
	e.readIdentity()
	e.readLastAdmitted()
	for _, q := range e.queues {
		e.wg.Go(func() { q.Run(e.ctx) })
	}
	e.wg.Go(e.recoverLoop)
	e.wg.Go(func() { e.every(e.cfg.Lease/6, e.renewAll) })
	e.wg.Go(func() { e.limiter.loop(e.ctx) })
	e.wg.Go(e.timerLoop)
	e.wg.Go(func() { e.lateUndos.loop(e.ctx) })
	e.wg.Go(func() { e.refunds.loop(e.ctx) })
	e.wg.Go(func() { e.every(activityEvery, func() { e.activity.note(e.ctx) }) })
}

// queue is a queue of orders that wait for the same statement.
type queue = batch.Queue[*run]

// remotePace is the time between two statements for answers of providers. It is short
// beside a call over a network, and makes batches of what would be single orders: a
// statement costs as much for one order as for ten.
const remotePace = 20 * time.Millisecond

func (e *Engine) makeQueues() {
	most := e.cfg.MaxBatch
	remote := func() time.Duration { return remotePace }
	e.turns = batch.NewTurns()
	e.hot = &hotItems{engine: e, items: map[string]int{}}
	e.hot.queue = e.newQueue("hot", batch.Options{Most: min(most, answersMost), NoBacklog: true}, e.hot.flush) // waits for locks
	e.admits = e.newQueue("admit", batch.Options{Most: most, Pace: e.admissionPace, Turns: e.turns}, e.admit)
	for _, state := range fsm.States() { // in the order of an order's way, which turns go by
		if ledger.Moves[state] == nil {
			continue
		}
		e.moves[state] = e.newQueue(string(state), batch.Options{Most: most, Turns: e.turns}, func(runs []*run) { e.moveOut(state, runs, e.hot.add) })
	}
	e.preflights = e.newQueue("preflight", batch.Options{Most: most}, e.runPreflight)
	e.begins = e.newQueue("begin_call", batch.Options{Most: most, Pace: remote}, e.begin)
	e.results = e.newQueue("call_result", batch.Options{Most: min(most, answersMost), Pace: remote},
		func(runs []*run) { e.commitResults(e.hot.divert(runs), e.hot.add) })
	e.waits = e.newQueue("hold", batch.Options{Most: most, NoBacklog: true}, e.holdWaiting)
	e.leaves = e.newQueue("release", batch.Options{Most: most, NoBacklog: true}, e.leave)
	e.unwritten = e.newQueue("fenced_answer", batch.Options{Most: most, NoBacklog: true}, e.keepUnwritten) // one by one
}

// newQueue makes a queue; its name is that in the metrics.
func (e *Engine) newQueue(name string, options batch.Options, flush func([]*run)) *queue {
	size := e.metrics.batchOrders.WithLabelValues(name)
	q := batch.New(options, func(runs []*run) {
		size.Observe(float64(len(runs)))
		flush(runs)
	})
	e.queues = append(e.queues, q)
	return q
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
