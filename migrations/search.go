package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"pawl/internal/pg"
)

// SearchKeys are the metadata keys whose values a search of orders finds.
func SearchKeys(ctx context.Context, url string) (keys []string, err error) {
	err = withSchema(ctx, url, func(conn *pgx.Conn) error {
		keys, err = texts(ctx, conn, "search/keys")
		return err
	})
	return keys, err
}

// AddSearchKey makes an index of the values of a key, while orders are processed. Each order that has the key pays for an
// entry, when it is stored and when it ends. It needs the rights of the owner, and may be called again. Errors: ErrNotOwner.
func AddSearchKey(ctx context.Context, url, key string) error {
	return changeSearch(ctx, url, "search/add", key)
}

// RemoveSearchKey drops the index of a key. It may be called again. Errors: ErrNotOwner.
func RemoveSearchKey(ctx context.Context, url, key string) error {
	return changeSearch(ctx, url, "search/remove", key)
}

func changeSearch(ctx context.Context, url, statements, key string) error {
	return withSchema(ctx, url, func(conn *pgx.Conn) error {
		if err := checkOwner(ctx, conn); err != nil {
			return err
		}
		changes, err := texts(ctx, conn, statements, key)
		if err != nil {
			return err
		}
		for _, change := range changes {
			if _, err := conn.Exec(ctx, change); err != nil {
				return fmt.Errorf("change the index of metadata key %q: %w", key, err)
			}
		}
		return nil
	})
}

// withSchema connects to a database that has the schema.
func withSchema(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	return with(ctx, url, folder{files: files}, func(_ *goose.Provider, conn *pgx.Conn) error {
		if err := pg.FindSchema(ctx, conn); err != nil {
			return err
		}
		return do(conn)
	})
}

func texts(ctx context.Context, conn *pgx.Conn, name string, args ...any) ([]string, error) {
	rows, _ := conn.Query(ctx, statement(name), args...) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look at the indexes of metadata: %w", err)
	}
	return found, nil
}
