package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"pawl/migrations"
	"pawl/orders"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Change the schema of the database",
		Long: "Applies the migrations in this binary. Replicas that do it at the same time are safe.\n" +
			"The goose command runs the same files: goose -dir migrations postgres \"$DATABASE_URL\" up",
		RunE: func(*cobra.Command, []string) error { return usageError{errors.New("migrate: up, down or status")} },
	}
	cmd.AddCommand(
		migration("up", "Apply what is pending", func(ctx context.Context, url string, _ io.Writer) error {
			return migrations.Up(ctx, url)
		}),
		migration("down", "Take back the newest migration, and its data", func(ctx context.Context, url string, _ io.Writer) error {
			return migrations.Down(ctx, url)
		}),
		migration("status", "List the migrations", printStatus),
	)
	return cmd
}

func migration(name, short string, run func(ctx context.Context, url string, out io.Writer) error) *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use: name, Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			database, err := openDatabase(cmd.Context(), &cfg, newLogger(&cfg))
			if err != nil {
				return err
			}
			defer database.close()
			return databaseError(run(cmd.Context(), database.url, cmd.OutOrStdout()))
		},
	}
	cfg.addTo(cmd)
	return cmd
}

// databaseError tells a database that can't be reached, for which a supervisor waits, from one that refuses a migration
// or whose schema won't do, where every further attempt would end the same.
func databaseError(err error) error {
	var connect *pgconn.ConnectError
	var refused *pgconn.PgError
	var network net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, orders.ErrUnavailable), errors.As(err, &connect), errors.As(err, &refused) && leavesConnection(refused.Code):
	case refused == nil && (errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
	default:
		return err
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

// leavesConnection tells whether the server ended the connection with this SQLSTATE, or let
// nobody in: connection exceptions, shutdowns and too many connections.
func leavesConnection(code string) bool {
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0") || code == "53300"
}

func printStatus(ctx context.Context, url string, out io.Writer) error {
	list, err := migrations.Status(ctx, url)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range list {
		state := "pending"
		if m.Applied {
			state = m.AppliedAt.UTC().Format(time.RFC3339)
		}
		if m.Changed {
			state += "  changed after it was applied"
		}
		fmt.Fprintf(table, "%s\t%s\n", m.Name, state)
	}
	return table.Flush()
}
