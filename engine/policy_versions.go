package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/orders"
	"pawl/policy"
)

// StorePolicy stores a policy unless it is stored already, and activates nothing.
// created tells whether it is new. The error is a policy.Problems when the source is no
// policy.
func StorePolicy(ctx context.Context, query *db.Queries, source []byte) (version int32, created bool, err error) {
	stored, err := storePolicy(ctx, query, source, db.PolicyStoreParams{})
	return stored.Version, stored.Created, err
}

// UsedPolicy is what came of UsePolicy.
type UsedPolicy struct {
	Version   int32 // of the source
	Created   bool  // it is stored now for the first time
	Activated bool  // it became the active version now
	Active    int32 // the active version
}

// UsePolicy stores a policy and makes it the active version if it was never stored
// before, or if none has ever been active. One that was stored before does not push
// another aside: replicas that start with an old and a new file would do so in turns.
func UsePolicy(ctx context.Context, query *db.Queries, source []byte, actor string) (UsedPolicy, error) {
	stored, err := storePolicy(ctx, query, source, db.PolicyStoreParams{Activate: true, Actor: actor})
	if err != nil {
		return UsedPolicy{}, err
	}
	used := UsedPolicy{Version: stored.Version, Created: stored.Created, Activated: stored.Activated}
	active, err := query.PolicyActive(ctx)
	if err != nil {
		return used, fmt.Errorf("read active policy: %w", err)
	}
	if len(active) > 0 {
		used.Active = active[0].Version
	}
	return used, nil
}

func storePolicy(ctx context.Context, query *db.Queries, source []byte, params db.PolicyStoreParams) (db.PolicyStoreRow, error) {
	if _, err := policy.Parse(source); err != nil {
		return db.PolicyStoreRow{}, err
	}
	params.Source = string(source)
	for {
		rows, err := query.PolicyStore(ctx, params)
		if err != nil {
			return db.PolicyStoreRow{}, fmt.Errorf("store policy: %w", err)
		}
		if len(rows) > 0 { // else somebody stored the same just now, and is found next time
			return rows[0], nil
		}
	}
}

// ActivatePolicy makes a version the one new orders start with. It does nothing if it is
// already. Replicas see it when they load next. The error is orders.ErrNotFound where there is
// no such version, and a policy.Problems where this process can't run it.
func ActivatePolicy(ctx context.Context, query *db.Queries, version int32, actor string) error {
	source, err := query.PolicyGet(ctx, version)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("policy %d: %w", version, orders.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("read policy: %w", err)
	}
	if _, err := policy.Parse([]byte(source)); err != nil {
		return fmt.Errorf("policy %d: %w", version, err)
	}
	if _, err := query.PolicyActivate(ctx, db.PolicyActivateParams{Version: version, Actor: actor}); err != nil {
		return fmt.Errorf("activate policy: %w", err)
	}
	return nil
}

// StorePolicy stores a policy; see the function of this name. New orders of this replica
// know it from now on.
func (e *Engine) StorePolicy(ctx context.Context, source []byte) (version int32, created bool, err error) {
	version, created, err = StorePolicy(ctx, e.query, source)
	if err == nil {
		err = e.policies.load(ctx)
	}
	return version, created, err
}

// ActivatePolicy makes a version the active one; see the function of this name. This
// replica goes by it when the call returns, the others within seconds.
func (e *Engine) ActivatePolicy(ctx context.Context, version int32, actor string) error {
	if err := ActivatePolicy(ctx, e.query, version, actor); err != nil {
		return err
	}
	return e.policies.load(ctx)
}
