package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/policy"
)

// Version is a stored version.
type Version struct {
	Number int32          // from 1
	Policy *policy.Policy // nil: this program can't run it
	Err    error          // why not: it may be from a newer release
}

// Read returns the active version, 0 when there has never been one, and all versions that are not among those known. The
// active one is among them or known. Mostly that is two statements that find nothing.
func Read(ctx context.Context, query *db.Queries, known []int32) (active int32, added []Version, err error) {
	if active, err = Active(ctx, query); err != nil { // first, or it could be newer than the versions that are read
		return 0, nil, err
	}
	rows, err := query.PoliciesUnknown(ctx, known)
	if err != nil {
		return 0, nil, fmt.Errorf("read policies: %w", err)
	}
	for _, row := range rows {
		v := Version{Number: row.Version}
		v.Policy, v.Err = policy.Parse([]byte(row.Source))
		added = append(added, v)
	}
	return active, added, nil
}

// OfLate returns the versions that are active, or were within the longest time that an order waits for an event.
func OfLate(ctx context.Context, query *db.Queries) ([]int32, error) {
	versions, err := query.PoliciesOfLate(ctx)
	if err != nil {
		return nil, fmt.Errorf("read policies of late: %w", err)
	}
	return versions, nil
}

// Active returns the active version, 0 when there has never been one.
func Active(ctx context.Context, query *db.Queries) (int32, error) {
	version, err := query.PolicyActive(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read active policy: %w", err)
	}
	return version, nil
}

// Source returns the text of a version as it was given. The error is ErrNotFound where there is no such version.
func Source(ctx context.Context, query *db.Queries, version int32) (string, error) {
	source, err := query.PolicyGet(ctx, version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("%w %d", ErrNotFound, version)
	}
	if err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	return source, nil
}

// List returns all versions, the lowest first, each with when and by whom it was last activated.
func List(ctx context.Context, query *db.Queries) ([]db.PoliciesListRow, error) {
	list, err := query.PoliciesList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	return list, nil
}
