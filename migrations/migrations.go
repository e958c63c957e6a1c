// Package migrations has the schema as goose files, and applies them.
//
// The files are plain SQL, each one transaction; the stock goose command runs the same folder. A released file is never
// edited. During an upgrade, two releases of the service share one database, so a change is first added, used by the
// next release, and its old form dropped by the one after.
package migrations

import (
	"context"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"pawl/db"
	"pawl/internal/pg"
)

// ErrNotOwner is the error of a role that tries to change a schema that it does not own.
var ErrNotOwner = errors.New("this role may not change the schema: run pawl migrate up and pawl migrate roles as the owner")

//go:embed *.sql
var files embed.FS

// The statements about the installation, roles and searchable metadata. The service does not use them.
//
//go:embed installation/*.sql roles/*.sql search/*.sql
var statements embed.FS

// versionTable is the table in which the goose command records the applied migrations.
const versionTable = "public.goose_db_version"

// Version is the newest migration of this program.
func Version() int64 {
	entries, err := files.ReadDir(".") // sorted by name
	if err == nil {
		if version, err := goose.NumericComponent(entries[len(entries)-1].Name()); err == nil {
			return version
		}
	}
	panic("migrations: the embedded files are not migrations") // the build is broken
}

// Up applies pending migrations. If replicas start together, one of them migrates, and the others wait. The lock is a
// row of a table, because an advisory lock of a session does not work behind a transaction pooler.
//
// If the roles of the service exist, Up grants them what the migrations have added. The goose command does not.
//
// It returns the names of the applied files, also with an error.
func Up(ctx context.Context, url string) (applied []string, err error) { return up(ctx, url, files) }

func up(ctx context.Context, url string, files fs.FS) (applied []string, err error) {
	err = changing(ctx, url, files, func(p *goose.Provider, conn *pgx.Conn) error {
		made, err := db.New(conn).SchemaMade(ctx)
		if err != nil {
			return fmt.Errorf("read applied migrations: %w", err)
		}
		pending := !made // otherwise goose would try to create its table
		if made {
			if pending, err = p.HasPending(ctx); err != nil {
				return err
			}
		}
		if pending {
			if err := checkOwner(ctx, conn); err != nil {
				return err
			}
			results, err := p.Up(ctx)
			if partial, ok := errors.AsType[*goose.PartialError](err); ok {
				results = partial.Applied
			}
			for _, r := range results {
				applied = append(applied, r.Source.Path)
			}
			if err != nil {
				return err
			}
		}
		return grantAnew(ctx, conn, len(applied) > 0)
	})
	return applied, err
}

// ErrNoneApplied is the error of Down if no migration is applied.
var ErrNoneApplied = errors.New("no migration is applied")

// Rollback is a migration that is about to be rolled back, and what would be lost.
type Rollback struct {
	Name     string   // its file
	Drops    []string // its statements that drop objects or delete rows
	Orders   int64    // in the database
	Services int64    // connections of running services to the database
}

// Down rolls back the newest migration, with its data, unless allow returns an error.
func Down(ctx context.Context, url string, allow func(Rollback) error) error {
	return changing(ctx, url, files, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := checkOwner(ctx, conn); err != nil {
			return err
		}
		next, err := readRollback(ctx, p, conn)
		if err == nil {
			err = allow(next)
		}
		if err == nil {
			_, err = p.Down(ctx)
		}
		return err
	})
}

func readRollback(ctx context.Context, p *goose.Provider, conn *pgx.Conn) (r Rollback, err error) {
	version, err := p.GetDBVersion(ctx)
	switch {
	case err != nil:
		return r, fmt.Errorf("read version: %w", err)
	case version == 0:
		return r, ErrNoneApplied
	}
	sources := p.ListSources()
	i := slices.IndexFunc(sources, func(s *goose.Source) bool { return s.Version == version })
	if i < 0 {
		return r, fmt.Errorf("migration %d is not in this program: roll it back with the release that applied it", version)
	}
	text, err := fs.ReadFile(files, sources[i].Path)
	if err != nil {
		return r, err
	}
	r.Name, r.Drops = sources[i].Path, drops(string(text))
	query := db.New(conn)
	if r.Orders, err = query.SchemaOrders(ctx); err != nil && pg.CodeOf(err) != "42P01" { // undefined_table: there are none
		return r, fmt.Errorf("count orders: %w", err)
	}
	if r.Services, err = query.SchemaServices(ctx, pg.ServiceName); err != nil {
		return r, fmt.Errorf("count connections of services: %w", err)
	}
	return r, nil
}

