package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pawl/books"
	"pawl/db"
)

func loadCommand() *cobra.Command {
	cfg := config{LogFormat: "auto"}
	var l load
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send orders to a running service and measure it",
		Long: "Sends new orders to a running service, each caller one after the other, and prints how fast they\n" +
			"were answered. With the service's database (--database-url) it proves the books afterwards.\n" +
			"Ends with 1 if a request failed or the books are wrong.",
		Example: "  pawl load --orders 100000 --concurrency 64 --items 1000 --database-url \"$DATABASE_URL\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.load(cmd); err != nil {
				return configError{err}
			}
			if err := l.validate(); err != nil {
				return usageError{err}
			}
			return l.command(cmd, cfg.DatabaseURL)
		},
	}
	f := cmd.Flags()
	f.IntVar(&l.orders, "orders", 10_000, "how many orders to send")
	f.IntVar(&l.concurrency, "concurrency", 64, "how many callers send them")
	f.IntVar(&l.items, "items", 100, "over how many items; 1 makes a hot one")
	f.StringVar(&l.url, "url", "http://127.0.0.1:3000", "the service")
	f.StringVar(&cfg.DatabaseURL, "database-url", "", "the service's PostgreSQL, to prove its books afterwards (also DATABASE_URL)")
	return cmd
}

func (l *load) validate() error {
	for _, flag := range []struct {
		name        string
		value, most int
	}{
		{"orders", l.orders, 100_000_000}, {"concurrency", l.concurrency, 10_000}, {"items", l.items, 1_000_000},
	} {
		if flag.value < 1 || flag.value > flag.most {
			return fmt.Errorf("%s: from 1 to %d", flag.name, flag.most)
		}
	}
	if !strings.HasPrefix(l.url, "http://") && !strings.HasPrefix(l.url, "https://") {
		return fmt.Errorf("url %q: begins with http:// or https://", l.url)
	}
	l.url = strings.TrimSuffix(l.url, "/")
	return nil
}

func (l *load) command(cmd *cobra.Command, databaseURL string) error {
	bar := progress(int64(l.orders), "orders", cmd.ErrOrStderr())
	l.sent = func() { _ = bar.Add(1) }
	result := l.run(cmd.Context())
	_ = bar.Exit()
	result.print(cmd.OutOrStdout())
	var err error
	if result.failed > 0 {
		err = fmt.Errorf("%d of %d requests went wrong: %w", result.failed, len(result.latencies)+result.failed, result.first)
	}
	if databaseURL == "" {
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: no --database-url")
		return err
	}
	return errors.Join(err, proveBooks(cmd, databaseURL))
}

// progress draws a bar for a person and nothing for a file.
func progress(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return progressbar.DefaultSilent(total)
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(out),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
}

func (r *loadResult) print(out io.Writer) {
	slices.Sort(r.latencies)
	done := len(r.latencies)
	fmt.Fprintf(out, "orders     %d in %.1f s, %.0f/s\n", done, r.took.Seconds(), float64(done)/max(r.took.Seconds(), 1e-9))
	fmt.Fprintf(out, "latency    p50 %s, p99 %s, max %s\n", r.percentile(50), r.percentile(99), r.percentile(100))
	for _, answer := range slices.Sorted(maps.Keys(r.answers)) {
		fmt.Fprintf(out, "answers    %s: %d\n", answer, r.answers[answer])
	}
}

// proveBooks runs the checks of the verify command.
func proveBooks(cmd *cobra.Command, databaseURL string) error {
	ctx := cmd.Context()
	pool, err := db.Open(ctx, databaseURL, 2)
	if err != nil {
		return fmt.Errorf("check books: %w: %w", errUnavailable, err)
	}
	defer pool.Close()
	bar := progress(-1, "books", cmd.ErrOrStderr())
	report, err := books.Verify(ctx, pool, books.Options{Progress: func(done, total int64) {
		bar.ChangeMax64(total)
		_ = bar.Set64(done)
	}})
	_ = bar.Exit()
	if err != nil {
		return fmt.Errorf("check books: %w", err)
	}
	return printBooks(cmd.OutOrStdout(), report)
}

func printBooks(out io.Writer, report books.Report) error {
	for _, check := range report.Checks {
		for _, offender := range check.Offenders {
			fmt.Fprintf(out, "books      %s: %s: %s\n", check.Name, offender.ID, offender.Fault)
		}
	}
	if !report.OK() {
		return errors.New("the books are wrong: pawl verify says more")
	}
	fmt.Fprintf(out, "books      proved: %d checks hold (%.1f s)\n", len(report.Checks), report.Seconds)
	return nil
}
