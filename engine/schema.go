package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// ErrNotMigrated: the schema of the database is older than this program, or parts of it
// are missing, changed or closed to its role. Waiting does not help: a person has to
// migrate, to mend, or to grant.
var ErrNotMigrated = errors.New("the schema of the database is not the one this program needs")

// needed are the tables, views and functions that the service uses, and what it does there. That a statement can be
// prepared does not say that its functions may be run.
var needed = map[string][]string{
	"pawl.access_log":                              {"INSERT"},
	"pawl.charges":                                 {"SELECT", "INSERT", "UPDATE"},
	"pawl.concurrency_keys":                        {"SELECT", "INSERT", "UPDATE"},
	"pawl.confirmations":                           {"INSERT"},
	"pawl.early_events":                            {"SELECT", "INSERT", "DELETE"},
	"pawl.end_session(bytea, inet)":                {"EXECUTE"},
	"pawl.event_batches":                           {"SELECT", "INSERT", "DELETE"},
	"pawl.event_epochs":                            {"SELECT", "INSERT"},
	"pawl.event_relay":                             {"SELECT"},
	"pawl.events":                                  {"SELECT"},
	"pawl.full_orders":                             {"SELECT"},
	"pawl.idempotency_keys":                        {"SELECT", "INSERT", "UPDATE", "DELETE"}, // old ones are locked, and removed
	"pawl.installation":                            {"SELECT", "UPDATE"},
	"pawl.inventory":                               {"SELECT", "INSERT", "UPDATE"},
	"pawl.late_undos":                              {"SELECT", "INSERT", "UPDATE"},
	"pawl.no_effects":                              {"SELECT"},
	"pawl.note_token_use(text)":                    {"EXECUTE"},
	"pawl.open_session(bytea, bytea, bytea, inet)": {"EXECUTE"},
	"pawl.order_numbering":                         {"SELECT", "INSERT", "UPDATE"},
	"pawl.orders":                                  {"SELECT", "INSERT", "UPDATE"},
	"pawl.orders_order_no_seq":                     {"UPDATE"},
	"pawl.orders_within(bigint[], bigint)":         {"EXECUTE"},
	"pawl.policies":                                {"SELECT"},
	"pawl.policy_activations":                      {"SELECT"},
	"pawl.refunds":                                 {"SELECT", "INSERT", "UPDATE"},
	"pawl.reservations":                            {"SELECT", "INSERT", "UPDATE"},
	"pawl.sessions":                                {"SELECT"},
	"pawl.step_answers":                            {"SELECT", "INSERT", "UPDATE"},
	"pawl.step_calls":                              {"SELECT", "INSERT", "UPDATE"},
	"pawl.stock_movements":                         {"SELECT", "INSERT"},
	"pawl.system_identifier()":                     {"EXECUTE"},
	"pawl.tokens":                                  {"SELECT"},
	"pawl.transitions":                             {"SELECT", "INSERT"},
	"pawl.webhook_changes":                         {"SELECT", "INSERT"},
	"pawl.webhook_deliveries":                      {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"pawl.webhook_endpoints":                       {"SELECT", "INSERT", "UPDATE", "DELETE"},
}

// neededGrants is the same for a statement.
var neededGrants = func() (p db.SchemaStateParams) {
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		for _, privilege := range needed[name] {
			p.Names, p.Privileges = append(p.Names, name), append(p.Privileges, privilege)
		}
	}
	return p
}()

// CheckSchema returns nil when this program can work on the database: its schema is as new as
// the version at least, the role may use what is there, and every statement can be prepared. A
// newer schema is that of a release that replaces this one. Errors: ErrNotMigrated,
// orders.ErrUnavailable.
func CheckSchema(ctx context.Context, pool *pg.Pool, version int64) error {
	if err := checkSchema(ctx, pool, version); err != nil {
		return err
	}
	return checkStatements(ctx, pool)
}

func checkSchema(ctx context.Context, pool *pg.Pool, version int64) error {
	query := db.New(pool)
	state, err := orders.Read(ctx, orders.NewReader(ctx, query), query.SchemaState, neededGrants)
	if pg.SchemaMismatch(err) || err == nil && (state.Version < version || len(state.Lacking) > 0) {
		if missing, ok := errors.AsType[*pg.NoSchema](pg.FindSchema(ctx, pool)); ok {
			return fmt.Errorf("%w: %w", ErrNotMigrated, missing)
		}
	}
	switch {
	case pg.SchemaMismatch(err):
		return fmt.Errorf("read state of schema: %w: %w", ErrNotMigrated, err)
	case err != nil:
		return orders.Unavailable("read state of schema", err)
	case state.Version < version:
		return fmt.Errorf("%w: it is at version %d, this program needs %d: as its owner, run pawl migrate up", ErrNotMigrated, state.Version, version)
	case len(state.Lacking) > 0:
		return fmt.Errorf("%w: not there, or not granted: %s: as its owner, run pawl migrate up", ErrNotMigrated, strings.Join(state.Lacking, ", "))
	}
	return nil
}

