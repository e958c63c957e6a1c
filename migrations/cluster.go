package migrations

import (
	"context"
	"errors"
	"fmt"

	"pawl/db"

	"github.com/jackc/pgx/v5"
)

// adoptCluster brings a database that was restored into another cluster to where new events come after the old ones. It needs the
// rights of the owner. Errors: ErrNotOwner.
func adoptCluster(ctx context.Context, conn *pgx.Conn) error {
	var differs bool
	err := conn.QueryRow(ctx, statement("cluster/differs")).Scan(&differs)
	if db.CodeOf(err) == "42P01" { // undefined_table: it is not that far yet
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !differs {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for another cluster: %w", err)
	}
	_, err = conn.Exec(ctx, statement("cluster/adopt"))
	if db.CodeOf(err) == "42501" { // insufficient_privilege
		return fmt.Errorf("%w: the database was restored into another cluster", ErrNotOwner)
	}
	if err != nil {
		return fmt.Errorf("adopt another cluster: %w", err)
	}
	return nil
}
