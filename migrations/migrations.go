// Package migrations holds the schema as goose files and applies them.
//
// The files are plain SQL, each one transaction; the stock goose command runs the
// same folder. An applied file is never edited: what changes is added first, used
// by the next release and dropped by the one after, because two releases of the
// service work on one database while it is deployed.
package migrations

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"pawl/db"
)

//go:embed *.sql
var files embed.FS

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
func Up(ctx context.Context, url string) error {
	return with(url, func(p *goose.Provider) error {
		pending, err := p.HasPending(ctx)
		if err != nil || !pending {
			return err
		}
		_, err = p.Up(ctx)
		return err
	})
}

// Down takes back the newest migration, and its data with it.
func Down(ctx context.Context, url string) error {
	return with(url, func(p *goose.Provider) error {
		_, err := p.Down(ctx)
		return err
	})
}

// Migration is one file and what the database knows of it.
type Migration struct {
	Name      string
	Applied   bool
	AppliedAt time.Time // zero unless applied
}

// Status lists all migrations in their order.
func Status(ctx context.Context, url string) ([]Migration, error) {
	var out []Migration
	err := with(url, func(p *goose.Provider) error {
		list, err := p.Status(ctx)
		for _, m := range list {
			out = append(out, Migration{Name: m.Source.Path, Applied: m.State == goose.StateApplied, AppliedAt: m.AppliedAt})
		}
		return err
	})
	return out, err
}

func with(url string, do func(*goose.Provider) error) error {
	config, err := db.ParseConfig(url)
	if err != nil {
		return err
	}
	// No prepared statements: they fail behind a transaction pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	sqlDB := stdlib.OpenDB(*config) // goose needs database/sql; nothing else may use it
	defer sqlDB.Close()
	// The lease is short, so that a process killed while it migrates holds up the next
	// start for seconds only; a beat renews it during a long migration.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableLockTimeout(200*time.Millisecond, 300),
		lock.WithTableLeaseDuration(6*time.Second), lock.WithTableHeartbeatInterval(time.Second))
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, files, goose.WithLocker(locker))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if err := do(provider); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
