package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/cell"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
)

// Config holds the settings of an engine. Zero values mean the defaults.
type Config struct {
	Lease            time.Duration // of orders; 10 s
	RecoveryInterval time.Duration // how often to scan for due orders; 500 ms ± 20 %
	MaxBatch         int           // orders in one statement; 512
	MaxInFlight      int           // orders in memory before new ones are rejected; 20,000
	Currency         string        // default currency; USD
	PublicURL        string        // where providers reach this service, for callbacks; http://localhost:3000
	Cell             cell.Cell     // which orders it has; zero: all. It must be that of the database
	Log              *slog.Logger

	// OrderRetention is how long ended orders are kept, at least 31 days. Zero: they are never forgotten.
	OrderRetention time.Duration

	// Bounds restricts the secrets and addresses that policies may name. The default allows no files, no private
	// addresses, and only variables with policy.SecretEnvPrefix.
	Bounds policy.Bounds

	// Registerer receives the metrics with labels. Nil: they are not exported.
	Registerer prometheus.Registerer

	// SchemaVersion is the migration that Ready requires; 0: none.
	SchemaVersion int64
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.RecoveryInterval = cmp.Or(c.RecoveryInterval, 500*time.Millisecond)
	c.MaxBatch = cmp.Or(c.MaxBatch, 512)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 20_000)
	c.Currency = cmp.Or(c.Currency, "USD")
	c.Cell = cmp.Or(c.Cell, cell.All)
	c.Bounds.SecretEnvPrefix = cmp.Or(c.Bounds.SecretEnvPrefix, policy.SecretEnvPrefix)
	c.PublicURL = strings.TrimSuffix(cmp.Or(c.PublicURL, "http://localhost:3000"), "/")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// core is what every handler uses: the settings, the database and its clock, the policies, the orders in memory. It has
// no queues, so no handler can send an order on by itself.
type core struct {
	cfg   Config
	pool  *pg.Pool
	query *db.Queries
	owner uuid.UUID // of this process, in the database; new at every start
	log   *slog.Logger

	Stats     Stats
	metrics   *metrics
	takeOvers takeOvers
	reportNow wake           // of the loop that reports
	Orders    *orders.Reader // what is stored

	schemaHealth *schemaHealth
	runs         registry
	policies     *policies
	clock        atomic.Pointer[reading] // of the database; nil: never read
	lastAdmitted atomic.Pointer[int64]   // number of the last admitted order, which the next one refers to
	lastEnded    atomic.Pointer[int64]   // number of an order that was seen to end, for when a crash has taken that one

	// ctx is the context of every statement, and ends when no more may be sent. A disconnecting caller must not cancel
	// a compare-and-set, and no timeout can distinguish a lost statement from one that waits for a standby. pg.Pool
	// can, and gives up lost ones.
	ctx      context.Context
	cancel   context.CancelFunc
	stopping atomic.Bool
	wg       sync.WaitGroup
}

// init initializes what works without the database.
func (e *core) init(pool *pg.Pool, cfg Config) {
	e.cfg, e.pool, e.query, e.owner, e.log = cfg, pool, db.New(pool), uuid.New(), cfg.Log
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.Orders = orders.NewReader(e.ctx, e.query)
	e.metrics = newMetrics(cfg.Registerer)
	e.schemaHealth = newSchemaHealth(cfg.Log)
	e.reportNow = newWake()
	e.policies = newPolicies(e.query, e.log)
	e.runs.init()
}

// reading is a time of the database's clock, and when it arrived here. Only the time since then is used, by the
// monotonic clock, so changes of this machine's wall clock don't matter.
type reading struct{ database, heard time.Time }

func (r *reading) now() time.Time { return r.database.Add(time.Since(r.heard)) }

// Now is the time of the database as known to this process: never ahead, and behind by the latency of a reply. After
// the machine has slept, it is behind by that time until the next reply, because the monotonic clock does not advance
// during sleep. So it must not be the only condition for sending a call: see call.keyExpired.
func (e *core) Now() time.Time { return e.now() }

func (e *core) now() time.Time {
	if r := e.clock.Load(); r != nil {
		return r.now()
	}
	return time.Now() // without an answer of the database, there are no orders yet
}

// tick records the clock of the database, which was just read. It may have gone back after a failover.
func (e *core) tick(database time.Time) { e.clock.Store(&reading{database, time.Now()}) }

// tickOn records the time of a statement that may have waited for a lock since it read the clock. It can only move our
// clock forward.
func (e *core) tickOn(database time.Time) {
	known := e.clock.Load()
	if known == nil || database.After(known.now()) {
		e.clock.CompareAndSwap(known, &reading{database, time.Now()})
	}
}

// dueFloor is how far the floor of the next scan for due orders is before the beginning of this one.
const dueFloor = 5 * time.Second