var dropStatement = regexp.MustCompile(`(?m)^(DROP [^;]*|DELETE FROM [^;]*|ALTER TABLE [^;]*\bDROP [^;]*);`)

// drops returns the statements in the Down part of a file that drop objects or delete rows, each on one line.
func drops(file string) (statements []string) {
	_, down, _ := strings.Cut(file, "-- +goose Down\n")
	for _, match := range dropStatement.FindAllStringSubmatch(down, -1) {
		statements = append(statements, strings.Join(strings.Fields(match[1]), " "))
	}
	return statements
}

// Migration is a file and its state in the database.
type Migration struct {
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"appliedAt,omitzero"` // zero unless applied
}

// Status lists all migrations in their order, and changes nothing.
func Status(ctx context.Context, url string) ([]Migration, error) {
	var out []Migration
	err := with(ctx, url, folder{files: files}, func(p *goose.Provider, conn *pgx.Conn) error {
		if made, err := db.New(conn).SchemaMade(ctx); err != nil || !made { // otherwise goose would create its table
			for _, source := range p.ListSources() {
				out = append(out, Migration{Name: source.Path})
			}
			return err
		}
		list, err := p.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range list {
			out = append(out, Migration{Name: m.Source.Path, Applied: m.State == goose.StateApplied, AppliedAt: m.AppliedAt})
		}
		return nil
	})
	return out, err
}

// changing is with for commands that change the schema, of which one runs at a time.
func changing(ctx context.Context, url string, files fs.FS, do func(*goose.Provider, *pgx.Conn) error) error {
	// The lease is short, so that a process that is killed while it migrates delays the next one only for seconds. It
	// is renewed during a long migration.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName("public.goose_lock"), lock.WithTableLockTimeout(200*time.Millisecond, 300),
		lock.WithTableLeaseDuration(6*time.Second), lock.WithTableHeartbeatInterval(time.Second))
	if err != nil {
		return fmt.Errorf("create migration lock: %w", err)
	}
	return with(ctx, url, folder{files, []goose.ProviderOption{goose.WithLocker(locker)}}, do)
}

// folder has the files for goose, and its options.
type folder struct {
	files   fs.FS
	options []goose.ProviderOption
}

// with calls do with goose and a connection.
func with(ctx context.Context, url string, of folder, do func(*goose.Provider, *pgx.Conn) error) error {
	conn, err := connect(ctx, url, pgx.QueryExecModeExec) // prepared statements fail behind a transaction pooler
	if err != nil {
		return fmt.Errorf("connect to migrate: %w", err)
	}
	defer conn.Close(ctx)
	sqlDB := stdlib.OpenDB(*conn.Config()) // only goose needs database/sql
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, of.files, append(of.options, goose.WithTableName(versionTable))...)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if err := checkTables(ctx, conn); err != nil {
		return err
	}
	if err := do(provider, conn); err != nil {
		if errors.Is(err, driver.ErrBadConn) { // database/sql's error for a lost connection
			err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func connect(ctx context.Context, url string, mode pgx.QueryExecMode) (*pgx.Conn, error) {
	config, err := pg.ConnectConfig(ctx, url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = mode
	return pgx.ConnectConfig(ctx, config)
}

// checkTables rejects a table of goose that another role owns, because its triggers would run with our rights, or that
// belongs to another program: goose identifies migrations only by their numbers, and would take them for ours. In our
// own schemas, a migration fails if a table exists.
func checkTables(ctx context.Context, conn *pgx.Conn) error {
	names, err := db.New(conn).SchemaUntrusted(ctx)
	if err != nil {
		return fmt.Errorf("read the tables of goose: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: another role owns the table public.%s, which records the applied migrations",
			pg.ErrUntrusted, strings.Join(names, ", public."))
	}
	err = pg.FindSchema(ctx, conn)
	if missing, ok := errors.AsType[*pg.NoSchema](err); ok && missing.Empty {
		return nil
	}
	return err
}

// checkOwner returns ErrNotOwner at once, because goose would try for a minute to take its lock.
func checkOwner(ctx context.Context, conn *pgx.Conn) error {
	may, err := db.New(conn).SchemaMayMigrate(ctx)
	if err != nil {
		return fmt.Errorf("read the rights of this role: %w", err)
	}
	if !may {
		return ErrNotOwner
	}
	return nil
}

func statement(name string) string {
	text, err := statements.ReadFile(name + ".sql")
	if err != nil {
		panic("migrations: " + err.Error()) // the build is broken
	}
	return string(text)
}
