package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

func loadCommand() *cobra.Command {
	var cfg config
	var l load
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send orders to a running service and measure it",
		Long: "Sends new orders to a running service, each caller one after the other, and prints how fast they\n" +
			"were answered. Afterwards it proves the books, if it finds these orders in a database: the one given\n" +
			"with --database-url or --data-dir, or the one a service on this machine has started itself.\n" +
			"A service that is not open needs a token with the role submit, in PAWL_TOKEN.\n" +
			"Ends with 1 if a request failed, an order is missing or the books are wrong, and with 69 if the\n" +
			"database has none of the orders.",
		Example: "  pawl load --orders 100000 --concurrency 64 --items 1000 --database-url \"$DATABASE_URL\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.validate(); err != nil {
				return usageError{err}
			}
			l.seed, l.token = rand.Uint64(), os.Getenv("PAWL_TOKEN")
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
	return nil
}

func (l *load) command(cmd *cobra.Command, cfg *config) error {
	bar := progress(int64(l.orders), "orders", cmd.ErrOrStderr())
	l.sent = func() { _ = bar.Add(1) }
	result, err := l.run(cmd.Context())
	_ = bar.Exit()
	if err != nil {
		return usageError{err}
	}
	result.print(cmd.OutOrStdout())
	err = l.booksAfter(cmd, cfg, len(result.latencies))
	if result.failed > 0 {
		err = errors.Join(fmt.Errorf("%d of %d requests went wrong: %w", result.failed, l.orders, result.first), err)
	}
	return err
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
