package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pawl/internal/cell"
	"pawl/internal/load"
	"pawl/internal/pgembed"
)

// withCells measures numbers of cells under the same load, in turn, and then what the callers of the others notice when
// one is killed. The callers of a cell send only orders that belong to it, as the clients choose by the hash.
func (p *plan) withCells(ctx context.Context) (err error) {
	clusters := []*pgembed.Server{p.cluster}
	for len(clusters) < slices.Max(p.cells) {
		folder := filepath.Join(p.folder, fmt.Sprint("cell", len(clusters)))
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		c, err := p.options.cluster(ctx, folder)
		if err != nil {
			return err
		}
		defer c.Stop(context.WithoutCancel(ctx)) // its error is not news: one was killed
		clusters = append(clusters, c)
	}
	for _, items := range p.items {
		for _, callers := range p.callers {
			for round := range p.rounds {
				for _, n := range inTurn(p.cells, round) {
					s := setup{Target: "pawl", Callers: callers, Items: items, Lines: p.lines, Cells: n}
					if err := p.doCells(ctx, s, clusters[:n]); err != nil {
						return fmt.Errorf("measure %s: %w", s, err)
					}
				}
			}
		}
	}
	if n := slices.Max(p.cells); n > 1 {
		return p.killCell(ctx, setup{Target: "pawl", Rate: float64(p.rates[0]), Items: p.items[0], Cells: n}, clusters[:n])
	}
	return nil
}

// parts are the runs of all cells, each on a new database of its cluster.
func (p *plan) parts(ctx context.Context, s setup, clusters []*pgembed.Server) (parts []run, end func() error, err error) {
	end = func() (err error) {
		for i := range parts {
			err = errors.Join(err, parts[i].database.drop(ctx))
		}
		return err
	}
	for i, c := range clusters {
		r := run{setup: s, target: p.built["pawl"], folder: p.folder, window: p.window}
		r.Cell, r.Callers = i, s.Callers/s.Cells
		r.target.args = append(slices.Clone(r.target.args), "--cell", cell.Cell{Number: i, Of: s.Cells}.String(),
			"--max-connections", strconv.Itoa(max(4096, 4*s.Callers)))
		p.runs++
		if r.database, err = newDatabase(ctx, c, fmt.Sprintf("pawl_bench_%d", p.runs)); err != nil {
			return nil, nil, errors.Join(err, end())
		}
		parts = append(parts, r)
	}
	return parts, end, nil
}

