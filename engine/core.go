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
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
)

// Config holds the settings of an engine. Zero values mean the defaults.
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

	// Registerer takes the metrics that have labels. Nil means that they are not exported.
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

// core is what every handler works with: the settings, the database and its clock, the policies, the orders in memory.
// It knows no queue, so no handler can send an order on by itself.
type core struct {
	cfg   Config
	pool  *pg.Pool
	query *db.Queries
	owner uuid.UUID // of this process start; who drives, in the database
	log   *slog.Logger

	Stats   Stats
	metrics *metrics
	Orders  *orders.Reader // what is stored

	schemaHealth *schemaHealth // whether the statements can run on the schema
	runs         registry
	policies     *policies
	clock        atomic.Pointer[reading] // nil: the database's was never read
	lastAdmitted atomic.Pointer[int64]   // the number of the order that was admitted last; the next one names it

	// ctx is that of every statement, and ends when no more may be sent. A caller who hangs up must not cut off
	// a compare-and-set, and no time limit can tell a statement that is lost from one that waits for a standby. pg.Pool
	// can, and gives up the former.
	ctx      context.Context
	cancel   context.CancelFunc
	stopping atomic.Bool
	wg       sync.WaitGroup
}

// init makes what works without the database.
func (e *core) init(pool *pg.Pool, cfg Config) {
	e.cfg, e.pool, e.query, e.owner, e.log = cfg, pool, db.New(pool), uuid.New(), cfg.Log
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.Orders = orders.NewReader(e.ctx, e.query)
	e.metrics = newMetrics(cfg.Registerer)
	e.schemaHealth = newSchemaHealth(cfg.Log)
	e.policies = newPolicies(e.query, e.log)
	e.runs.init()
}

// reading is a reading of the database's clock, and the moment it was heard here. The second
// has a monotonic reading, so the wall clock of this machine may be set to anything
// meanwhile: only the time that has passed counts.
type reading struct{ database, heard time.Time }

func (r *reading) now() time.Time { return r.database.Add(time.Since(r.heard)) }

// Now is the database's time as this process knows it: not ahead of it, and behind it by
// what a reply takes. A machine that slept is behind by its sleep until the next reply,
// because monotonic clocks stand still meanwhile. So nothing is sent by this time alone: see
// call.keyExpired.
func (e *core) Now() time.Time { return e.now() }

func (e *core) now() time.Time {
	if r := e.clock.Load(); r != nil {
		return r.now()
	}
	return time.Now() // the database has not answered once: there is no order to decide about yet
}

// tick notes the database's clock, which was just read. It may have gone back, after a
// failover.
func (e *core) tick(database time.Time) { e.clock.Store(&reading{database, time.Now()}) }

// tickOn notes the time of a statement that may have waited for a lock since it read the clock: it
// only shows that the database's time is later than we knew.
func (e *core) tickOn(database time.Time) {
	known := e.clock.Load()
	if known == nil || database.After(known.now()) {
		e.clock.CompareAndSwap(known, &reading{database, time.Now()})
	}
}

// dueFloor is how far before its beginning the floor of the next look for due orders lies.
const dueFloor = 5 * time.Second

// readClock asks the database for its time before anything is decided by it.
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

// backOff waits before a statement is sent again: for 5 ms after the first try (0), and for 200 ms at most.
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

// wake has a loop go on. Several nudges before it does are one.
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

// untilKnown repeats a read until it succeeds; nil when the engine stops first. The one error
// it returns is that of a statement that can't run on the schema (pg.SchemaMismatch).
func untilKnown[T any](e *core, what string, read func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		rows, err := read()
		if err == nil || pg.SchemaMismatch(err) {
			return rows, err
		}
		if e.ctx.Err() != nil {
			return nil, nil //nolint:nilerr // callers look at the engine's context
		}
		if try%20 == 0 {
			e.log.Warn("database does not answer", "statement", what, "tries", try+1, "error", err)
		}
		e.backOff(try)
	}
}

// readUntilKnown reads orders by number, as often as it takes. Durable is how to read what was written by others, or
// by a statement of ours whose end we have not seen. The error is that of untilKnown.
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

// writtenOrders are what a statement that writes orders returned of them.
func writtenOrders[R ~struct{ WrittenOrder db.WrittenOrder }](rows []R) []orders.Order {
	found := make([]orders.Order, len(rows))
	for i, row := range rows {
		found[i] = orders.Order(struct{ WrittenOrder db.WrittenOrder }(row).WrittenOrder)
	}
	return found
}

// detached runs do to its end, even if its caller goes: what is written has to be known to this process. A caller
// whose time is up is told that the outcome is not known. The context of do sends no statement for a caller who has gone.
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
		return none, ended(ctx)
	}
}

// ended names the end of a wait during which the order did not become known.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return orders.ErrUnavailable
}

// lastLook is how long the read of an order may take for a caller whose time is up.
const lastLook = 2 * time.Second

// readLimit bounds the reads for a caller without a deadline.
const readLimit = 30 * time.Second

// answering bounds the reads that a caller is answered from: as long as the caller waits, and a moment after that. A verb
// that is written is not reported as unavailable to a caller who has time left.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := readLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(time.Until(deadline), 0) + lastLook
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// fit proves that orders can be taken and moved, and ends a standstill when they can.
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

// readFor reads an order for a caller who may have no time left, but has not gone.
func (e *core) readFor(ctx context.Context, orderID string) (orders.Order, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return orders.Order{}, context.Canceled
	}
	reading, cancel := answering(ctx)
	defer cancel()
	return e.Orders.GetDurable(reading, orderID)
}
