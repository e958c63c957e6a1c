package cli

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/internal/books"
	"pawl/internal/cli/output"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

// booksAfter proves the books of the database that was given, or of our own where a service on this machine uses it. It
// claims nothing about a database that does not have the orders that were answered.
func (l *load) booksAfter(cmd *cobra.Command, cfg *config, answered int) error {
	switch {
	case answered == 0:
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: no order was answered")
		return nil
	case cfg.DatabaseURL == "" && !servedHere(cfg, l.url):
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: the database of the service is not known, name it with --database-url")
		return nil
	}
	report, err := l.proveBooks(cmd, cfg, answered)
	switch {
	case err != nil:
		return fmt.Errorf("check books: %w", err)
	case !report.OK():
		return printReport(cmd.OutOrStdout(), report, output.Table)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "books      proved: %d checks hold in %s (%.1f s), which has these orders\n", len(report.Checks), report.Database, report.Seconds)
	return nil
}

// proveBooks verifies the database of the settings, if it has the orders.
func (l *load) proveBooks(cmd *cobra.Command, cfg *config, answered int) (report books.Report, err error) {
	err = withDatabase(cmd, cfg, func(pool *pg.Pool, place string) error {
		stored, err := l.stored(cmd.Context(), db.New(pool))
		switch {
		case err != nil:
			return noVerdict(err)
		case stored == 0:
			return fmt.Errorf("%w: %s has none of these orders, so it is not the database of %s", errNoVerdict, place, l.url)
		case stored < int64(answered):
			return fmt.Errorf("%s has only %d of the %d orders that were answered", place, stored, answered)
		}
		report, err = readBooks(cmd.Context(), pool, books.Options{}, cmd.ErrOrStderr())
		report.Database = place
		return noVerdict(err)
	})
	return report, err
}

// storedMost is how many orders one statement looks for.
const storedMost = 10_000

// stored counts the orders of the run that the database has.
func (l *load) stored(ctx context.Context, query *db.Queries) (found int64, err error) {
	ids := make([]string, 0, min(l.orders, storedMost))
	for n := range int64(l.orders) {
		if ids = append(ids, l.order(n).OrderID); len(ids) < storedMost && n < int64(l.orders)-1 {
			continue
		}
		some, err := query.LoadStored(ctx, ids)
		if err != nil {
			return 0, fmt.Errorf("look for the orders: %w", err)
		}
		found, ids = found+some, ids[:0]
	}
	return found, nil
}

// servedHere tells whether the service is on this machine and our own database is running.
func servedHere(cfg *config, service string) bool {
	u, err := url.Parse(service)
	if err != nil || !isLoopback(u.Hostname()) {
		return false
	}
	dir, err := dataDir(cfg)
	if err != nil {
		return false
	}
	_, running := pgembed.Running(dir)
	return running
}
