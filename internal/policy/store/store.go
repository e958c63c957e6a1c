// Package store keeps the versions of a policy in the database: it stores them, makes one the active version, and reads them.
//
// `pawl serve --policy`, `pawl policy` and the API write them, and every engine reads them at intervals. A version
// never changes and is never removed; only which one is active changes. Except for CheckStock, nothing here depends on
// the contents of a policy.
package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/policy"
)

var (
	// ErrNotFound: the version does not exist.
	ErrNotFound = errors.New("there is no policy")
	// ErrActivated: another version was activated in the meantime.
	ErrActivated = errors.New("another policy was activated meanwhile")
	// ErrStockIgnored: the stock of some items is tracked in the database, and the reserve step of the policy is
	// remote.
	ErrStockIgnored = errors.New("reserve is not done by the ledger: orders do not use the stock that is tracked here, so it may be oversold")
)

// Stored is the result of Store.
type Stored struct {
	Version    int32 // of the source
	Created    bool  // it is stored now for the first time
	EverActive bool  // it is the active version, or was before
}

// Store stores a policy unless it is stored already. It does not change the active version. by is the actor. The error
// is a policy.Problems if the source is not a valid policy.
func Store(ctx context.Context, query *db.Queries, source []byte, by string) (Stored, error) {
	if _, err := policy.Parse(source); err != nil {
		return Stored{}, err
	}
	for {
		rows, err := query.PolicyStore(ctx, db.PolicyStoreParams{Source: string(source), CreatedBy: by})
		switch {
		case err != nil:
			return Stored{}, fmt.Errorf("store policy: %w", err)
		case len(rows) > 0: // otherwise another process has just stored it; the next try finds it
			return Stored(rows[0]), nil
		}
	}
}

// Used is the result of Use.
type Used struct {
	Version   int32 // of the source
	Created   bool  // it is stored now for the first time
	Activated bool  // it became the active version now
	Active    int32 // the active version
}

// Use stores a policy, and activates it if it was never active. A version that was active before is not activated
// again: replicas with an old and a new file would replace each other's version whenever one starts.
func Use(ctx context.Context, query *db.Queries, source []byte, by string) (Used, error) {
	used := Used{}
	for {
		now, err := Active(ctx, query) // read before the policy is stored, so that it is activated only once
		if err != nil {
			return Used{}, err
		}
		stored, err := Store(ctx, query, source, by)
		if err != nil {
			return Used{}, err
		}
		used.Version, used.Created = stored.Version, used.Created || stored.Created
		if stored.EverActive {
			now, err = Active(ctx, query)
			used.Active = now.Version
			return used, err
		}
		written, err := query.PolicyActivate(ctx, db.PolicyActivateParams{After: now.No, Version: stored.Version, Actor: by})
		switch {
		case err != nil:
			return Used{}, fmt.Errorf("activate policy: %w", err)
		case written > 0:
			used.Activated, used.Active = true, stored.Version
			return used, nil
		}
	}
}

// Activation is a request to activate a version.
type Activation struct {
	Version    int32
	Actor      string // for the history
	OnBehalfOf string // may be empty
	Reason     string // may be empty
	After      *int64 // only if this is the number of the last activation; nil: any
}

// Activate makes a version the one that new orders start with. It does nothing if the version is active. Engines notice
// at their next read. Errors: ErrNotFound, ErrActivated if After is not the last activation, policy.Problems if this
// program can't run the version.
func Activate(ctx context.Context, query *db.Queries, a Activation) error {
	for {
		now, err := Activatable(ctx, query, a)
		if err != nil || now.Version == a.Version {
			return err
		}
		written, err := query.PolicyActivate(ctx, db.PolicyActivateParams{
			After: now.No, Version: a.Version, Actor: a.Actor, OnBehalfOf: db.Optional(a.OnBehalfOf), Reason: db.Optional(a.Reason),
		})
		if err != nil {
			return fmt.Errorf("activate policy: %w", err)
		}
		if written > 0 {
			return nil
		}
	}
}

