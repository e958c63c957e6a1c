package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pawl/books"
	"pawl/pgembed"
)

func loadCommand() *cobra.Command {
	var cfg config
	var l load
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send orders to a running service and measure it",
		Long: "Sends new orders to a running service, each caller one after the other, and prints how fast they\n" +
			"were answered. Afterwards it proves the books, if it can reach the service's database: the one\n" +
			"given with --database-url, or the one a service on this machine has started itself.\n" +
			"Ends with 1 if a request failed or the books are wrong.",
		Example: "  pawl load --orders 100000 --concurrency 64 --items 1000 --database-url \"$DATABASE_URL\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.validate(); err != nil {
				return usageError{err}
			}
			return l.command(cmd, &cfg)
		},
	}
	f := cmd.Flags()
	cfg.addTo(cmd)
	f.IntVar(&l.orders, "orders", 10_000, "how many orders to send")
	f.IntVar(&l.concurrency, "concurrency", 64, "how many callers send them")
	f.IntVar(&l.items, "items", 100, "over how many items; 1 makes a hot one")
	f.StringVar(&l.url, "url", "http://127.0.0.1:3000", "the service")
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

func (l *load) command(cmd *cobra.Command, cfg *config) error {
	bar := progress(int64(l.orders), "orders", cmd.ErrOrStderr())
	l.sent = func() { _ = bar.Add(1) }
	result := l.run(cmd.Context())
	_ = bar.Exit()
	result.print(cmd.OutOrStdout())
	err := booksAfter(cmd, cfg, l.url)
	if result.failed > 0 {
		err = errors.Join(fmt.Errorf("%d of %d requests went wrong: %w", result.failed, l.orders, result.first), err)
	}
	return err
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

// booksAfter proves the books of the database that was given, or of our own where a
// service on this machine uses it. A service elsewhere has books that can't be read from
// here.
func booksAfter(cmd *cobra.Command, cfg *config, service string) error {
	if cfg.DatabaseURL == "" && !servedHere(cfg, service) {
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: no --database-url")
		return nil
	}
	report, place, err := proveBooks(cmd, cfg, books.Options{})
	if err != nil {
		return fmt.Errorf("check books: %w", err)
	}
	if !report.OK() {
		return printReport(cmd.OutOrStdout(), report, false)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "books      proved: %d checks hold in %s (%.1f s)\n", len(report.Checks), place, report.Seconds)
	return nil
}

// servedHere tells whether the service is on this machine and our own database is running.
func servedHere(cfg *config, service string) bool {
	u, err := url.Parse(service)
	if err != nil || u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback() {
		return false
	}
	dir, err := dataDir(cfg)
	if err != nil {
		return false
	}
	_, running := pgembed.Running(dir)
	return running
}
