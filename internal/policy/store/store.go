// Package store keeps the versions of a policy in the database: it stores them, makes one the active version, and reads them.
//
// `pawl serve --policy`, `pawl policy` and the API write them, and every engine reads them again and again. A version never changes and
// none is removed, so what was read once stays true; only which one is active changes. But for CheckStock, nothing here
// depends on what a policy says.
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
	// ErrNotFound: there is no such version.
	ErrNotFound = errors.New("there is no policy")
	// ErrActivated: a version was activated since the activation that was named.
	ErrActivated = errors.New("another policy was activated meanwhile")
	// ErrStockIgnored: the stock of items is tracked in the database, and the policy has something else reserve them.
	ErrStockIgnored = errors.New("reserve is not done by the ledger: orders take nothing from the stock that is tracked here, and it may be oversold")
)

// Stored is what came of Store.
type Stored struct {
	Version    int32 // of the source
	Created    bool  // it is stored now for the first time
	EverActive bool  // it is the active version, or was
}

// Store stores a policy unless it is stored already, and leaves the active version as it is. By is who does it. The error
// is a policy.Problems when the source is no policy.
func Store(ctx context.Context, query *db.Queries, source []byte, by string) (Stored, error) {
	if _, err := policy.Parse(source); err != nil {
		return Stored{}, err
	}
	for {
		rows, err := query.PolicyStore(ctx, db.PolicyStoreParams{Source: string(source), CreatedBy: by})
		switch {
		case err != nil:
			return Stored{}, fmt.Errorf("store policy: %w", err)
		case len(rows) > 0: // else the same was stored just now; it is found next time
			return Stored(rows[0]), nil
		}
	}
}

// Used is what came of Use.
type Used struct {
	Version   int32 // of the source
	Created   bool  // it is stored now for the first time
	Activated bool  // it became the active version now
	Active    int32 // the active version
}

// Use is Store, and makes the policy the active version if it never was. One that was active before does not push
// another aside: replicas that start with an old and a new file would do so in turns.
func Use(ctx context.Context, query *db.Queries, source []byte, by string) (Used, error) {
	used := Used{}
	for {
		now, err := Active(ctx, query) // before it is known whether the policy was active, so that it is activated once
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

// Activation asks for a version to be made the active one.
type Activation struct {
	Version    int32
	Actor      string // for the history
	OnBehalfOf string // may be empty
	Reason     string // may be empty
	After      *int64 // only if this is the number of the last activation; nil: whichever is
}

// Activate makes a version the one new orders start with. It does nothing if it is
// already. Engines see it when they read next. The error is ErrNotFound where there is
// no such version, ErrActivated where After is not the last activation, and a policy.Problems where this program can't
// run the version.
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

// Activatable is Activate as a dry run. It returns which version is active.
func Activatable(ctx context.Context, query *db.Queries, a Activation) (Current, error) {
	row, err := query.PolicyGet(ctx, a.Version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Current{}, fmt.Errorf("%w %d", ErrNotFound, a.Version)
	case err != nil:
		return Current{}, fmt.Errorf("read policy: %w", err)
	case row.Copied:
		return Current{}, policy.Problems{{Line: 1, Column: 1, Text: fmt.Sprintf("version %d is of the installation that this database was copied from: store it again, with what is right here", a.Version)}}
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
	Err    error          // why not: it may be from a newer release
}

// Read returns the active version, 0 when there is none, and all versions that are not among those known. The
// active one is among them or known. Mostly that is two statements that find nothing.
func Read(ctx context.Context, query *db.Queries, known []int32) (active int32, added []Version, err error) {
	current, err := Active(ctx, query) // first, or it could be newer than the versions that are read
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

// RecentlyActive returns the versions that are active, or were within the longest time that an order waits for an event.
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
	No      int64 // the number of its activation: how often a version was made the active one
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

// Source returns the text of a version as it was given. The error is ErrNotFound where there is no such version.
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

// List returns up to a number of versions below one, the highest first, each with when and by whom it was last activated.
func List(ctx context.Context, query *db.Queries, below, most int32) ([]db.PoliciesListRow, error) {
	list, err := query.PoliciesList(ctx, db.PoliciesListParams{Before: below, Most: most})
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	return list, nil
}

// Find returns the version of a text, 0 where it is not stored.
func Find(ctx context.Context, query *db.Queries, source []byte) (int32, error) {
	version, err := query.PolicyFind(ctx, string(source))
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("find policy: %w", err)
	}
	return version, nil
}

// CheckStock returns nil where no stock is tracked in the database, or a policy takes its orders' items from there. Else orders would
// be taken for more than there is. Errors: ErrStockIgnored, and those of the database.
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
