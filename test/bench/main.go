// Command bench measures the service against a hand-written baseline: one load, one
// PostgreSQL, one table of figures. It drives the real binaries over HTTP and imports
// nothing of the service but what runs a PostgreSQL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"pawl/internal/pgembed"
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

// plan is all runs of one call of this program, one after the other.
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
	c, err := startCluster(ctx, folder, extra, o.commitLatency)
	if err != nil {
		return nil, err
	}
	if err := age(ctx, c); err != nil {
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

// all runs one target after the other under the same load, and the other way round in
// every other round, so that what else the machine does falls on both.
func (p *plan) all(ctx context.Context) error {
	if p.remote {
		return p.withProvider(ctx)
	}
	if p.events {
		return p.withFollower(ctx)
	}
	for _, items := range p.items {
		for _, callers := range p.callers {
			for round := range p.rounds {
				for _, name := range inTurn(p.only, round) {
					s := setup{Target: name, Callers: callers, Items: items}
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

func inTurn(names []string, round int) []string {
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

// do measures, on a database of its own unless the run has one, and says at once what
// came out: the whole takes minutes.
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
