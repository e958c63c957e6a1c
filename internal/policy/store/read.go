package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/policy"
)

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

// OfLate returns the versions that are active, or were within the longest time that an order waits for an event.
func OfLate(ctx context.Context, query *db.Queries) ([]int32, error) {
	versions, err := query.PoliciesOfLate(ctx)
	if err != nil {
		return nil, fmt.Errorf("read policies of late: %w", err)
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