// doCells measures cells at the same time, and adds a row for all of them.
func (p *plan) doCells(ctx context.Context, s setup, clusters []*pgembed.Server) (err error) {
	fmt.Fprintf(os.Stderr, "%s … ", s)
	parts, end, err := p.parts(ctx, s, clusters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	p.report.Postgres = parts[0].database.conn.PgConn().ParameterStatus("server_version")
	results, errs := make([]result, len(parts)), make([]error, len(parts))
	var together, measuring sync.WaitGroup
	together.Add(len(parts))
	for i := range parts {
		parts[i].together = &together
		measuring.Go(func() { results[i], errs[i] = parts[i].measure(ctx) })
	}
	measuring.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	out := sum(s, results)
	fmt.Fprintf(os.Stderr, "%.0f orders/s, others %.0f %%\n", out.OrdersPerSec, 100*out.OtherCPU)
	p.report.Results = append(p.report.Results, out)
	return nil
}

// sum is the row of cells that were measured at the same time. Its latencies and memory are those of the cell that has
// the highest; each result has the processor time of the whole load and of all other processes.
func sum(s setup, cells []result) (all result) {
	all = result{setup: s, Seconds: cells[0].Seconds, HOTShare: 1}
	for _, c := range cells {
		all.Orders, all.Answered, all.Errors = all.Orders+c.Orders, all.Answered+c.Answered, all.Errors+c.Errors
		all.OrdersPerSec += c.OrdersPerSec
		all.P50, all.P99, all.Max = max(all.P50, c.P50), max(all.P99, c.P99), max(all.Max, c.Max)
		all.MemoryMiB, all.HOTShare = max(all.MemoryMiB, c.MemoryMiB), min(all.HOTShare, c.HOTShare)
		all.SeqScans, all.Checkpoints = all.SeqScans+c.SeqScans, all.Checkpoints+c.Checkpoints
		if c.FirstError != "" {
			all.FirstError = c.FirstError
		}
		if c.BooksMismatch != "" {
			all.BooksMismatch = fmt.Sprintf("cell %d: %s", c.Cell, c.BooksMismatch)
		}
	}
	used := 0.0 // by the services and PostgreSQL, in seconds
	for _, c := range cells {
		part := float64(c.Orders) / float64(max(all.Orders, 1))
		all.ServiceCPU, all.PostgresCPU = all.ServiceCPU+part*c.ServiceCPU, all.PostgresCPU+part*c.PostgresCPU
		all.LoadCPU += part * c.LoadCPU / float64(len(cells))
		all.WALPerOrder, all.FlushesPerOrder = all.WALPerOrder+part*c.WALPerOrder, all.FlushesPerOrder+part*c.FlushesPerOrder
		used += (c.ServiceCPU + c.PostgresCPU) * float64(c.Orders) / 1000
	}
	first := cells[0]
	othersUsed := used - (first.ServiceCPU+first.PostgresCPU)*float64(first.Orders)/1000
	all.OtherCPU = max(0, first.OtherCPU-othersUsed/all.Seconds/float64(runtime.NumCPU()))
	return all
}

// target names the target, and how many cells it is.
func (s setup) target() string {
	if s.Cells == 0 {
		return s.Target
	}
	return fmt.Sprintf("%s, cells: %d", s.Target, s.Cells)
}

// printCells compares several cells with one under the same load, by medians of the rounds.
func (r report) printCells(w io.Writer) {
	seen := map[setup]bool{}
	for _, x := range r.Results {
		one := x.setup
		one.Cells = 1
		mine, base := r.rounds(x.setup), r.rounds(one)
		if x.Cells < 2 || seen[x.setup] || len(mine) == 0 || len(base) == 0 {
			continue
		}
		seen[x.setup] = true
		fmt.Fprintf(w, "\n%s, against one cell: CPU per order %s, of the service %s, of PostgreSQL %s; orders/s %s (%s against %s)\n",
			x.setup, ratio(mine, base, cpuPerOrder),
			ratio(mine, base, func(x result) float64 { return x.ServiceCPU }), ratio(mine, base, func(x result) float64 { return x.PostgresCPU }),
			ratio(mine, base, ordersPerSec), spread(mine), spread(base))
	}
	fmt.Fprint(w, r.Survivors)
}

// killCell offers orders to all cells, and kills the service and the PostgreSQL of the last one.
func (p *plan) killCell(ctx context.Context, s setup, clusters []*pgembed.Server) error {
	parts, _, err := p.parts(ctx, s, clusters)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, one of them is killed …\n", s)
	var servers []*server
	var loads []*load.Running
	for i := 0; i < len(parts) && err == nil; i++ {
		var started *server
		if started, err = parts[i].target.start(ctx, parts[i].database.url, p.folder); err == nil {
			servers, loads = append(servers, started), append(loads, startLoad([]*server{started}, parts[i].setup))
		}
	}
	last := len(parts) - 1
	var began, killed time.Time
	if err == nil {
		err = pause(ctx, 2*p.window.warmUp)
		began = time.Now()
	}
	if err == nil {
		err = pause(ctx, p.window.length)
		killed = time.Now()
	}
	if err == nil {
		servers[last].Kill()
		err = errors.Join(syscall.Kill(parts[last].database.server, syscall.SIGKILL), pause(ctx, p.window.length))
	}
	ended := time.Now()
	for _, l := range loads {
		l.Halt()
		l.Wait()
	}
	for _, started := range servers {
		err = errors.Join(err, started.stop())
	}
	for _, r := range parts[:last] {
		err = errors.Join(err, r.database.drop(ctx))
	}
	if err != nil {
		return fmt.Errorf("kill a cell: %w", err)
	}
	p.report.Survivors = fmt.Sprintf("\n%s; one was killed. Callers of the others, before: %s; from then on: %s\n", s,
		latencies(loads[:last], began, killed), latencies(loads[:last], killed, ended))
	return nil
}

// latencies are what the callers of some cells saw between two moments.
func latencies(loads []*load.Running, from, to time.Time) string {
	var all []time.Duration
	failed := 0
	for _, l := range loads {
		began := time.Now().Add(-l.Since())
		seen := l.Outcome(from.Sub(began), to.Sub(began))
		all, failed = append(all, seen.Latencies...), failed+seen.Errors
	}
	slices.Sort(all)
	return fmt.Sprintf("%d orders, p50 %.1f ms, p99 %.1f ms, at most %.0f ms, errors in all %d", len(all), milliseconds(load.Percentile(all, 50)),
		milliseconds(load.Percentile(all, 99)), milliseconds(load.Percentile(all, 100)), failed)
}