// Activatable is Activate as a dry run. It returns the active version.
func Activatable(ctx context.Context, query *db.Queries, a Activation) (Current, error) {
	row, err := query.PolicyGet(ctx, a.Version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Current{}, fmt.Errorf("%w %d", ErrNotFound, a.Version)
	case err != nil:
		return Current{}, fmt.Errorf("read policy: %w", err)
	case row.Copied:
		return Current{}, policy.Problems{{Line: 1, Column: 1, Text: fmt.Sprintf("version %d belongs to the installation that "+
			"this database was copied from: store a policy with the addresses and secrets of this one", a.Version)}}
	}
	if _, err := policy.Parse([]byte(row.Source)); err != nil {
		return Current{}, fmt.Errorf("policy %d: %w", a.Version, err)
	}
	now, err := Active(ctx, query)
	if err == nil && now.Version != a.Version && a.After != nil && *a.After != now.No {
		return Current{}, ErrActivated
	}
	return now, err
}

// Version is a stored version.
type Version struct {
	Number int32          // from 1
	Policy *policy.Policy // nil: this program can't run it
	Err    error          // why Policy is nil: it may be from a newer release
}

// Read returns the active version, 0 if there is none, and all versions that are not known. The active one is known or
// among them.
func Read(ctx context.Context, query *db.Queries, known []int32) (active int32, added []Version, err error) {
	current, err := Active(ctx, query) // first, so that the active version is among those read next
	if err != nil {
		return 0, nil, err
	}
	rows, err := query.PoliciesUnknown(ctx, known)
	if err != nil {
		return 0, nil, fmt.Errorf("read policies: %w", err)
	}
	for _, row := range rows {
		v := Version{Number: row.Version}
		if v.Policy, v.Err = policy.Parse([]byte(row.Source)); v.Err == nil {
			v.Policy.Copied = row.Copied
		}
		added = append(added, v)
	}
	return current.Version, added, nil
}

// RecentlyActive returns the versions that are active, or were within the longest time that an order can wait for an
// event.
func RecentlyActive(ctx context.Context, query *db.Queries) ([]int32, error) {
	versions, err := query.PoliciesRecentlyActive(ctx)
	if err != nil {
		return nil, fmt.Errorf("read recently active policies: %w", err)
	}
	return versions, nil
}

// Current is the active version.
type Current struct {
	Version int32 // 0: there has never been one, or none since the database was copied
	No      int64 // the number of its activation, counting all activations
}

// Active returns the active version.
func Active(ctx context.Context, query *db.Queries) (Current, error) {
	row, err := query.PolicyActive(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return Current{}, nil
	}
	if err != nil {
		return Current{}, fmt.Errorf("read active policy: %w", err)
	}
	return Current{row.Version, row.ActivationNo}, nil
}

// Source returns the original text of a version. Errors: ErrNotFound.
func Source(ctx context.Context, query *db.Queries, version int32) (string, error) {
	row, err := query.PolicyGet(ctx, version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("%w %d", ErrNotFound, version)
	}
	if err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	return row.Source, nil
}

// List returns up to a number of versions below one, highest first, with the time and actor of their last activation.
func List(ctx context.Context, query *db.Queries, below, most int32) ([]db.PoliciesListRow, error) {
	list, err := query.PoliciesList(ctx, db.PoliciesListParams{Before: below, Most: most})
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	return list, nil
}

// Find returns the version of a text, or 0 if it is not stored.
func Find(ctx context.Context, query *db.Queries, source []byte) (int32, error) {
	version, err := query.PolicyFind(ctx, string(source))
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("find policy: %w", err)
	}
	return version, nil
}

// CheckStock returns ErrStockIgnored if stock is tracked in the database and the policy does not reserve there: it
// could be oversold. It also returns errors of the database.
func CheckStock(ctx context.Context, query *db.Queries, p *policy.Policy) error {
	if p == nil || !p.Reserve.Executor.Remote() {
		return nil
	}
	tracked, err := query.InventoryTracked(ctx)
	if err == nil && tracked {
		return ErrStockIgnored
	}
	return err
}
