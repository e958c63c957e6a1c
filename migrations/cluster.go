package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed cluster/*.sql
var clusterStatements embed.FS

// adoptCluster brings a database that was restored into another cluster to where new events come after the old ones. It needs the
// rights of the owner. Errors: ErrNotOwner.
func adoptCluster(ctx context.Context, conn *pgx.Conn) error {
	var differs bool
	err := conn.QueryRow(ctx, clusterStatement("differs")).Scan(&differs)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42P01" { // undefined_table: it is not that far yet
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !differs {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for another cluster: %w", err)
	}
	_, err = conn.Exec(ctx, clusterStatement("adopt"))
	if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("%w: the database was restored into another cluster", ErrNotOwner)
	}
	if err != nil {
		return fmt.Errorf("adopt another cluster: %w", err)
	}
	return nil
}

func clusterStatement(name string) string {
	text, err := clusterStatements.ReadFile("cluster/" + name + ".sql")
	if err != nil {
		panic("migrations: " + err.Error()) // the build is broken
	}
	return string(text)
}