// readClock reads the clock of the database before anything depends on it.
func (e *core) readClock() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	floor, err := e.query.LeasesDueFloor(ctx)
	if err != nil {
		e.log.Warn("read the clock of the database", "error", err)
		return
	}
	e.tick(floor.Add(dueFloor))
}

// pause waits for about d, or until the engine stops.
func (e *core) pause(d time.Duration) { pg.Sleep(e.ctx, d) }

// backOff waits before a statement is sent again: 5 ms after the first try (0), up to 200 ms.
func (e *core) backOff(try int) {
	e.pause(min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond))
}

// lastsFor waits for about d, and reports whether the engine still runs after that.
func (e *core) lastsFor(d time.Duration) bool {
	e.pause(d)
	return !e.stopping.Load() && e.ctx.Err() == nil
}

// every calls do at this interval until the engine stops.
func (e *core) every(interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// wake wakes a loop. Several nudges before the loop runs count as one.
type wake chan struct{}

func newWake() wake { return make(wake, 1) }

func (w wake) nudge() {
	select {
	case w <- struct{}{}:
	default: // it is about to
	}
}

// heard waits for a nudge, and reports whether there was one before ctx ended.
func (w wake) heard(ctx context.Context) bool {
	select {
	case <-w:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// untilKnown repeats a read until it succeeds. It returns nil if the engine stops first, and an error only if the
// statement can't run on the schema (pg.SchemaMismatch).
func untilKnown[T any](e *core, what string, read func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		rows, err := read()
		if err == nil || pg.SchemaMismatch(err) {
			return rows, err
		}
		if e.ctx.Err() != nil {
			return nil, nil //nolint:nilerr // callers look at the engine's context
		}
		if pg.Stale(err) {
			e.pool.Reset()
		}
		if try%20 == 0 {
			e.log.Warn("database does not answer", "statement", what, "tries", try+1, "error", err)
		}
		e.backOff(try)
	}
}

// readUntilKnown reads orders by number until it succeeds. A durable read is needed for what others wrote, or a
// statement of ours whose reply was lost. The error is that of untilKnown.
func (e *core) readUntilKnown(orderNos []int64, durable bool) ([]orders.Order, error) {
	if len(orderNos) == 0 {
		return nil, nil
	}
	return untilKnown(e, "read orders", func() ([]orders.Order, error) {
		return e.query.OrdersByNo(e.ctx, db.OrdersByNoParams{OrderNos: orderNos, Durable: durable})
	})
}

func (e *core) readByID(runs []*run) ([]orders.Order, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.orderID
	}
	return untilKnown(e, "read orders by id", func() ([]orders.Order, error) {
		return e.query.OrdersByID(e.ctx, db.OrdersByIDParams{OrderIds: ids, Durable: true})
	})
}

// writtenOrders converts the rows of a statement that writes orders.
func writtenOrders[R ~struct{ WrittenOrder db.WrittenOrder }](rows []R) []orders.Order {
	found := make([]orders.Order, len(rows))
	for i, row := range rows {
		found[i] = orders.Order(struct{ WrittenOrder db.WrittenOrder }(row).WrittenOrder)
	}
	return found
}

// detached runs do to its end even if the caller leaves, because this process must know what was written. A caller
// whose time is up gets ErrUnavailable, which means that the outcome is unknown. The context of do sends no new
// statements for a caller that has left.
func detached[T any](ctx context.Context, e *core, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	e.wg.Go(func() {
		value, err := do(pg.WhileWanted(e.ctx, ctx))
		done <- result{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, waitError(ctx)
	}
}

// ended is the error of a wait that ended without a result.
func waitError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return orders.ErrUnavailable
}

// lastLook is the timeout of the last read for a caller whose time is up.
const lastLook = 2 * time.Second

// readLimit is the timeout of reads for a caller without a deadline.
const readLimit = 30 * time.Second

// answering returns a context for the reads of an answer, which lasts a moment longer than the caller waits. So a verb
// that was written is not reported as unavailable at the last moment.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := readLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(time.Until(deadline), 0) + lastLook
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// fit checks that orders can be admitted and moved, and ends a standstill if they can.
func (e *core) fit(ctx context.Context) error {
	err := checkSchema(ctx, e.pool, e.cfg.SchemaVersion)
	if err == nil {
		err = e.schemaHealth.prove(ctx, e.pool)
	}
	if err != nil {
		e.schemaHealth.failed(err)
		return err
	}
	return e.schemaHealth.goOn()
}

// readFor reads an order for a caller that may have no time left, but has not disconnected.
func (e *core) readFor(ctx context.Context, orderID string) (orders.Order, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled
	}
	reading, cancel := answering(ctx)
	defer cancel()
	return e.Orders.GetDurable(reading, orderID)
}
