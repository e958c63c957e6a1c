package engine

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/db"
)

// watchedDB notes the errors of all statements of the engine that speak against the schema.
type watchedDB struct {
	db.DBTX
	fitness *fitness
}

func (f *fitness) note(err error) {
	if err != nil && db.Unfit(err) {
		f.met.Add(1)
	}
}

// Exec executes and notes.
func (w watchedDB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := w.DBTX.Exec(ctx, sql, args...)
	w.fitness.note(err)
	return tag, err
}

// Query queries and notes: some errors come with the rows.
func (w watchedDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := w.DBTX.Query(ctx, sql, args...) //nolint:rowserrcheck // who reads them does
	w.fitness.note(err)
	return watchedRows{rows, w.fitness}, err
}

// QueryRow queries and notes.
func (w watchedDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return watchedRow{w.DBTX.QueryRow(ctx, sql, args...), w.fitness}
}

type watchedRows struct {
	pgx.Rows
	fitness *fitness
}

// Err is asked for once all rows were read.
func (r watchedRows) Err() error {
	err := r.Rows.Err()
	r.fitness.note(err)
	return err
}

type watchedRow struct {
	pgx.Row
	fitness *fitness
}

// Scan reads the row and notes.
func (r watchedRow) Scan(into ...any) error {
	err := r.Row.Scan(into...)
	r.fitness.note(err)
	return err
}
