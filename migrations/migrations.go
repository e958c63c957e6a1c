// Package migrations holds the schema as goose files and applies them.
//
// The files are plain SQL, each one transaction; the stock goose command runs the
// same folder. An applied file is never edited: what changes is added first, used
// by the next release and dropped by the one after, because two releases of the
// service work on one database while it is deployed.
package migrations

import (
	"context"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"pawl/db"
	"pawl/internal/pg"
)

// ErrNotOwner: a migration is to be applied or taken back, and the role that was connected as may not do that.
var ErrNotOwner = errors.New("this role may not change the schema: let the owner run pawl migrate up, and pawl migrate roles")

//go:embed *.sql
var files embed.FS

// The statements about the installation and about roles, which no query of the service uses.
//
//go:embed installation/*.sql roles/*.sql
var statements embed.FS

// versionTable is where the stock command keeps what it applied, on a database with the search_path that it was made with.
const versionTable = "public.goose_db_version"

// Version is the newest migration that this binary holds.
func Version() int64 {
	entries, err := files.ReadDir(".") // sorted by name
	if err == nil {
		if version, err := goose.NumericComponent(entries[len(entries)-1].Name()); err == nil {
			return version
		}
	}
	panic("migrations: the embedded files are not migrations") // the build is broken
}

// Up applies what is pending. Replicas that start together are safe: one of them
// migrates, the others wait for it. The lock is a row of a table, not an advisory
// lock of a session, which would exclude nobody behind a transaction pooler.
//
// Where the roles of the service were made before, they are granted what was added. Their rights went with the tables that a
// migration took away, and the goose command grants nothing.
//
// It returns the names of the files that it applied, also with an error.
func Up(ctx context.Context, url string) (applied []string, err error) { return up(ctx, url, files) }

func up(ctx context.Context, url string, files fs.FS) (applied []string, err error) {
	err = changing(ctx, url, files, func(p *goose.Provider, conn *pgx.Conn) error {
		made, err := db.New(conn).SchemaMade(ctx)
		if err != nil {
			return fmt.Errorf("look for migrations: %w", err)
		}
		if !made { // goose would try to make its table
			if err := refuseOthers(ctx, conn); err != nil {
				return err
			}
		}
		pending, err := p.HasPending(ctx)
		if err != nil {
			return err
		}
		if pending {
			if err := refuseOthers(ctx, conn); err != nil {
				return err
			}
			if applied, err = applyPending(ctx, p); err != nil {
				return err
			}
		}
		return grantAnew(ctx, conn, len(applied) > 0)
	})
	return applied, err
}

func applyPending(ctx context.Context, p *goose.Provider) (applied []string, err error) {
	results, err := p.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, err
}

// Migration is one file and what the database knows of it.
type Migration struct {
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"appliedAt,omitzero"` // zero unless applied
}

// Status lists all migrations in their order, and changes nothing.
func Status(ctx context.Context, url string) ([]Migration, error) {
	var out []Migration
	err := with(ctx, url, folder{files: files}, func(p *goose.Provider, conn *pgx.Conn) error {
		if made, err := db.New(conn).SchemaMade(ctx); err != nil || !made { // goose would make its table
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

// changing is with for a command that changes the schema, or may: one of them at a time.
func changing(ctx context.Context, url string, files fs.FS, do func(*goose.Provider, *pgx.Conn) error) error {
	// The lease is short, so that a process killed while it migrates holds up the next
	// start for seconds only; a beat renews it during a long migration.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName("public.goose_lock"), lock.WithTableLockTimeout(200*time.Millisecond, 300),
		lock.WithTableLeaseDuration(6*time.Second), lock.WithTableHeartbeatInterval(time.Second))
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	return with(ctx, url, folder{files, []goose.ProviderOption{goose.WithLocker(locker)}}, do)
}

// folder is what goose works on, and how.
type folder struct {
	files   fs.FS
	options []goose.ProviderOption
}

// with opens what a command needs: goose, and a connection.
func with(ctx context.Context, url string, of folder, do func(*goose.Provider, *pgx.Conn) error) error {
	config, err := pg.ConnectConfig(ctx, url)
	if err != nil {
		return err
	}
	// No prepared statements: they fail behind a transaction pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	sqlDB := stdlib.OpenDB(*config) // goose needs database/sql; nothing else may use it
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, of.files, append(of.options, goose.WithTableName(versionTable))...)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect to migrate: %w", err)
	}
	defer conn.Close(ctx)
	if err := refuseUntrusted(ctx, conn); err != nil {
		return err
	}
	if err := refuseForeign(ctx, conn); err != nil {
		return err
	}
	if err := do(provider, conn); err != nil {
		if errors.Is(err, driver.ErrBadConn) { // what database/sql calls a lost connection
			err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// refuseForeign: goose knows migrations by their numbers, and would take those of another program for ours.
func refuseForeign(ctx context.Context, conn *pgx.Conn) error {
	err := pg.FindSchema(ctx, conn)
	if missing, ok := errors.AsType[*pg.NoSchema](err); ok && missing.Empty {
		return nil
	}
	return err
}

// refuseUntrusted: a table of goose's that somebody else has made could run his triggers with our rights. So could one in
// our own schemas, but goose stops where a migration finds one of those.
func refuseUntrusted(ctx context.Context, conn *pgx.Conn) error {
	names, err := db.New(conn).SchemaUntrusted(ctx)
	if err != nil {
		return fmt.Errorf("look at the tables of goose: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: somebody else owns the table public.%s, in which the migrations that were applied are kept",
			pg.ErrUntrusted, strings.Join(names, ", public."))
	}
	return nil
}

// refuseOthers: goose would try for a minute to take its lock.
func refuseOthers(ctx context.Context, conn *pgx.Conn) error {
	may, err := db.New(conn).SchemaMayMigrate(ctx)
	if err != nil {
		return fmt.Errorf("look at what this role may do: %w", err)
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
