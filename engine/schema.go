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

// ErrNotMigrated means that the schema of the database is older than this program, or that parts of it are missing,
// changed, or not granted to its role. Retrying does not help: a person must migrate, repair or grant.
var ErrNotMigrated = errors.New("the schema of the database is not the one this program needs")

// needed are the privileges that the service uses. They are checked because a statement can be prepared even if it may
// not execute its functions.
var needed = map[string][]string{
	"pawl.access_log":               {"INSERT"},
	"pawl.bulk_refusals":            {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"pawl.charges":                  {"SELECT", "INSERT", "UPDATE"},
	"pawl.concurrency_keys":         {"SELECT", "INSERT", "UPDATE"},
	"pawl.confirmations":            {"INSERT"},
	"pawl.disputes":                 {"SELECT", "INSERT"},
	"pawl.early_events":             {"SELECT", "INSERT", "DELETE"},
	"pawl.end_session(bytea, inet)": {"EXECUTE"},
	"pawl.erase_customer(text, text, text, text, text, integer)": {"EXECUTE"},
	"pawl.erase_orders(bigint[], text, text, text, text)":        {}, // only by pawl.erase_customer
	"pawl.erases(text)":  {"EXECUTE"},
	"pawl.erasures":      {"SELECT"},
	"pawl.event_batches": {"SELECT", "INSERT", "DELETE"},
	"pawl.event_epochs":  {"SELECT", "INSERT"},
	"pawl.event_relay":   {"SELECT"},
	"pawl.events":        {"SELECT"},
	"pawl.forgettable_orders(bigint[], timestamp with time zone)": {"EXECUTE"},
	"pawl.forgotten_batches":   {"SELECT"},
	"pawl.forgotten_movements": {"SELECT"},
	"pawl.forgotten_orders":    {"SELECT"},
	"pawl.forgotten_stock":     {"SELECT"},
	"pawl.forgotten_sums":      {"SELECT"},
	"pawl.full_orders":         {"SELECT"},
	"pawl.idempotency_keys":    {"SELECT", "INSERT", "UPDATE", "DELETE"}, // old ones are locked, and removed
	"pawl.input_hash(text, numeric, text, integer, json, text, text[], timestamp with time zone, timestamp with time zone, double precision, text, text)": {"EXECUTE"},
	"pawl.installation":                  {"SELECT", "UPDATE"},
	"pawl.inventory":                     {"SELECT", "INSERT", "UPDATE"},
	"pawl.items_of(text, integer, json)": {"EXECUTE"},
	"pawl.late_undos":                    {"SELECT", "INSERT", "UPDATE"},
	"pawl.mark_forgotten(bigint, integer, interval, boolean)": {"EXECUTE"},
	"pawl.movements":                                 {"SELECT"},
	"pawl.newest_comparisons":                        {"SELECT"},
	"pawl.no_effects":                                {"SELECT"},
	"pawl.note_token_use(text)":                      {"EXECUTE"},
	"pawl.open_session(bytea, bytea, bytea, inet)":   {"EXECUTE"},
	"pawl.numbers_in(int8multirange)":                {"EXECUTE"},
	"pawl.operation_lines_fault(bigint, integer)":    {"EXECUTE"},
	"pawl.current_numbering":                         {"SELECT"},
	"pawl.order_numbering":                           {"SELECT", "INSERT", "UPDATE"},
	"pawl.known_charges":                             {"SELECT"},
	"pawl.known_operations":                          {"SELECT"},
	"pawl.order_money":                               {"SELECT"},
	"pawl.order_id_hash(text)":                       {"EXECUTE"},
	"pawl.orders":                                    {"SELECT", "INSERT", "UPDATE"},
	"pawl.orders_open(bigint[])":                     {}, // likewise
	"pawl.orders_order_no_seq":                       {"UPDATE"},
	"pawl.orders_by_metadata(text, bigint, integer)": {"EXECUTE"},
	"pawl.orders_within(bigint[], bigint)":           {"EXECUTE"},
	"pawl.policies":                                  {"SELECT"},
	"pawl.policy_activations":                        {"SELECT"},
	"pawl.charge_operations":                         {"SELECT", "INSERT", "UPDATE"},
	"pawl.replica_reports":                           {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"pawl.remove_forgotten(uuid)":                    {"EXECUTE"},
	"pawl.reservations":                              {"SELECT", "INSERT", "UPDATE"},
	"pawl.sessions":                                  {"SELECT"},
	"pawl.step_answers":                              {"SELECT", "INSERT", "UPDATE"},
	"pawl.step_calls":                                {"SELECT", "INSERT", "UPDATE"},
	"pawl.stock_movements":                           {"SELECT", "INSERT"},
	"pawl.system_identifier()":                       {"EXECUTE"},
	"pawl.tokens":                                    {"SELECT"},
	"pawl.transitions":                               {"SELECT", "INSERT"},
	"pawl.verifications":                             {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"pawl.webhook_changes":                           {"SELECT", "INSERT"},
	"pawl.webhook_deliveries":                        {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"pawl.webhook_endpoints":                         {"SELECT", "INSERT", "UPDATE", "DELETE"},
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

// CheckSchema returns nil if this program can use the database: the schema has at least the version, the role has the
// needed privileges, and every statement can be prepared. A newer schema is accepted, because a newer release may be
// replacing this one. Errors: ErrNotMigrated, orders.ErrUnavailable.
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

// checkStatements lets the server parse every statement of this program. It retries once if the connection is lost.
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

// errSchemaMismatch is the error for callers whose order can't continue, or can't be admitted, because of the schema.
// They can safely retry.
var errSchemaMismatch = fmt.Errorf("%w: %w", orders.ErrUnavailable, ErrNotMigrated)

const (
	standMin      = time.Second      // shortest standstill
	standMax      = time.Minute      // longest standstill, if the error recurs
	standRelapses = 10 * time.Second // an error within this time after a standstill means that the cause persists
)

// schemaHealth tracks whether the statements of this process can run on the schema.
//
// If the statement of a move or an admission fails because of the schema (pg.SchemaMismatch), the engine stands still:
// it admits and claims nothing, Ready fails, and the orders of such statements are released. Keeping them would renew
// their leases forever, and nothing would show that they are stuck. The standstill ends when all statements can be
// prepared again. Preparing does not detect some errors, such as those in the body of a trigger. In that case the
// standstill ends after a pause that grows while the error recurs.
type schemaHealth struct {
	log     *slog.Logger
	proof   atomic.Pointer[proof] // the last one that passed
	proving chan struct{}         // holds a token while a proof is made
	still   atomic.Bool           // the engine stands still

	mu    sync.Mutex
	why   error
	shown bool // a proof has failed since, so the next one that passes shows that the cause is gone
	pause time.Duration
	until time.Time // earliest end of the standstill
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
	h.log.Warn("a statement can't run on this schema: its orders are released, and no orders are accepted", "statement", doing, "error", why)
}

// failed records that a proof has failed because of the schema.
func (h *schemaHealth) failed(err error) {
	if errors.Is(err, ErrNotMigrated) {
		h.mu.Lock()
		h.shown = true
		h.mu.Unlock()
	}
}

// goOn ends a standstill whose cause is gone or whose time is over. The caller has checked that the statements can be
// prepared. It returns an error if the engine still stands still.
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
		h.log.Info("all statements can be prepared: orders are accepted again")
	}
	return nil
}

// proofAge is how long a proof is valid. A proof takes a connection for about 15 ms.
const proofAge = 10 * time.Second

// proof says that all statements could be prepared.
type proof struct {
	at  time.Time
	met int64 // number of errors before it began; it says nothing about later ones
}

// prove prepares all statements, unless there is a recent proof and no contradicting error since.
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
	if h.proved(pool) { // by the proof we waited for
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
