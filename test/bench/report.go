package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// report is the figures of all runs, and what they were measured on.
type report struct {
	Cores        int
	Go, Postgres string
	Results      []result
}

var columns = []string{"items", "callers", "stored", "target", "orders/s", "ratio", "p50 ms", "p99 ms", "max ms", "errors",
	"CPU service", "CPU PostgreSQL", "CPU load", "others %", "RSS MiB", "WAL B/order", "flushes/order", "HOT %", "checkpoints"}

// print writes one Markdown table that is aligned for a terminal, and below it what
// went wrong.
func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d cores, PostgreSQL %s, %s; CPU in seconds per 1,000 orders;\n"+
		"others: share of the cores that went to processes outside this benchmark\n",
		r.Cores, r.Postgres, r.Go)
	rows := [][]string{columns}
	for _, x := range r.Results {
		if x.Provider == nil {
			rows = append(rows, r.row(x))
		}
	}
	if len(rows) > 1 {
		fmt.Fprint(w, "ratio: to the baseline's orders/s\n\n")
		printTable(w, rows)
	}
	r.printRemote(w)
	for _, x := range r.Results {
		if x.EventLags != nil {
			fmt.Fprintf(w, "\n%s: %.0f orders/s, %s\n", x.setup, x.OrdersPerSec, x.EventLags)
		}
	}
	for _, x := range r.Results {
		for _, problem := range x.problems() {
			fmt.Fprintf(w, "\n%s: %s\n", x.setup, problem)
		}
	}
	r.printStored(w)
	r.printComparisons(w)
}

// printStored sets the runs on a full table against those that had the same load for
// the same time and began with an empty one: medians of the rounds.
func (r report) printStored(w io.Writer) {
	seen := map[setup]bool{}
	for _, x := range r.Results {
		full, empty := r.lasting(x, true), r.lasting(x, false)
		if x.Stored == 0 || seen[x.setup] || len(empty) == 0 {
			continue
		}
		seen[x.setup] = true
		fmt.Fprintf(w, "\n%d callers with %d orders stored: %s of the orders/s from empty (%s against %s), %s of its CPU; WAL bytes per order %.0f (%.0f from empty), HOT %.0f %% (%.0f %%)\n",
			x.Callers, x.Stored, ratio(full, empty, ordersPerSec), spread(full), spread(empty), ratio(full, empty, cpuPerOrder),
			median(full, walPerOrder), median(empty, walPerOrder), 100*median(full, hotShare), 100*median(empty, hotShare))
	}
}

func cpuPerOrder(x result) float64 { return x.ServiceCPU + x.PostgresCPU }
func walPerOrder(x result) float64 { return x.WALPerOrder }
func hotShare(x result) float64    { return x.HOTShare }

// lasting are the runs with the load of one and as long, on a full table or not.
func (r report) lasting(as result, stored bool) (runs []result) {
	for _, x := range r.Results {
		if x.setup == as.setup && math.Abs(x.Seconds-as.Seconds) < 1 && (x.Stored > 0) == stored {
			runs = append(runs, x)
		}
	}
	return runs
}

func (r report) row(x result) []string {
	return []string{itemsName(x.Items), strconv.Itoa(x.Callers), strconv.FormatInt(x.Stored, 10), x.Target,
		fmt.Sprintf("%.0f", x.OrdersPerSec), r.ratio(x),
		fmt.Sprintf("%.1f", x.P50), fmt.Sprintf("%.1f", x.P99), fmt.Sprintf("%.0f", x.Max), strconv.Itoa(x.Errors),
		fmt.Sprintf("%.3f", x.ServiceCPU), fmt.Sprintf("%.3f", x.PostgresCPU), fmt.Sprintf("%.3f", x.LoadCPU),
		fmt.Sprintf("%.0f", 100*x.OtherCPU),
		fmt.Sprintf("%.0f", x.MemoryMiB), fmt.Sprintf("%.0f", x.WALPerOrder), fmt.Sprintf("%.2f", x.FlushesPerOrder), fmt.Sprintf("%.0f", 100*x.HOTShare),
		strconv.FormatInt(x.Checkpoints, 10)}
}

// ratio is to the baseline under the same load; of several rounds to their median.
func (r report) ratio(x result) string {
	base := x.setup
	base.Target = "baseline"
	rounds := r.rounds(base)
	if len(rounds) == 0 || x.Stored > 0 || x.Target == "baseline" {
		return ""
	}
	return fmt.Sprintf("%.2f×", x.OrdersPerSec/median(rounds, ordersPerSec))
}

func (r report) failed() bool {
	return slices.ContainsFunc(r.Results, func(x result) bool { return x.Errors > 0 || x.BooksMismatch != "" })
}

func itemsName(n int) string {
	if n == 1 {
		return "hot"
	}
	return strconv.Itoa(n)
}

// printTable writes a table of Markdown whose columns stand below each other in a terminal, too.
func printTable(w io.Writer, rows [][]string) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	for n, row := range rows {
		fmt.Fprintln(table, "\t"+strings.Join(row, "\t")+"\t")
		if n == 0 {
			fmt.Fprintln(table, strings.Repeat("\t--:", len(row))+"\t")
		}
	}
	_ = table.Flush()
}

