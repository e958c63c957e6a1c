package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
)

// A database knows where it belongs: in which cluster and under which number, stored at the first start on it, and under which name,
// if its owner has given it one. What was restored or copied from it is the same database to providers and receivers. A service on it
// would charge their customers, and send them events, beside the one that belongs there.

// Place says where a database is, and where it belongs.
type Place struct{ db.InstallationPlaceRow }

// ReadPlace reads it. A database without a schema is in its place.
func ReadPlace(ctx context.Context, query *db.Queries) (Place, error) {
	row, err := query.InstallationPlace(ctx)
	switch {
	case pg.SchemaMismatch(err), pg.CodeOf(err) == "3F000": // invalid_schema_name
		return Place{}, nil
	case err != nil:
		return Place{}, fmt.Errorf("read where the database belongs: %w", err)
	}
	return Place{row}, nil
}

// Stranger says why a service with the name of an installation does not belong on the database; empty: it does. A service without a name
// goes by the cluster and the database alone.
func (p Place) Stranger(name string) string {
	switch {
	case p.HomeSystem != 0 && p.System != 0 && p.HomeSystem != p.System:
		return "it comes from another PostgreSQL cluster"
	case p.HomeDatabase != 0 && p.HomeDatabase != p.Database:
		return "it is a copy of another database of this cluster"
	case p.Name != "" && name != "" && p.Name != name:
		return fmt.Sprintf("it belongs to the installation %q, and this is %q", p.Name, name)
	default:
		return ""
	}
}

// Same reports whether two looks saw one database at one place.
func (p Place) Same(other Place) bool {
	p.Name = other.Name // may be given while services run
	return p == other
}

// Settle stores where a database belongs that is in its place, as far as that is not stored yet, and reads it. It needs the rights of
// the service. A standby, which a service may start on during a failover, has everything stored.
func Settle(ctx context.Context, query *db.Queries, name string) (Place, error) {
	now, err := ReadPlace(ctx, query)
	if err != nil || now.HomeDatabase != 0 && (now.HomeSystem != 0 || now.System == 0) && (now.Name != "" || name == "") {
		return now, err
	}
	if _, err := query.InstallationSettle(ctx, name); err != nil {
		return Place{}, fmt.Errorf("store where the database belongs: %w", err)
	}
	return ReadPlace(ctx, query)
}

// Adoption is what a database is to become.
type Adoption struct {
	Name   string // of the installation; empty: none, or the one that it has
	AsCopy bool   // beside the one that it was copied from, and not in its place
	Actor  string // who does it, for the access log
}

// InUse is the error of Adopt while a service drives the database, or may: what it has leased lasts until then.
type InUse struct{ Until time.Time }

func (e *InUse) Error() string {
	return "a service drives this database, or did so when it was copied: stop it, and try again after " + e.Until.UTC().Format(time.RFC3339)
}

// Adopt has a database belong where it is, as the one that it was, or as an installation of its own. It needs the rights of the
// owner, and is one transaction. Errors: ErrNotOwner, *InUse.
func Adopt(ctx context.Context, url string, a Adoption) error {
	conn, err := connect(ctx, url, pgx.QueryExecModeCacheStatement)
	if err != nil {
		return fmt.Errorf("connect to adopt: %w", err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return adopt(ctx, tx, a) })
	if pg.CodeOf(err) == "42501" { // insufficient_privilege
		err = ErrNotOwner
	}
	if err != nil {
		return fmt.Errorf("adopt: %w", err)
	}
	return nil
}

func adopt(ctx context.Context, tx pgx.Tx, a Adoption) error {
	if _, err := tx.Exec(ctx, statement("installation/positions")); err != nil { // also keeps services from writing until the end
		return err
	}
	query := db.New(tx)
	until, err := query.InstallationDrivenUntil(ctx)
	if err == nil {
		return &InUse{until}
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	event := "database_adopted"
	if a.AsCopy {
		event = "database_adopted_as_copy"
		if _, err := tx.Exec(ctx, statement("installation/copy")); err != nil {
			return err
		}
	}
	_, err = query.InstallationAdopt(ctx, db.InstallationAdoptParams{Name: strings.TrimSpace(a.Name), Event: event, Actor: a.Actor})
	return err
}
