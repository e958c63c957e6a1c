package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"pawl/db"
	"pawl/internal/pg"
)

// ErrNoneApplied: there is no migration to take back.
var ErrNoneApplied = errors.New("no migration is applied")

// Rollback is a migration that is about to be taken back, and who would miss it.
type Rollback struct {
	Name     string   // its file
	Drops    []string // its statements that drop something, or delete rows
	Orders   int64    // in the database
	Services int64    // connections of running services to the database
}

// Down takes back the newest migration, and its data with it. First it asks allow, whose
// error ends it. Where nothing is applied, it returns ErrNoneApplied.
func Down(ctx context.Context, url string, allow func(Rollback) error) error {
	return changing(ctx, url, files, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := refuseOthers(ctx, conn); err != nil {
			return err
		}
		next, err := readRollback(ctx, p, conn)
		if err != nil {
			return err
		}
		if err := allow(next); err != nil {
			return err
		}
		_, err = p.Down(ctx)
		return err
	})
}

func readRollback(ctx context.Context, p *goose.Provider, conn *pgx.Conn) (r Rollback, err error) {
	version, err := p.GetDBVersion(ctx)
	if err != nil {
		return r, fmt.Errorf("read version: %w", err)
	}
	if version == 0 {
		return r, ErrNoneApplied
	}
	sources := p.ListSources()
	i := slices.IndexFunc(sources, func(s *goose.Source) bool { return s.Version == version })
	if i < 0 {
		return r, fmt.Errorf("migration %d is not in this program: take it back with the release that applied it", version)
	}
	text, err := fs.ReadFile(files, sources[i].Path)
	if err != nil {
		return r, err
	}
	r.Name, r.Drops = sources[i].Path, drops(string(text))
	if r.Orders, err = countOrders(ctx, conn); err != nil {
		return r, fmt.Errorf("count orders: %w", err)
	}
	if r.Services, err = db.New(conn).SchemaServices(ctx, pg.ServiceName); err != nil {
		return r, fmt.Errorf("count connections of services: %w", err)
	}
	return r, nil
}

// countOrders counts none where there is no table of them.
func countOrders(ctx context.Context, conn *pgx.Conn) (int64, error) {
	n, err := db.New(conn).SchemaOrders(ctx)
	if pg.CodeOf(err) == "42P01" { // undefined_table
		return 0, nil
	}
	return n, err
}

var dropStatement = regexp.MustCompile(`(?m)^(DROP [^;]*|DELETE FROM [^;]*|ALTER TABLE [^;]*\bDROP [^;]*);`)

// drops are the statements of a file's part Down that drop something, or delete rows, each on a line.
func drops(file string) (statements []string) {
	_, down, _ := strings.Cut(file, "-- +goose Down\n")
	for _, match := range dropStatement.FindAllStringSubmatch(down, -1) {
		statements = append(statements, strings.Join(strings.Fields(match[1]), " "))
	}
	return statements
}