// checkStatements has the server parse every statement of this program, and once more if the connection is lost.
func checkStatements(ctx context.Context, pool *pg.Pool) error {
	refused, err := pg.Repeat(ctx, ctx, func(ctx context.Context) (refused, err error) {
		if err = pool.Check(ctx); errors.Is(err, pg.ErrSchemaMismatch) {
			return err, nil
		}
		return nil, err
	})
	if refused != nil {
		return fmt.Errorf("%w: %w", ErrNotMigrated, refused)
	}
	return orders.Unavailable("check statements", err)
}

// errSchemaMismatch is what callers are told whose order can't go on, or can't be taken, because of
// the schema: to ask again is safe.
var errSchemaMismatch = fmt.Errorf("%w: %w", orders.ErrUnavailable, ErrNotMigrated)

const (
	standMin      = time.Second      // how long the engine stands still at least
	standMax      = time.Minute      // and at most, when it meets the same again and again
	standRelapses = 10 * time.Second // after a standstill: an error within this time means that nothing has changed
)

// schemaHealth is what this process knows of whether its statements can run on the schema.
//
// When the statement of a move or an admission meets an error that says they can't
// (pg.SchemaMismatch), the engine stands still: it admits and claims nothing, Ready says so, and each
// order whose statement met it is handed back. Keeping them would renew their leases for
// ever, and nothing would show that they are stuck. The standstill ends as soon as the statements can be
// prepared again. Some errors no preparing shows, as one in the body of a trigger: then it ends
// all the same, after a pause that grows while the error comes again.
type schemaHealth struct {
	log     *slog.Logger
	proof   atomic.Pointer[proof] // the last one that passed
	proving chan struct{}         // holds a token while a proof is made
	still   atomic.Bool           // the engine stands still

	mu    sync.Mutex
	why   error
	shown bool // a proof has failed since: the next one that passes says that the cause is gone
	pause time.Duration
	until time.Time // the standstill lasts until then at least
	ended time.Time
}

func newSchemaHealth(log *slog.Logger) *schemaHealth {
	return &schemaHealth{log: log, proving: make(chan struct{}, 1)}
}

// standStill begins a standstill, if the engine does not stand still already.
func (h *schemaHealth) standStill(doing string, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.still.Load() {
		return
	}
	now := time.Now()
	if now.Sub(h.ended) < standRelapses && !h.shown {
		h.pause = min(2*h.pause, standMax)
	} else {
		h.pause = standMin
	}
	h.shown = false
	h.why, h.until = fmt.Errorf("%w: %s: %w", ErrNotMigrated, doing, why), now.Add(h.pause)
	h.still.Store(true)
	h.log.Warn("statement can't run on this schema: orders are handed back, and none are taken", "statement", doing, "error", why)
}

// failed notes that a proof has failed, if that is what the error says.
func (h *schemaHealth) failed(err error) {
	if errors.Is(err, ErrNotMigrated) {
		h.mu.Lock()
		h.shown = true
		h.mu.Unlock()
	}
}

// goOn ends a standstill whose cause is gone or whose time is over; the caller has seen that the statements can be
// prepared. It returns why the engine stands still if it still does.
func (h *schemaHealth) goOn() error {
	if !h.still.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.still.Load() && !h.shown && now.Before(h.until) {
		return h.why
	}
	if h.still.Swap(false) {
		h.ended = now
		h.log.Info("statements can be prepared: orders are taken again")
	}
	return nil
}

// proofAge is how long a proof that the statements can be prepared is believed. It costs
// some 15 ms of a connection.
const proofAge = 10 * time.Second

// proof says that all statements could be prepared.
type proof struct {
	at  time.Time
	met int64 // errors met before it began: it says nothing about one that was met later
}

// prove has all statements prepared, unless that was done lately and no statement has met an
// error since that speaks against it.
func (h *schemaHealth) prove(ctx context.Context, pool *pg.Pool) error {
	if h.proved(pool) {
		return nil
	}
	select {
	case h.proving <- struct{}{}:
		defer func() { <-h.proving }()
	case <-ctx.Done():
		return orders.Unavailable("prepare statements", ctx.Err())
	}
	if h.proved(pool) { // by the one we waited for
		return nil
	}
	met := pool.SchemaMismatches()
	if err := checkStatements(ctx, pool); err != nil {
		h.proof.Store(nil)
		return err
	}
	h.proof.Store(&proof{at: time.Now(), met: met})
	return nil
}

func (h *schemaHealth) proved(pool *pg.Pool) bool {
	p := h.proof.Load()
	return p != nil && p.met == pool.SchemaMismatches() && time.Since(p.at) < proofAge
}
