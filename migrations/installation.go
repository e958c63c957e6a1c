package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/cell"
	"pawl/internal/pg"
)

// A database stores where it belongs: its cluster and its number there, as of the first start, and the name of its
// installation, if it has one. To providers and receivers, a restored or copied database is the same one. A service on
// it would charge customers and send events beside the service on the original.

// Place is where a database is, and where it belongs.
type Place struct{ db.InstallationPlaceRow }

// ReadPlace reads the place of a database. A database without a schema belongs where it is.
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

// Stranger says why the database does not belong to a service with this installation name; empty: it does. Without a
// name, only the cluster and the number are compared.
func (p Place) Stranger(name string) string {
	switch {
	case p.HomeSystem != 0 && p.System != 0 && p.HomeSystem != p.System:
		return "it comes from another PostgreSQL cluster"
	case p.HomeDatabase != 0 && p.HomeDatabase != p.Database:
		return "it is a copy of another database of this cluster"
	case p.divided() != "":
		return "it is being divided into the cells " + p.divided() + ": say with pawl adopt --cell which of them this database is"
	case p.Name != "" && name != "" && p.Name != name:
		return fmt.Sprintf("it belongs to the installation %q, and this is %q", p.Name, name)
	default:
		return ""
	}
}

// divided says into which cells the database is being divided; empty: it is not.
func (p Place) divided() string {
	if text := p.InstallationPlaceRow.Cell; strings.Contains(text, "+") {
		return text
	}
	return ""
}

// Cell returns which orders the database has: all, until a service has stored its place.
func (p Place) Cell() cell.Cell {
	if c, err := cell.Parse(p.InstallationPlaceRow.Cell); err == nil && p.HomeDatabase != 0 {
		return c
	}
	return cell.All
}

// OtherCell says why a service with this cell must not run on the database; empty: it may. The zero Cell is any.
func (p Place) OtherCell(c cell.Cell) string {
	if c == (cell.Cell{}) || p.HomeDatabase == 0 || p.divided() != "" || c == p.Cell() {
		return ""
	}
	return fmt.Sprintf("the database has the orders of cell %s, not of %s", p.Cell(), c)
}

// Same reports whether both are the same database in the same place.
func (p Place) Same(other Place) bool {
	p.Name = other.Name // may be set while services run
	return p == other
}

// Settle stores where the database belongs, as far as that is not stored yet, and reads it. The database must not be a
// stranger. Settle needs the rights of the service. On a standby, where a service may start during a failover,
// everything is stored already. The first service also stores the cell; the zero Cell is the one of all orders.
func Settle(ctx context.Context, query *db.Queries, name string, c cell.Cell) (Place, error) {
	now, err := ReadPlace(ctx, query)
	if err != nil || now.HomeDatabase != 0 && (now.HomeSystem != 0 || now.System == 0) && (now.Name != "" || name == "") {
		return now, err
	}
	if c == (cell.Cell{}) {
		c = cell.All
	}
	if _, err := query.InstallationSettle(ctx, db.InstallationSettleParams{Name: name, Cell: c.String()}); err != nil {
		return Place{}, fmt.Errorf("store where the database belongs: %w", err)
	}
	return ReadPlace(ctx, query)
}

// Adoption says what a database becomes.
type Adoption struct {
	Name   string    // of the installation; empty: unchanged
	AsCopy bool      // a separate installation, not a replacement of the original
	Cell   cell.Cell // which half of a divided database this becomes; zero: it is not divided
	Actor  string    // the actor, for the access log
}

// InUse is the error of Adopt while a service drives the database, or may drive it: until its leases end.
type InUse struct{ Until time.Time }

func (e *InUse) Error() string {
	return "a service drives this database, or did so when it was copied: stop it, and try again after " + e.Until.UTC().Format(time.RFC3339)
}

// ErrNotDivided is the error of Adopt with a cell that is no half of the database.
var ErrNotDivided = errors.New("the database is not being divided into this cell and another one: see pawl divide")

