// Package store keeps the versions of a policy in the database: it stores them, makes one the active version, and reads them.
//
// `pawl serve --policy` and `pawl policy` write them, and every engine reads them again and again. A version never changes and
// none is removed, so what was read once stays true; only which one is active changes. Nothing here depends on what a policy says.
package store

import (
	"context"
	"errors"
	"fmt"

	"pawl/db"
	"pawl/policy"
)

// ErrNotFound: there is no such version.
var ErrNotFound = errors.New("there is no policy")

// Used is what came of Use.
type Used struct {
	Version   int32 // of the source
	Created   bool  // it is stored now for the first time
	Activated bool  // it became the active version now
	Active    int32 // the active version
}

// Use stores a policy unless it is stored already, and makes it the active version if it is new,
// or if none has ever been active. One that was stored before does not push
// another aside: replicas that start with an old and a new file would do so in turns.
// The error is a policy.Problems when the source is no policy.
func Use(ctx context.Context, query *db.Queries, source []byte, actor string) (Used, error) {
	if _, err := policy.Parse(source); err != nil {
		return Used{}, err
	}
	for {
		rows, err := query.PolicyStore(ctx, db.PolicyStoreParams{Source: string(source), Actor: actor})
		switch {
		case err != nil:
			return Used{}, fmt.Errorf("store policy: %w", err)
		case len(rows) == 0: // somebody stored the same just now; it is found next time
			continue
		}
		active, err := Active(ctx, query)
		return Used{Version: rows[0].Version, Created: rows[0].Created, Activated: rows[0].Activated, Active: active}, err
	}
}

// Activate makes a version the one new orders start with. It does nothing if it is
// already. Engines see it when they read next. The error is ErrNotFound where there is
// no such version, and a policy.Problems where this program can't run it.
func Activate(ctx context.Context, query *db.Queries, version int32, actor string) error {
	source, err := Source(ctx, query, version)
	if err != nil {
		return err
	}
	if _, err := policy.Parse([]byte(source)); err != nil {
		return fmt.Errorf("policy %d: %w", version, err)
	}
	if err := query.PolicyActivate(ctx, db.PolicyActivateParams{Version: version, Actor: actor}); err != nil {
		return fmt.Errorf("activate policy: %w", err)
	}
	return nil
}
