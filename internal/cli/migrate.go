package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"pawl/internal/access"
	"pawl/internal/cli/output"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/migrations"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the schema of the database",
		Long: "Applies the migrations in this binary. Replicas that do it at the same time are safe.\n" +
			"The goose command runs the same files: goose -dir migrations postgres \"$DATABASE_URL\" up",
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("migrate: up, down, status or roles")}
		},
	}
	cmd.AddCommand(
		migration("up", "Apply pending migrations", &config{makesDatabase: true}, applyPending),
		migrateDownCommand(),
		migrateStatusCommand(),
		migrateRolesCommand(),
	)
	return cmd
}

func migration(name, short string, cfg *config, run func(ctx context.Context, url string, out io.Writer) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			database, err := openDatabase(cmd, cfg)
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

func applyPending(ctx context.Context, url string, out io.Writer) error {
	applied, err := migrations.Up(ctx, url)
	for _, name := range applied {
		fmt.Fprintln(out, "applied", name)
	}
	if len(applied) == 0 && err == nil {
		fmt.Fprintln(out, "nothing is pending")
	}
	return err
}

// migrateDownCommand takes two flags to lose data: one may be in somebody's fingers.
func migrateDownCommand() *cobra.Command {
	var yes, dropData bool
	cmd := migration("down", "Roll back the newest migration, and drop its data", &config{}, func(ctx context.Context, url string, out io.Writer) error {
		err := migrations.Down(ctx, url, func(r migrations.Rollback) error {
			return printRollback(out, r, yes && dropData)
		})
		if err == nil {
			fmt.Fprintln(out, "done")
		}
		return err
	})
	cmd.Long = "Takes back the newest migration, after it has printed what that drops. Where there are orders, or services\n" +
		"are connected to the database, it refuses without both --yes and --drop-data."
	cmd.Flags().BoolVar(&yes, "yes", false, "with --drop-data: go on although there are orders, or services run")
	cmd.Flags().BoolVar(&dropData, "drop-data", false, "with --yes: the data may be lost")
	return cmd
}

// migrateRolesCommand makes roles, or prints how, for whoever wants to read it first, or has a superuser run it.
func migrateRolesCommand() *cobra.Command {
	var prefix string
	var printOnly bool
	cmd := migration("roles", "Create database roles for the owner, the service and readers", &config{}, func(ctx context.Context, url string, out io.Writer) error {
		if err := migrations.Roles(ctx, url, prefix); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s_owner migrates and makes tokens, %[1]s_serve is for the service, %[1]s_read for reports. Nobody can log in as one of them: grant them.\n", prefix)
		return nil
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := migrations.RolesSQL(prefix)
		switch {
		case err != nil:
			return usageError{err}
		case printOnly:
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		default:
			return run(cmd, args)
		}
	}
	cmd.Long = "Makes the roles PREFIX_owner, PREFIX_serve and PREFIX_read, and grants each of them what it needs and no more.\n" +
		"Run it as a superuser, or as the owner of the database if that may create roles. From then on, pawl migrate up grants\n" +
		"them what a migration adds."
	cmd.Flags().StringVar(&prefix, "prefix", "pawl", "what the names of the roles begin with: they belong to the whole server")
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL, for psql, and connect to nothing")
	return cmd
}

// printRollback says what will be lost, and returns an error if nobody has agreed to lose it.
func printRollback(out io.Writer, r migrations.Rollback, agreed bool) error {
	fmt.Fprintf(out, "taking back %s:\n", r.Name)
	for _, statement := range r.Drops {
		fmt.Fprintln(out, " ", statement)
	}
	if agreed || r.Orders == 0 && r.Services == 0 {
		return nil
	}
	return fmt.Errorf("down is refused: orders in this database: %d, connections of running services: %d. "+
		"Stop the services and make a backup; --yes --drop-data goes on", r.Orders, r.Services)
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
	case errors.Is(err, pg.ErrUntrusted):
		return configError{err}
	case errors.Is(err, orders.ErrUnavailable), errors.Is(err, access.ErrUnavailable), errors.As(err, &connect), errors.As(err, &refused) && leavesConnection(refused.Code):
	case refused == nil && (errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed)):
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

func migrateStatusCommand() *cobra.Command {
	var format output.Format
	cmd := migration("status", "List the migrations", &config{}, func(ctx context.Context, url string, out io.Writer) error {
		list, err := migrations.Status(ctx, url)
		if err != nil {
			return err
		}
		return output.Columns[migrations.Migration]{Of: func(m *migrations.Migration) []any { return []any{m.Name, migrationState(m)} }}.Print(out, format, output.All(list))
	})
	format.AddTo(cmd.Flags())
	return cmd
}

func migrationState(m *migrations.Migration) string {
	if m.Applied {
		return m.AppliedAt.UTC().Format(time.RFC3339)
	}
	return "pending"
}
