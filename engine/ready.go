package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pawl/db"
	"pawl/orders"
)

// ErrNotMigrated: the schema of the database is older than this program, or parts of it
// are missing, changed or closed to its role. Nothing comes of waiting: somebody has to
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
	"pawl.migration_checksums":                     {"SELECT"},
	"pawl.no_effects":                              {"SELECT"},
	"pawl.note_token_use(text)":                    {"EXECUTE"},
	"pawl.open_session(bytea, bytea, bytea, inet)": {"EXECUTE"},
	"pawl.orders":                                  {"SELECT", "INSERT", "UPDATE"},
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

// Ready returns nil when orders can be taken: the engine is not stopping, the database
// answers, its schema is as CheckSchema wants it, and no statement has met an error lately
// that says otherwise. That the statements can be prepared is believed for ten seconds.
// Errors: orders.ErrStopping, ErrNotMigrated, orders.ErrUnavailable. Why is in the log, once a second at
// most.
func (e *Engine) Ready(ctx context.Context) error {
	if e.stopping.Load() {
		return orders.ErrStopping
	}
	err := e.fit(ctx)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		e.notReady.Do(func() { e.log.Warn("not ready", "error", err) })
	}
	return err
}

// CheckSchema returns nil when this program can work on the database: its schema is as new as
// the version at least, the role may use what is there, and every statement can be prepared. A
// newer schema is that of a release that replaces this one. Errors: ErrNotMigrated,
// orders.ErrUnavailable.
func CheckSchema(ctx context.Context, pool *db.Pool, version int64) error {
	if err := checkSchema(ctx, pool, version); err != nil {
		return err
	}
	return checkStatements(ctx, pool)
}

func checkSchema(ctx context.Context, pool *db.Pool, version int64) error {
	query := db.New(pool)
	state, err := orders.Read(ctx, orders.NewReader(ctx, query), query.SchemaState, neededGrants)
	if db.SchemaMismatch(err) || err == nil && (state.Version < version || len(state.Lacking) > 0) {
		if missing, ok := errors.AsType[*db.NoSchema](db.FindSchema(ctx, pool)); ok {
			return fmt.Errorf("%w: %w", ErrNotMigrated, missing)
		}
	}
	switch {
	case db.SchemaMismatch(err):
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
func checkStatements(ctx context.Context, pool *db.Pool) error {
	refused, err := db.Repeat(ctx, ctx, func(ctx context.Context) (refused, err error) {
		if err = pool.Check(ctx); errors.Is(err, db.ErrSchemaMismatch) {
			return err, nil
		}
		return nil, err
	})
	if refused != nil {
		return fmt.Errorf("%w: %w", ErrNotMigrated, refused)
	}
	return orders.Unavailable("check statements", err)
}
