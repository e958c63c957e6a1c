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

	"pawl/batch"
	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
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
	PublicURL   string        // where providers reach this service, for callbacks; http://localhost:3000
	Log         *slog.Logger

	// SchemaVersion is the migration without which Ready fails; 0: any will do.
	SchemaVersion int64
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.Poll = cmp.Or(c.Poll, 500*time.Millisecond)
	c.MaxSet = cmp.Or(c.MaxSet, 512)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 20_000)
	c.Currency = cmp.Or(c.Currency, "USD")
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

	Stats Stats

	notReady perSecond // log lines that say why
	fitness  *fitness  // whether the statements can run on the schema

	knownReads chan struct{} // a place for each read of an order while new ones are turned away

	runs    registry
	admits  *queue
	lines   map[fsm.State]*queue
	slow    *slowLane
	watches *watcher
	queues  []*queue // all of them

	policies    *policies
	admitWith   *queue // of orders that bring terms
	admitOut    *queue // of those whose charge is outside: as soon as answers are
	begins      *queue // attempts to be committed before their calls
	records     *queue // answers to be committed
	slowRecords *slowLane
	inbox       *queue // orders that were called for before: an answer may be there
	voids       *queue // orders of a later generation, before their charge
	undos       *queue // orders on their way back, before their undo
	waits       *queue // orders to be held before their start, or paused
	leaving     *queue // orders to be handed back
	unwritten   *queue // fenced answers that could not be written
	turns       *turns
	lanesMu     sync.Mutex
	lanes       map[laneKey]*lane
	identity    atomic.Pointer[identity]
	clock       atomic.Pointer[reading] // nil: the database's was never read

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
		cfg: cfg, pool: pool, fitness: newFitness(cfg.Log), owner: uuid.New(), log: cfg.Log,
		lines: map[fsm.State]*queue{},
	}
	e.query = db.New(pool)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.runs.init()
	e.knownReads = make(chan struct{}, knownReadsMost)
	e.policies = newPolicies(e.query, e.log)
	e.lanes = map[laneKey]*lane{}
	e.turns = newTurns(e)
	e.makeQueues()
	e.watches = newWatcher(e)
	return e
}

// Start starts the goroutines: one per queue, one that watches the orders of other
// replicas for our callers, one that claims what is due, one that renews leases.
func (e *Engine) Start() {
	e.readClock()
	e.loadPolicies(e.ctx)
	for _, q := range e.queues {
		e.wg.Go(func() { q.Run(e.ctx) })
	}
	e.wg.Go(func() { e.watches.loop(e.ctx) })
	e.wg.Go(func() { e.recoverLoop(e.ctx) })
	e.wg.Go(func() { e.renewLoop(e.ctx) })
	e.wg.Go(func() { e.turns.loop(e.ctx) })
	e.wg.Go(func() { e.timerLoop(e.ctx) })
	e.wg.Go(func() { e.lateUndoLoop(e.ctx) })
}

// queue is a queue of orders that wait for the same statement.
type queue = batch.Queue[*run]

// outsidePace is the time between two statements for answers of providers. It is short
// beside a call over a network, and makes sets of what would be single orders: a
// statement costs as much for one order as for ten.
const outsidePace = 20 * time.Millisecond

func (e *Engine) makeQueues() {
	most := e.cfg.MaxSet
	plain := batch.Options{Most: most}
	paced := batch.Options{Most: most, Pace: func() time.Duration { return outsidePace }}
	aside := batch.Options{Most: most, NoBacklog: true} // its orders go one by one, or wait for a lock
	answers := paced
	answers.Most = min(most, answersMost)

	e.admits, e.admitWith, e.admitOut = e.newQueue(plain, e.admit), e.newQueue(plain, e.admitTerms), e.newQueue(paced, e.admitTerms)
	for state, move := range ledger.Moves {
		e.lines[state] = e.newQueue(plain, func(set []*run) { e.move(state, move, set) })
	}
	e.slow = newSlowLane(e, aside, waitsForStock, func(state fsm.State, set []*run, busy func([]*run)) {
		e.moveOr(state, ledger.Moves[state], set, busy)
	})
	e.slowRecords = newSlowLane(e, batch.Options{Most: answersMost, NoBacklog: true}, e.sellsStock,
		func(_ fsm.State, set []*run, busy func([]*run)) { e.recordOr(set, busy) })
	e.begins, e.records = e.newQueue(paced, e.beginSet), e.newQueue(answers, e.recordSet)
	e.inbox, e.voids, e.undos = e.newQueue(plain, e.lookInbox), e.newQueue(aside, e.lookVoids), e.newQueue(aside, e.lookUndos)
	e.waits, e.leaving, e.unwritten = e.newQueue(aside, e.waitSet), e.newQueue(aside, e.leaveSet), e.newQueue(aside, e.keepUnwritten)
}

func (e *Engine) newQueue(options batch.Options, flush func([]*run)) *queue {
	q := batch.New(options, flush)
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
