package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/db"
	"pawl/internal/books"
	"pawl/internal/cli/output"
	"pawl/internal/load"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

func loadCommand() *cobra.Command {
	var cfg config
	var l orderLoad
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send orders to a running service and measure it",
		Long: "Sends new orders to a running service, and prints how fast they were answered. It then verifies the books, if it\n" +
			"finds these orders in the database of --database-url or --data-dir, or in the one that a service on this machine\n" +
			"has started itself. Put a token with the role submit into PAWL_TOKEN unless the service is open. Exits with 1 if a\n" +
			"request failed, an order is missing or the books are wrong, and with 69 if the database has none of the orders.",
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
	f.IntVar(&l.orders, "orders", 10_000, "number of orders")
	f.IntVar(&l.concurrency, "concurrency", 64, "number of callers, each sending one order at a time")
	f.IntVar(&l.items, "items", 100, "number of different items; 1 makes a hot one")
	f.StringVar(&l.url, "url", "http://127.0.0.1:3000", "URL of the service")
	return cmd
}

func (l *orderLoad) validate() error {
	for _, flag := range []struct {
		name        string
		value, most int
	}{
		{"orders", l.orders, 100_000_000}, {"concurrency", l.concurrency, 10_000}, {"items", l.items, 1_000_000},
	} {
		if flag.value < 1 || flag.value > flag.most {
			return fmt.Errorf("--%s must be from 1 to %d", flag.name, flag.most)
		}
	}
	return nil
}

func (l *orderLoad) command(cmd *cobra.Command, cfg *config) error {
	bar := output.Progress(int64(l.orders), "orders", cmd.ErrOrStderr())
	l.sent = func() { _ = bar.Add(1) }
	result, err := l.run(cmd.Context())
	_ = bar.Exit()
	if err != nil {
		return usageError{err}
	}
	result.print(cmd.OutOrStdout())
	err = l.booksAfter(cmd, cfg, result.All)
	if result.Errors > 0 {
		err = errors.Join(fmt.Errorf("%d of %d requests failed: %w", result.Errors, l.orders, result.First), err)
	}
	return err
}

func (r *loadResult) print(out io.Writer) {
	percentile := func(p float64) time.Duration { return load.Percentile(r.Latencies, p).Round(10 * time.Microsecond) }
	fmt.Fprintf(out, "orders     %d in %.1f s, %.0f/s\n", r.All, r.took.Seconds(), float64(r.All)/max(r.took.Seconds(), 1e-9))
	fmt.Fprintf(out, "latency    p50 %s, p99 %s, max %s\n", percentile(50), percentile(99), percentile(100))
	for _, answer := range slices.Sorted(maps.Keys(r.answers)) {
		fmt.Fprintf(out, "answers    %s: %d\n", answer, r.answers[answer])
	}
}

// orderLoad is a closed loop of callers that send new orders.
type orderLoad struct {
	orders, concurrency, items int
	url, token                 string
	seed                       uint64 // with its number, determines an order
	sent                       func() // after every order, from any caller
}

// loadResult is what the callers saw. An error is a request without an answer, or with a status other than 2xx.
type loadResult struct {
	load.Outcome
	took    time.Duration
	answers map[string]int // by status code and status of the order
}

// run sends the orders. When ctx ends, callers stop after their current order.
func (l *orderLoad) run(ctx context.Context) (*loadResult, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = l.concurrency, l.concurrency
	defer transport.CloseIdleConnections()
	service, err := client.New(l.url, client.Options{Token: l.token, HTTPClient: &http.Client{Transport: transport}, RetryFor: -1})
	if err != nil {
		return nil, err
	}
	result := &loadResult{answers: map[string]int{}}
	var mutex sync.Mutex
	send := func(n int) error {
		answer, err := l.send(context.WithoutCancel(ctx), service, n)
		mutex.Lock()
		result.answers[answer]++
		mutex.Unlock()
		l.sent()
		return err
	}
	caller := func(int) (func(int) error, func()) { return send, func() {} }
	running := load.Load{Callers: l.concurrency, Most: l.orders, Caller: caller}.Start()
	defer context.AfterFunc(ctx, running.Halt)()
	running.Wait()
	result.took = running.Since()
	result.Outcome = running.Outcome(0, result.took)
	return result, nil
}

func (l *orderLoad) order(n int) client.ProcessBody {
	random := rand.New(rand.NewPCG(l.seed, uint64(n)))
	return client.ProcessBody{
		OrderID: fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64()),
		Amount:  fmt.Sprintf("%d.%02d", random.IntN(200), random.IntN(100)),
		Item:    fmt.Sprintf("item-%d", random.IntN(l.items)),
	}
}

// send sends the order with a number, once. The error is for answers other than 2xx, or for none, if the outcome is
// unknown.
func (l *orderLoad) send(ctx context.Context, service *client.Client, n int) (answer string, err error) {
	var response http.Response
	order, err := service.ProcessOrder(ctx, l.order(n), client.WithResponse(&response))
	problem, rejected := errors.AsType[*client.Problem](err)
	switch {
	case rejected:
		answer = strings.TrimSpace(response.Status + " " + string(problem.Code))
		return answer, errors.New(answer)
	case err != nil:
		return cmp.Or(response.Status, "none"), err
	}
	return response.Status + " " + string(order.Status), nil
}

// booksAfter verifies the given database, or our own if a service on this machine uses it. It reports nothing about a
// database without the orders.
func (l *orderLoad) booksAfter(cmd *cobra.Command, cfg *config, answered int) error {
	switch {
	case answered == 0:
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: no order was answered")
		return nil
	case cfg.DatabaseURL == "" && !servedHere(cfg, l.url):
		fmt.Fprintln(cmd.OutOrStdout(), "books      not checked: set --database-url to the database of the service")
		return nil
	}
	report, err := l.proveBooks(cmd, cfg, answered)
	switch {
	case err != nil:
		return fmt.Errorf("verify books: %w", err)
	case !report.OK():
		return printReport(cmd.OutOrStdout(), report, output.Table)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "books      right: %d checks of %s passed in %.1f s\n",
		len(report.Checks), report.Database, report.Seconds)
	return nil
}

// proveBooks verifies the configured database, if it has the orders.
func (l *orderLoad) proveBooks(cmd *cobra.Command, cfg *config, answered int) (report books.Report, err error) {
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
		report, err = readBooks(books.Options{}, cmd.ErrOrStderr(), func(opt books.Options) (books.Report, error) {
			return books.Verify(cmd.Context(), pool, opt)
		})
		report.Database = place
		return noVerdict(err)
	})
	return report, err
}

const storedMost = 10_000

func (l *orderLoad) stored(ctx context.Context, query *db.Queries) (found int64, err error) {
	ids := make([]string, 0, min(l.orders, storedMost))
	for n := range l.orders {
		if ids = append(ids, l.order(n).OrderID); len(ids) < storedMost && n < l.orders-1 {
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

// servedHere reports whether the service is on this machine and our own database is running.
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
