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
		Long: "Applies the migrations in this binary. Several processes can safely do so at the same time.\n" +
			"The goose command runs the same files: goose -dir migrations postgres \"$DATABASE_URL\" up",
	}
	cmd.AddCommand(
		migration("up", "Apply pending migrations", &config{makesDatabase: true}, applyPending),
		migrateDownCommand(),
		migrateStatusCommand(),
		migrateRolesCommand(),
		migrateSearchCommand(),
	)
	return cmd
}

// migration returns a command that works on the database at url.
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

// migrateDownCommand needs two flags to lose data, because one is easily typed by habit.
func migrateDownCommand() *cobra.Command {
	var yes, dropData bool
	down := func(ctx context.Context, url string, out io.Writer) error {
		err := migrations.Down(ctx, url, func(r migrations.Rollback) error { return printRollback(out, r, yes && dropData) })
		if err == nil {
			fmt.Fprintln(out, "done")
		}
		return err
	}
	cmd := migration("down", "Roll back the newest migration, and drop its data", &config{}, down)
	cmd.Long = "Prints what the newest migration drops and rolls it back. If there are orders, or services are connected,\n" +
		"it requires both --yes and --drop-data."
	cmd.Flags().BoolVar(&yes, "yes", false, "with --drop-data: roll back despite orders or running services")
	cmd.Flags().BoolVar(&dropData, "drop-data", false, "with --yes: drop the data")
	return cmd
}

func printRollback(out io.Writer, r migrations.Rollback, agreed bool) error {
	fmt.Fprintf(out, "rolling back %s:\n", r.Name)
	for _, statement := range r.Drops {
		fmt.Fprintln(out, " ", statement)
	}
	if agreed || r.Orders == 0 && r.Services == 0 {
		return nil
	}
	return fmt.Errorf("not rolled back: orders in this database: %d, connections of running services: %d. "+
		"Stop the services, make a backup, and use --yes --drop-data", r.Orders, r.Services)
}

// migrateRolesCommand creates roles. It can print the SQL instead, to review it or to run it as a superuser.
func migrateRolesCommand() *cobra.Command {
	var prefix string
	var printOnly bool
	create := func(ctx context.Context, url string, out io.Writer) error {
		if err := migrations.Roles(ctx, url, prefix); err != nil {
			return err
		}
		fmt.Fprintf(out, "created %s_owner for migrations and tokens, %[1]s_serve for the service, %[1]s_read for reports. "+
			"They can't log in: grant them to roles that can.\n", prefix)
		return nil
	}
	cmd := migration("roles", "Create database roles for the owner, the service and readers", &config{}, create)
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
	cmd.Long = "Creates the roles PREFIX_owner, PREFIX_serve and PREFIX_read with the least rights that each needs. Run it as a\n" +
		"superuser, or as the owner of the database if that may create roles. Later migrations keep the rights up to date."
	cmd.Flags().StringVar(&prefix, "prefix", "pawl", "prefix of the names of the roles, which are shared by all databases of the server")
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL for psql, without connecting")
	return cmd
}

// migrateSearchCommand chooses the metadata keys that a search of orders finds.
func migrateSearchCommand() *cobra.Command {
	var add, remove []string
	cmd := migration("search-keys", "Choose the metadata keys whose values can be searched", &config{}, func(ctx context.Context, url string, out io.Writer) error {
		for _, key := range add {
			if err := migrations.AddSearchKey(ctx, url, key); err != nil {
				return err
			}
		}
		for _, key := range remove {
			if err := migrations.RemoveSearchKey(ctx, url, key); err != nil {
				return err
			}
		}
		keys, err := migrations.SearchKeys(ctx, url)
		for _, key := range keys {
			fmt.Fprintln(out, output.Clean(key))
		}
		return err
	})
	cmd.Long = "Adds and removes metadata keys whose values a search finds (GET /api/orders?term=…), and lists those that there are now.\n" +
		"A key is an index, which is made while orders are processed. Orders without the key have no entry in it."
	cmd.Example = "  pawl migrate search-keys --add email --add invoice"
	cmd.Flags().StringArrayVar(&add, "add", nil, "key to add; may be repeated")
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "key to remove; may be repeated")
	return cmd
}

// databaseError marks errors of an unavailable database, for which a supervisor should wait. A rejected migration or
// another schema fails every time.
func databaseError(err error) error {
	refused, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pg.ErrUntrusted):
		return configError{err}
	case errors.Is(err, orders.ErrUnavailable), errors.Is(err, access.ErrUnavailable), is[*pgconn.ConnectError](err):
	case refused != nil && endsConnection(refused.Code):
	case refused == nil && (is[net.Error](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, pgconn.ErrConnClosed)):
	default:
		return err
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

// endsConnection reports the SQLSTATEs of connection exceptions, shutdowns and too many connections.
func endsConnection(code string) bool {
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0") || code == "53300"
}

func migrateStatusCommand() *cobra.Command {
	var format output.Format
	row := func(m *migrations.Migration) []any {
		if m.Applied {
			return []any{m.Name, m.AppliedAt.UTC().Format(time.RFC3339)}
		}
		return []any{m.Name, "pending"}
	}
	cmd := migration("status", "List the migrations", &config{}, func(ctx context.Context, url string, out io.Writer) error {
		list, err := migrations.Status(ctx, url)
		if err != nil {
			return err
		}
		return output.Columns[migrations.Migration]{Of: row}.Print(out, format, output.All(list))
	})
	format.AddTo(cmd.Flags())
	return cmd
}