// Divide prepares the database to become two cells: while it is divided, and a standby of it is promoted, services only
// read both. Adopt then makes this database the lower half, and the promoted one the upper. If a failover replaces this
// database in between, Divide must be called on the new one, too, before the standby is promoted. It needs the rights of
// the owner, and to end the connections of services (pg_signal_backend). Errors: ErrNotOwner, *InUse.
func Divide(ctx context.Context, url, actor string) (halves [2]cell.Cell, err error) {
	err = asOwner(ctx, url, "divide", func(tx pgx.Tx) error {
		query := db.New(tx)
		if err := refuseInUse(ctx, tx, query); err != nil {
			return err
		}
		if _, err := query.ServicesDisconnect(ctx, pg.ServiceName); err != nil { // nothing is divided without the right to do so
			return err
		}
		place, err := ReadPlace(ctx, query)
		if err != nil {
			return err
		}
		if why := place.Stranger(""); why != "" && place.divided() == "" {
			return fmt.Errorf("%s: see pawl adopt", why)
		}
		// Adopt tells the divided database from a promoted standby by the history of its log, which the relay keeps.
		if _, err := query.EventRelayHold(ctx, db.EventRelayHoldParams{Owner: uuid.New()}); err != nil {
			return fmt.Errorf("record the history: %w", err)
		}
		whole := place.Cell()
		if _, upper, divided := strings.Cut(place.divided(), "+"); divided {
			half, err := cell.Parse(upper)
			halves = half.Whole().Halves()
			return err
		}
		halves = whole.Halves()
		_, err = query.InstallationDivide(ctx, db.InstallationDivideParams{Cell: whole.String(), Halves: whole.Divided(), Actor: actor})
		return err
	})
	if err == nil { // a replica that stood still must not go on with a connection of the undivided cell
		err = asOwner(ctx, url, "disconnect services", func(tx pgx.Tx) error {
			_, err := db.New(tx).ServicesDisconnect(ctx, pg.ServiceName)
			return err
		})
	}
	return halves, err
}

// Adopt makes the database belong where it is, as the same installation or as a separate one. It needs the rights of
// the owner, and is one transaction. Errors: ErrNotOwner, ErrNotDivided, *InUse.
func Adopt(ctx context.Context, url string, a Adoption) error {
	return asOwner(ctx, url, "adopt", func(tx pgx.Tx) error {
		query := db.New(tx)
		if err := refuseInUse(ctx, tx, query); err != nil {
			return err
		}
		return adopt(ctx, tx, query, a)
	})
}

// asOwner runs a transaction with the rights of the owner.
func asOwner(ctx context.Context, url, doing string, do func(pgx.Tx) error) error {
	conn, err := connect(ctx, url, pgx.QueryExecModeCacheStatement)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", doing, err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, do)
	if pg.CodeOf(err) == "42501" { // insufficient_privilege
		err = ErrNotOwner
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// refuseInUse keeps services from writing until the end of the transaction, and returns *InUse if one has a lease.
func refuseInUse(ctx context.Context, tx pgx.Tx, query *db.Queries) error {
	if _, err := tx.Exec(ctx, statement("installation/lock")); err != nil {
		return err
	}
	until, err := query.InstallationDrivenUntil(ctx)
	switch {
	case err == nil:
		return &InUse{until}
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	}
	return err
}

// checkHalf returns an error unless a database may become a half. Without this, both could become the same one, and both
// would drive its orders.
func checkHalf(ctx context.Context, query *db.Queries, half cell.Cell) error {
	divided, err := query.InstallationHistoryContinues(ctx)
	halves := half.Whole().Halves()
	switch {
	case err != nil:
		return fmt.Errorf("read the history: %w", err)
	case divided && half != halves[0]:
		return fmt.Errorf("the database that was divided becomes cell %s, and the promoted standby %s", halves[0], half)
	case !divided && half != halves[1]:
		return fmt.Errorf("a database that was promoted or copied since it was divided becomes cell %s, and the divided one %s", halves[1], half)
	}
	return nil
}

func adopt(ctx context.Context, tx pgx.Tx, query *db.Queries, a Adoption) error {
	place, err := ReadPlace(ctx, query)
	if err != nil {
		return err
	}
	as := db.InstallationAdoptParams{Name: strings.TrimSpace(a.Name), Event: "database_adopted", Actor: a.Actor}
	after := []string{"positions"} // a new epoch for the feed
	switch both := place.divided(); {
	case a.AsCopy:
		as.Event = "database_adopted_as_copy"
		if _, err := tx.Exec(ctx, statement("installation/copy")); err != nil {
			return err
		}
	case a.Cell != (cell.Cell{}) || both != "":
		if a.Cell == (cell.Cell{}) || a.Cell.Whole().Divided() != both {
			return ErrNotDivided
		}
		if err := checkHalf(ctx, query, a.Cell); err != nil {
			return err
		}
		as.Event, as.Cell = "database_adopted_as_cell", a.Cell.String()
		if a.Cell.Number%2 == 0 {
			after = nil // the lower half continues the feed
		}
		after = append(after, "divide")
	}
	if _, err := query.InstallationAdopt(ctx, as); err != nil {
		return err
	}
	for _, name := range after {
		if _, err := tx.Exec(ctx, statement("installation/"+name)); err != nil {
			return err
		}
	}
	return nil
}
