// Command bench compares the service with a hand-written baseline, under the same load and on the same PostgreSQL. It
// runs the real programs over HTTP, and imports only what runs PostgreSQL and a load.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pawl/internal/cell"
	"pawl/internal/pgembed"
	"pawl/test/bench/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := bench(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errFigures = errors.New("errors, or books that do not balance: see below the table")

func bench(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "pawl-bench-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	c, err := o.cluster(ctx, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop(context.WithoutCancel(ctx))) }()
	b, err := newPlan(ctx, o, c, folder)
	if err != nil {
		return err
	}
	err = b.all(ctx)
	b.report.print(os.Stdout)
	if err == nil && b.report.failed() {
		err = errFigures
	}
	return err
}

// plan has all runs of this program, one after the other.
type plan struct {
	options
	cluster *pgembed.Server
	folder  string // for logs
	built   map[string]target
	report  report
	runs    int
}

func (o options) cluster(ctx context.Context, folder string) (*pgembed.Server, error) {
	var extra map[string]string
	if o.stored > 0 {
		extra = storedSettings
	}
	if o.console > 0 {
		extra = consoleSettings
	}
	c, err := machine.StartPostgres(ctx, folder, extra, o.commitLatency)
	if err != nil {
		return nil, err
	}
	if err := machine.Age(ctx, c); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func newPlan(ctx context.Context, o options, c *pgembed.Server, folder string) (p *plan, err error) {
	p = &plan{options: o, cluster: c, folder: folder, built: map[string]target{}, report: report{Cores: runtime.NumCPU(), Go: runtime.Version()}}
	p.targets.folder = folder
	names := o.only
	if o.stored > 0 && !slices.Contains(names, "pawl") {
		names = append(slices.Clone(names), "pawl")
	}
	for _, name := range names {
		if p.built[name], err = p.targets.build(ctx, name); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// all runs the targets under the same load, in reverse order in every other round, so that other work of the machine
// affects all of them.
func (p *plan) all(ctx context.Context) error {
	if p.remote {
		return p.withProvider(ctx)
	}
	if p.events {
		return p.withFollower(ctx)
	}
	if p.stream {
		return p.withStream(ctx)
	}
	if p.cells != nil {
		return p.withCells(ctx)
	}
	if p.console > 0 {
		return p.withConsole(ctx)
	}
	for _, items := range p.items {
		for _, callers := range p.callers {
			for round := range p.rounds {
				for _, name := range inTurn(p.only, round) {
					s := setup{Target: name, Callers: callers, Items: items, Lines: p.lines}
					if err := p.do(ctx, run{setup: s, window: p.window}); err != nil {
						return err
					}
				}
			}
		}
	}
	if p.stored > 0 {
		return p.withStored(ctx)
	}
	return nil
}

func inTurn[T any](names []T, round int) []T {
	names = slices.Clone(names)
	if round%2 == 1 {
		slices.Reverse(names)
	}
	return names
}

func (p *plan) database(ctx context.Context) (*database, error) {
	p.runs++
	return newDatabase(ctx, p.cluster, fmt.Sprintf("pawl_bench_%d", p.runs))
}

// do measures a run, on a database of its own unless the run has one, and prints the result at once, because all runs
// take minutes.
func (p *plan) do(ctx context.Context, r run) error {
	r.target, r.folder, r.Ordered = p.built[r.Target], p.folder, p.ordered
	fmt.Fprintf(os.Stderr, "%s: warm-up %s, window %s … ", r.setup, r.window.warmUp, r.window.length)
	out, err := p.measured(ctx, r)
	if err != nil {
		fmt.Fprintln(os.Stderr)
		return fmt.Errorf("measure %s: %w", r.Target, err)
	}
	fmt.Fprintf(os.Stderr, "%.0f orders/s, others %.0f %%\n", out.OrdersPerSec, 100*out.OtherCPU)
	p.report.Results = append(p.report.Results, out)
	return nil
}

func (p *plan) measured(ctx context.Context, r run) (out result, err error) {
	if r.database == nil {
		if r.database, err = p.database(ctx); err != nil {
			return out, err
		}
		defer func() { err = errors.Join(err, r.database.drop(ctx)) }()
	}
	p.report.Postgres = r.database.conn.PgConn().ParameterStatus("server_version")
	if r.provider != nil {
		return r.measureRemote(ctx)
	}
	return r.measure(ctx)
}

// options are the flags, checked.
type options struct {
	callers, items []int
	only           []string
	window         window
	rounds         int
	stored         int64
	ordered        bool
	lines          int
	targets        targets

	remote        bool
	events        bool
	stream        bool
	cells         []int
	console       int64         // orders stored
	rates         []int         // orders per second
	latency       time.Duration // of the provider
	faults        []string      // of the provider
	commitLatency time.Duration
	replicas      int
}

const help = `Measures the service and a hand-written baseline on the same PostgreSQL: closed loop,
keep-alive connections, random order ids (or --uuidv7), each run from an empty database.

  go run . [flags]                          # everything, about 5 minutes
  go run . --callers 64 --items hot --only pawl --seconds 5
  go run . --stored 5000000                 # also with so many orders in the table
  go run . --remote --rate 20,200,500      # instead: every step at a provider
  go run . --stream                         # instead: orders in one request, one a line
  go run . --cells 1,2,4 --callers 2048     # instead: so many cells beside each other
  go run . --console 1000000 --rounds 6     # instead: the screens of the console
  go run . --against ./old --rounds 5       # instead: beside another version
  go run . --commit-latency 1ms             # on a disk that is a network away

Targets: pawl, baseline, earlier (the binary of --against), provider
(that of --remote alone), token (the service, which requires a token),
keyed (the service, each order with an Idempotency-Key), stream (the service, with
1,024 orders of one request sent and not answered, whatever the callers), and troubled (of --remote: beside 600 orders for routes whose
provider is slow or broken). Compared with each other if
measured together: --only pawl,token. Flags:
`

func parseOptions(args []string) (options, error) {
	o := options{targets: targets{source: "../.."}, items: []int{1, 10_000}, rates: []int{500}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), help); flags.PrintDefaults() }
	flags.Func("callers", "numbers of callers, or none (default 1,16,64,256)", numbers(&o.callers))
	flags.Func("items", "numbers of different items; hot is 1 (default hot,10000)", numbers(&o.items))
	only := flags.String("only", "", "targets, in turn; default: baseline,pawl (with --remote, provider first), or pawl,earlier with --against")
	seconds := flags.Float64("seconds", 10, "length of the measured window")
	flags.DurationVar(&o.window.warmUp, "warmup", 2*time.Second, "warm-up before it, 2s at most: the runs are to begin with an empty database")
	flags.IntVar(&o.rounds, "rounds", 1, "how often to do every run, targets in turn")
	flags.Int64Var(&o.stored, "stored", 0, "also measure the service with this many completed orders in the table; the window is then at least 90 s")
	flags.StringVar(&o.targets.pawl, "pawl", "", "binary of the service; default: built from the parent folder")
	flags.IntVar(&o.lines, "lines", 0, "orders of this many lines, each of an item")
	flags.BoolVar(&o.remote, "remote", false, "measure instead with every step at a provider (pawl simulate): orders offered at each --rate, then each number of --callers (default 2000)")
	flags.BoolVar(&o.events, "events", false, "measure instead how late events reach a reader, with orders offered at --rate")
	flags.BoolVar(&o.stream, "stream", false, "measure instead orders that come in one request, beside those of 256 callers, and beside single orders offered at --rate")
	flags.Func("cells", "measure instead so many cells that share the callers, each with a PostgreSQL of its own, in turn; then, with the most of them, kill one while orders are offered to each at --rate", numbers(&o.cells))
	flags.Int64Var(&o.console, "console", 0, "measure instead the screens of the console with this many orders stored, of which a tenth wait; and callers with and without a person there")
	flags.Func("rate", "orders per second that --remote, --events, --stream and --cells offer (default 500)", numbers(&o.rates))
	flags.DurationVar(&o.latency, "provider-latency", 50*time.Millisecond, "how long the provider of --remote takes for a call")
	flags.Func("provider-fault", "fault of that provider, as of pawl simulate --fault, such as slow:5s@charge,fraction=0.01; may be repeated", func(rule string) error {
		o.faults = append(o.faults, rule)
		return nil
	})
	flags.IntVar(&o.replicas, "replicas", 1, "how many replicas of the service --remote starts on one database; each is offered the --rate")
	flags.StringVar(&o.targets.earlier, "against", "", "binary of an earlier version, to be measured in turn with this one and compared")
	flags.DurationVar(&o.commitLatency, "commit-latency", 0, "add this to every commit, as a network disk does; needs gcc")
	flags.BoolVar(&o.ordered, "uuidv7", false, "order ids that begin with the time, instead of random ones")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.remote && o.callers == nil {
		o.callers = []int{2000}
	}
	if o.callers == nil {
		o.callers = []int{1, 16, 64, 256}
	}
	o.only = o.names(*only)
	o.window.length = time.Duration(*seconds * float64(time.Second))
	for _, binary := range []*string{&o.targets.pawl, &o.targets.earlier} {
		if *binary != "" { // the servers run in another folder
			*binary, _ = filepath.Abs(*binary)
		}
	}
	return o, o.check()
}

// names are the targets to measure.
func (o options) names(only string) []string {
	switch {
	case only != "":
		return strings.Split(only, ",")
	case o.events, o.cells != nil, o.console > 0:
		return []string{"pawl"}
	case o.remote && o.targets.earlier == "":
		return []string{providerName, "baseline", "pawl"}
	case o.stream:
		return []string{"pawl", streamName}
	case o.targets.earlier != "":
		return []string{"pawl", "earlier"}
	}
	return []string{"baseline", "pawl"}
}

func (o options) check() error {
	for _, n := range o.cells {
		if n > cell.Most || bits.OnesCount(uint(n)) != 1 {
			return errors.New("numbers of cells are powers of two up to 256")
		}
	}
	if (o.remote || o.events || o.stream) && (!slices.Contains(o.only, "pawl") || o.stored > 0) {
		return errors.New("--remote, --events and --stream measure pawl, from an empty database")
	}
	if slices.Contains(o.only, "earlier") && o.targets.earlier == "" {
		return errors.New("earlier is the binary of --against")
	}
	for _, name := range o.only {
		if !slices.Contains(targetNames, name) {
			return fmt.Errorf("no target %q: %s", name, strings.Join(targetNames, ", "))
		}
	}
	if o.window.warmUp < 0 || o.window.warmUp > 2*time.Second {
		return errors.New("warm-up is 2s at most")
	}
	if o.window.length <= 0 || o.rounds < 1 {
		return errors.New("seconds and rounds are positive")
	}
	if slices.ContainsFunc(o.items, func(n int) bool { return n > maxItems }) {
		return fmt.Errorf("items are %d at most", maxItems)
	}
	return nil
}

// numbers reads a list of positive numbers, or none.
func numbers(into *[]int) func(string) error {
	return func(list string) error {
		*into = []int{}
		if list == "none" {
			return nil
		}
		for word := range strings.SplitSeq(list, ",") {
			if word == "hot" {
				word = "1"
			}
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a positive number", word)
			}
			*into = append(*into, n)
		}
		return nil
	}
}
