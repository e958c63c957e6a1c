package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

// loadPolicy reads the policy file of a service: nil where none is named.
func loadPolicy(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	source, err := readPolicy(path, os.Stdin)
	if err != nil {
		return nil, err
	}
	if _, err := policy.Parse(source); err != nil {
		return nil, fmt.Errorf("policy %s:\n%w", path, err)
	}
	return source, nil
}

// newPolicy is the policy file of a service, and what it may name.
type newPolicy struct {
	source []byte // nil: there is none
	bounds policy.Bounds
}

// usePolicy stores the policy of a service and makes a new one the active version. What
// is not as whoever named the file may think is said.
func usePolicy(ctx context.Context, query *db.Queries, of newPolicy, log *slog.Logger) error {
	if of.source == nil {
		return nil
	}
	use := func(ctx context.Context, source []byte) (store.Used, error) {
		return store.Use(ctx, query, source, "serve")
	}
	used, err := orders.Read(ctx, orders.NewReader(ctx, query), use, of.source) // done again, it has the same result
	if err != nil {
		return databaseError(err)
	}
	if used.Activated {
		log.Info("the policy is active", "version", used.Version)
	}
	if used.Version != used.Active {
		log.Warn("the policy file was active before and is not the active version", "version", used.Version, "active", used.Active,
			"to_activate", fmt.Sprintf("pawl policy activate %d", used.Version))
	}
	p, err := policy.Parse(of.source)
	if err != nil {
		return err
	}
	for _, s := range fsm.Steps() {
		if err := of.bounds.Usable(p, s); err != nil {
			log.Warn("orders will be held at a step that can't be done", "step", s, "error", err)
		}
	}
	if err := store.CheckStock(ctx, query, p); errors.Is(err, store.ErrStockIgnored) {
		log.Warn("stock is tracked and does not count", "error", err)
	} else if err != nil {
		return databaseError(err)
	}
	return nil
}
