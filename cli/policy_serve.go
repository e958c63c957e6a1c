package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/policy/store"
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

// usePolicy stores the policy of a service and makes a new one the active version. What
// is not as whoever named the file may think is said.
func usePolicy(ctx context.Context, query *db.Queries, source []byte, log *slog.Logger) error {
	if source == nil {
		return nil
	}
	used, err := store.Use(ctx, query, source, "serve")
	if err != nil {
		return databaseError(err)
	}
	if used.Activated {
		log.Info("the policy is active", "version", used.Version)
	}
	if used.Version != used.Active {
		log.Warn("the policy file was stored before and is not the active version", "version", used.Version, "active", used.Active,
			"to_activate", fmt.Sprintf("pawl policy activate %d", used.Version))
	}
	p, err := policy.Parse(source)
	if err != nil {
		return err
	}
	for _, s := range fsm.Steps() {
		if err := p.Usable(s); err != nil {
			log.Warn("orders will be held at a step that can't be done", "step", s, "error", err)
		}
	}
	return nil
}
