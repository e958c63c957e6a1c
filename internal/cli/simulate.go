package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pawl/internal/simulator"
)

// simulate has the flags of the command. They do not come from the environment: with PORT, the provider would take the
// port of the service.
type simulate struct {
	listen    string
	port      int
	faults    []string
	secretEnv string
	hookEnv   string
	private   bool
	config    simulator.Config
}

func simulateCommand() *cobra.Command {
	var sim simulate
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a simulated provider, with faults on request",
		Long: "Runs a provider for tests, which counts every effect under its idempotency key. It fails on request: by the item of\n" +
			"an order, by --fault, or by POST /faults. When it ends, it prints its books, and exits with 1 if anything was done\n" +
			"twice. See docs/simulator.md.",
		Example: "  # every answer takes 50 ms, and one charge in twenty times out\n" +
			"  pawl simulate --latency 50ms --fault timeout-after@charge,fraction=0.05",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("allow-private") {
				sim.private = isLoopback(sim.listen)
			}
			sim.config.PublicOnly = !sim.private
			if err := sim.validate(); err != nil {
				return usageError{err}
			}
			sim.config.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return sim.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&sim.listen, "listen", "127.0.0.1", "address to listen on; empty: all interfaces")
	f.BoolVar(&sim.private, "allow-private", false,
		"allow callbacks to this machine and private networks; by default only while listening on loopback")
	f.IntVar(&sim.port, "port", 4000, "port to listen on; 0 picks one")
	f.StringVar(&sim.config.File, "file", "simulator.jsonl", "`file` to keep its books in; empty: in memory only")
	f.DurationVar(&sim.config.Latency, "latency", 0, "duration of a request")
	f.DurationVar(&sim.config.KeyRetention, "key-retention", 0, "how long it remembers a key; 0: forever")
	f.Uint64Var(&sim.config.Seed, "seed", 1, "seed that decides which requests a rule with a fraction applies to")
	f.StringArrayVar(&sim.faults, "fault", nil, "`rule` that causes a fault, such as hang1@reserve or error@charge,item=car; can be repeated")
	f.StringVar(&sim.secretEnv, "secret-env", "",
		"environment `variable` with the Standard Webhooks secret of requests; empty: they need no signature")
	f.StringVar(&sim.config.StripeWebhook, "stripe-webhook", "", "`URL` for the events of Stripe's API; empty: none are sent")
	f.StringVar(&sim.hookEnv, "stripe-webhook-secret-env", "", "environment `variable` with the secret that signs these events")
	cmd.MarkFlagsRequiredTogether("stripe-webhook", "stripe-webhook-secret-env")
	return cmd
}

func (sim *simulate) validate() error {
	switch {
	case sim.port < 0 || sim.port > 65535:
		return errors.New("--port must be from 0 to 65535")
	case sim.config.Latency < 0 || sim.config.KeyRetention < 0:
		return errors.New("--latency and --key-retention must not be negative")
	}
	sim.config.Secret, sim.config.StripeWebhookSecret = os.Getenv(sim.secretEnv), os.Getenv(sim.hookEnv)
	if sim.secretEnv != "" && sim.config.Secret == "" {
		return fmt.Errorf("--secret-env: %s is not set", sim.secretEnv)
	}
	if sim.hookEnv != "" && sim.config.StripeWebhookSecret == "" {
		return fmt.Errorf("--stripe-webhook-secret-env: %s is not set", sim.hookEnv)
	}
	for _, text := range sim.faults {
		rule, err := simulator.ParseRule(text)
		if err != nil {
			return fmt.Errorf("--fault: %w", err)
		}
		sim.config.Faults = append(sim.config.Faults, rule)
	}
	return nil
}

// run serves until ctx ends, and then prints the books.
func (sim *simulate) run(ctx context.Context, out io.Writer) error {
	provider, err := simulator.Open(sim.config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(sim.listen, strconv.Itoa(sim.port)))
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), provider.Close())
	}
	server := &http.Server{Handler: provider, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Fprintf(out, "simulated provider at %s, books in %s\n",
		shownURL("http", sim.listen, listener.Addr()), cmp.Or(sim.config.File, "memory"))

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	err = errors.Join(err, provider.Close()) // before the server, because it ends hanging requests
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if server.Shutdown(finish) != nil {
		_ = server.Close()
	}
	return errors.Join(err, printSummary(out, provider.Summary()))
}

// printSummary returns an error if anything was done twice.
func printSummary(out io.Writer, sum simulator.Summary) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\n\teffects\tlive\tundone\trefused\tvoided\tpending\t\n")
	for _, step := range []string{"charge", "reserve", "confirm", "refund"} {
		tally := sum.Steps[step]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
			step, tally.Effects, tally.Live, tally.Undone, tally.Refused, tally.Voided, tally.Pending)
	}
	_ = table.Flush()
	for _, m := range sum.Money {
		fmt.Fprintf(out, "%q: charged %s, undone or refunded %s, kept %s\n", m.Currency, m.Charged, m.Refunded, m.Kept)
	}
	fmt.Fprintf(out, "%d requests; %d sent again, and done once; %d asked for what was done already, and did nothing; %d lost answers found by asking; %d rejected because their key was undone\n",
		sum.Requests, sum.Repeated, sum.DuplicatesSuppressed, sum.AnswersFound, sum.RefusedAfterUndo)
	if !sum.OK() {
		return fmt.Errorf("done twice: %d orders with two live charges, %d effects beside a live one, %d keys with more than one effect",
			sum.DoubleLive, sum.Overlaps, sum.RepeatedEffects)
	}
	return nil
}
