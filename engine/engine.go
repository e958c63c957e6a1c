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

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
)

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

	Stats  Stats
	Orders *orders.Reader // what is stored

	notReady perSecond // log lines that say why
	fitness  *fitness  // whether the statements can run on the schema

	knownReads chan struct{} // a place for each read of an order while new ones are turned away

	runs    registry
	admits  *line
	lines   map[fsm.State]*line
	slow    *slowLane
	watches *watcher
	aside   []*line // those of no state

	policies    *policies
	admitWith   *line // of orders that bring terms
	admitOut    *line // of those whose charge is outside: as soon as answers are
	begins      *line // attempts to be committed before their calls
	records     *line // answers to be committed
	slowRecords *slowLane
	inbox       *line // orders that were called for before: an answer may be there
	voids       *line // orders of a later generation, before their charge
	undos       *line // orders on their way back, before their undo
	waits       *line // orders to be held before their start, or paused
	leaving     *line // orders to be handed back
	unwritten   *line // fenced answers that could not be written
	turns       *turns
	lanesMu     sync.Mutex
	lanes       map[laneKey]*lane
	identity    atomic.Pointer[identity]
	clock       atomic.Pointer[reading] // nil: the database's was never read

	ctx      context.Context // ends when statements must not be sent any more
	cancel   context.CancelFunc
	stopping atomic.Bool
	wg       sync.WaitGroup
}

// New returns an engine that does nothing until Start.
func New(pool *db.Pool, cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, pool: pool, fitness: newFitness(cfg.Log), owner: uuid.New(), log: cfg.Log,
		lines: map[fsm.State]*line{},
	}
	e.query = db.New(pool)
	e.Orders = orders.NewReader(e.query)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.runs.init()
	e.knownReads = make(chan struct{}, knownReadsMost)
	e.admits = newLine(cfg.MaxSet, e.admit)
	for state, move := range ledger.Moves {
		e.lines[state] = newLine(cfg.MaxSet, func(set []*run) { e.move(state, move, set) })
	}
	e.slow = newSlowLane(e, cfg.MaxSet, waitsForStock, func(state fsm.State, set []*run, busy func([]*run)) {
		e.moveOr(state, ledger.Moves[state], set, busy)
	})
	e.slowRecords = newSlowLane(e, answersMost, e.sellsStock, func(_ fsm.State, set []*run, busy func([]*run)) { e.recordOr(set, busy) })
	e.policies = newPolicies(e.query, e.log)
	e.lanes = map[laneKey]*lane{}
	e.turns = newTurns(e)
	e.admitWith = newLine(cfg.MaxSet, e.admitTerms)
	e.admitOut = newLine(cfg.MaxSet, e.admitTerms)
	e.admitOut.pace = outsidePace
	e.begins, e.records = newLine(cfg.MaxSet, e.beginSet), newLine(min(cfg.MaxSet, answersMost), e.recordSet)
	e.begins.pace, e.records.pace = outsidePace, outsidePace
	e.inbox, e.voids, e.undos = newLine(cfg.MaxSet, e.lookInbox), newLine(cfg.MaxSet, e.lookVoids), newLine(cfg.MaxSet, e.lookUndos)
	e.waits, e.leaving = newLine(cfg.MaxSet, e.waitSet), newLine(cfg.MaxSet, e.leaveSet)
	e.unwritten = newLine(cfg.MaxSet, e.keepUnwritten)
	e.voids.apart, e.undos.apart, e.waits.apart, e.leaving.apart, e.unwritten.apart = true, true, true, true, true
	e.aside = []*line{e.admits, e.admitWith, e.admitOut, e.begins, e.records, e.inbox, e.voids, e.undos, e.waits, e.leaving, e.unwritten, e.slow.line, e.slowRecords.line}
	e.watches = newWatcher(e)
	return e
}

// Start starts the goroutines: one per line, one that watches the orders of other
// replicas for our callers, one that claims what is due, one that renews leases.
func (e *Engine) Start() {
	e.readClock()
	e.loadPolicies(e.ctx)
	for _, l := range e.lines {
		e.goLine(l)
	}
	for _, l := range e.aside {
		e.goLine(l)
	}
	e.wg.Go(func() { e.watches.loop(e.ctx) })
	e.wg.Go(func() { e.recoverLoop(e.ctx) })
	e.wg.Go(func() { e.renewLoop(e.ctx) })
	e.wg.Go(func() { e.turns.loop(e.ctx) })
	e.wg.Go(func() { e.timerLoop(e.ctx) })
	e.wg.Go(func() { e.lateUndoLoop(e.ctx) })
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
