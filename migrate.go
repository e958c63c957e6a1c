package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pawl/migrations"
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
			if err := cfg.load(cmd); err != nil {
				return configError{err}
			}
			database, err := openDatabase(cmd.Context(), &cfg, newLogger(&cfg))
			if err != nil {
				return err
			}
			defer database.close()
			return run(cmd.Context(), database.url, cmd.OutOrStdout())
		},
	}
	cfg.databaseFlags(cmd.Flags())
	return cmd
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
		fmt.Fprintf(table, "%s\t%s\n", m.Name, state)
	}
	return table.Flush()
}