// comparisons are of versions of the service: what the first does of the second.
var comparisons = [][2]string{{"pawl", "earlier"}, {"ledger-policy", "earlier"}, {"ledger-policy", "pawl"}, {"token", "pawl"}, {keyedName, "pawl"}}

// printComparisons sets the median of all rounds of one target against that of another
// under the same load. Differences smaller than those between rounds say nothing, so
// the lowest and the highest of the rounds stand beside.
func (r report) printComparisons(w io.Writer) {
	for _, pair := range comparisons {
		seen := map[setup]bool{}
		for _, x := range r.Results {
			other := x.setup
			other.Target = pair[1]
			mine, theirs := r.rounds(x.setup), r.rounds(other)
			if x.Target != pair[0] || seen[x.setup] || len(mine) == 0 || len(theirs) == 0 {
				continue
			}
			seen[x.setup] = true
			fmt.Fprintf(w, "\n%s, against %s: %s of the orders/s (%s against %s), CPU service %s, CPU PostgreSQL %s\n",
				x.setup, pair[1], ratio(mine, theirs, ordersPerSec), spread(mine), spread(theirs),
				ratio(mine, theirs, func(x result) float64 { return x.ServiceCPU }),
				ratio(mine, theirs, func(x result) float64 { return x.PostgresCPU }))
		}
	}
}

// rounds are the runs of a row that began with an empty database.
func (r report) rounds(s setup) (runs []result) {
	for _, x := range r.Results {
		if x.setup == s && x.Stored == 0 && x.Provider == nil && x.Orders > 0 {
			runs = append(runs, x)
		}
	}
	return runs
}

func ordersPerSec(x result) float64 { return x.OrdersPerSec }

// ratio is of the medians, of which the second may be nothing.
func ratio(mine, theirs []result, of func(result) float64) string {
	if median(theirs, of) == 0 {
		return "not measured"
	}
	return fmt.Sprintf("%.3f", median(mine, of)/median(theirs, of))
}

// median of at least one run.
func median(runs []result, of func(result) float64) float64 {
	values := sorted(runs, of)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func sorted(runs []result, of func(result) float64) (values []float64) {
	for _, x := range runs {
		values = append(values, of(x))
	}
	slices.Sort(values)
	return values
}

func spread(runs []result) string {
	values := sorted(runs, ordersPerSec)
	return fmt.Sprintf("%.0f, %.0f to %.0f", median(runs, ordersPerSec), values[0], values[len(values)-1])
}

var remoteColumns = []string{"load", "orders/s", "p50 ms", "p99 ms", "max ms", "errors", "calls/order", "CPU service",
	"CPU PostgreSQL", "CPU provider", "CPU load", "others %", "RSS MiB", "WAL B/order", "HOT %"}

// printRemote writes a table of the runs with remote steps; below it, for each,
// what the provider counted.
func (r report) printRemote(w io.Writer) {
	var runs []result
	rows := [][]string{remoteColumns}
	for _, x := range r.Results {
		if x.Provider != nil {
			runs, rows = append(runs, x), append(rows, remoteRow(x))
		}
	}
	if len(runs) == 0 {
		return
	}
	fmt.Fprintf(w, "every step at a provider that takes %s; offered: latency from when the order was due\n\n", providerLatency)
	printTable(w, rows)
	for _, x := range runs {
		fmt.Fprintf(w, "\n%s\n  provider: %s\n", x.load(), x.Provider.text(x.Answered))
	}
}

func remoteRow(x result) []string {
	return []string{x.load(), fmt.Sprintf("%.0f", x.OrdersPerSec),
		fmt.Sprintf("%.1f", x.P50), fmt.Sprintf("%.1f", x.P99), fmt.Sprintf("%.0f", x.Max), strconv.Itoa(x.Errors),
		fmt.Sprintf("%.2f", float64(x.Provider.Requests)/float64(max(x.Answered, 1))),
		fmt.Sprintf("%.3f", x.ServiceCPU), fmt.Sprintf("%.3f", x.PostgresCPU), fmt.Sprintf("%.3f", x.ProviderCPU),
		fmt.Sprintf("%.3f", x.LoadCPU), fmt.Sprintf("%.0f", 100*x.OtherCPU), fmt.Sprintf("%.0f", x.MemoryMiB),
		fmt.Sprintf("%.0f", x.WALPerOrder), fmt.Sprintf("%.0f", 100*x.HOTShare)}
}

func (s *summary) text(orders int) string {
	return fmt.Sprintf("%d calls; effects: charge %d, reserve %d, confirm %d, of %d orders; doubleLive %d, overlaps %d, repeatedEffects %d",
		s.Requests, s.Steps["charge"].Effects, s.Steps["reserve"].Effects, s.Steps["confirm"].Effects, orders,
		s.DoubleLive, s.Overlaps, s.RepeatedEffects)
}
