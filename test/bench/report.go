package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
)

// report has the figures of all runs, and describes the machine.
type report struct {
	Cores        int
	Go, Postgres string
	Results      []result
	Survivors    string // what the callers of other cells saw when one was killed
}

// column is a column of a table. CPU is in seconds per 1,000 orders.
type column struct {
	name string
	of   func(report, result) string
}

func number(format string, of func(result) float64) func(report, result) string {
	return func(_ report, x result) string { return fmt.Sprintf(format, of(x)) }
}

// Columns for both tables, in this order.
var (
	speed = []column{
		{"orders/s", number("%.0f", ordersPerSec)},
		{"ratio", report.ratio},
		{"p50 ms", number("%.1f", func(x result) float64 { return x.P50 })},
		{"p99 ms", number("%.1f", func(x result) float64 { return x.P99 })},
		{"max ms", number("%.0f", func(x result) float64 { return x.Max })},
		{"errors", number("%.0f", func(x result) float64 { return float64(x.Errors) })},
		{"CPU service", number("%.3f", func(x result) float64 { return x.ServiceCPU })},
		{"CPU PostgreSQL", number("%.3f", func(x result) float64 { return x.PostgresCPU })},
		{"CPU load", number("%.3f", func(x result) float64 { return x.LoadCPU })},
		{"others %", number("%.0f", func(x result) float64 { return 100 * x.OtherCPU })},
		{"RSS MiB", number("%.0f", func(x result) float64 { return x.MemoryMiB })},
		{"WAL B/order", number("%.0f", walPerOrder)},
		{"flushes/order", number("%.2f", func(x result) float64 { return x.FlushesPerOrder })},
		{"HOT %", number("%.0f", func(x result) float64 { return 100 * x.HOTShare })},
		{"checkpoints", number("%.0f", func(x result) float64 { return float64(x.Checkpoints) })},
	}
	ledgerColumns = append([]column{
		{"items", func(_ report, x result) string { return itemsName(x.Items) }},
		{"callers", number("%.0f", func(x result) float64 { return float64(x.Callers) })},
		{"stored", number("%.0f", func(x result) float64 { return float64(x.Stored) })},
		{"target", func(_ report, x result) string { return x.target() }},
	}, speed...)
	remoteColumns = append([]column{
		{"load", func(_ report, x result) string { return x.load() }},
		{"target", func(_ report, x result) string { return x.Target }},
		{"calls/order", number("%.2f", func(x result) float64 { return float64(x.Provider.Requests) / float64(max(x.Answered, 1)) })},
		{"CPU provider", number("%.3f", func(x result) float64 { return x.ProviderCPU })},
	}, speed...)
)

// print writes Markdown tables that are aligned for a terminal, and the problems below them.
func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d cores, PostgreSQL %s, %s; CPU in seconds per 1,000 orders;\n"+
		"others: share of the cores that went to processes outside this benchmark\n",
		r.Cores, r.Postgres, r.Go)
	r.printTable(w, "ratio: to the baseline's orders/s", ledgerColumns, func(x result) bool { return x.Provider == nil })
	r.printTable(w, "every step at a provider; offered: latency from when the order was due",
		remoteColumns, func(x result) bool { return x.Provider != nil })
	for _, x := range r.Results {
		if x.Provider != nil {
			fmt.Fprintf(w, "\n%s\n  provider: %s\n", x.setup, x.Provider.text(x.Answered))
		}
		if x.EventLags != nil {
			fmt.Fprintf(w, "\n%s: %.0f orders/s, %s\n", x.setup, x.OrdersPerSec, x.EventLags)
		}
		for _, problem := range x.problems() {
			fmt.Fprintf(w, "\n%s: %s\n", x.setup, problem)
		}
	}
	r.printStored(w)
	r.printComparisons(w)
	r.printBeside(w)
	r.printCells(w)
}

// printTable writes the runs of a table, if there are any.
func (r report) printTable(w io.Writer, about string, columns []column, has func(result) bool) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	line := func(cell func(column) string) {
		for _, c := range columns {
			fmt.Fprint(table, "\t", cell(c))
		}
		fmt.Fprintln(table, "\t")
	}
	empty := true
	for _, x := range r.Results {
		if !has(x) {
			continue
		}
		if empty {
			fmt.Fprintf(w, "%s\n\n", about)
			line(func(c column) string { return c.name })
			line(func(column) string { return "--:" })
			empty = false
		}
		line(func(c column) string { return c.of(r, x) })
	}
	_ = table.Flush()
}

// printStored compares the runs on a full table with the same runs on an empty one, by medians of the rounds.
func (r report) printStored(w io.Writer) {
	seen := map[setup]bool{}
	for _, x := range r.Results {
		full, empty := r.lasting(x, true), r.lasting(x, false)
		if x.Stored == 0 || seen[x.setup] || len(empty) == 0 {
			continue
		}
		seen[x.setup] = true
		fmt.Fprintf(w, "\n%d callers with %d orders stored: %s of the orders/s from empty (%s against %s), %s of its CPU; "+
			"WAL bytes per order %.0f (%.0f from empty), HOT %.0f %% (%.0f %%)\n",
			x.Callers, x.Stored, ratio(full, empty, ordersPerSec), spread(full), spread(empty), ratio(full, empty, cpuPerOrder),
			median(full, walPerOrder), median(empty, walPerOrder), 100*median(full, hotShare), 100*median(empty, hotShare))
	}
}

func cpuPerOrder(x result) float64 { return x.ServiceCPU + x.PostgresCPU }
func walPerOrder(x result) float64 { return x.WALPerOrder }
func hotShare(x result) float64    { return x.HOTShare }

// lasting are the runs with the same load and duration, on a full table or not.
func (r report) lasting(as result, stored bool) (runs []result) {
	for _, x := range r.Results {
		if x.setup == as.setup && math.Abs(x.Seconds-as.Seconds) < 1 && (x.Stored > 0) == stored {
			runs = append(runs, x)
		}
	}
	return runs
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

// comparisons are of versions of the service: what the first does of the second.
var comparisons = [][2]string{{"pawl", "baseline"}, {"pawl", "earlier"}, {"token", "pawl"}, {keyedName, "pawl"}, {streamName, "pawl"}}

// printComparisons compares the medians of two targets under the same load. It also prints the lowest and the highest
// round, because differences smaller than those between rounds mean nothing.
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
			fmt.Fprintf(w, "\n%s, against %s: %s of the orders/s (%s against %s), CPU service %s, CPU PostgreSQL %s, CPU of all %s\n",
				x.setup, pair[1], ratio(mine, theirs, ordersPerSec), spread(mine), spread(theirs),
				ratio(mine, theirs, func(x result) float64 { return x.ServiceCPU }),
				ratio(mine, theirs, func(x result) float64 { return x.PostgresCPU }),
				ratio(mine, theirs, func(x result) float64 { return x.ServiceCPU + x.PostgresCPU + x.LoadCPU }))
		}
	}
}

// rounds are the runs of a row that began with the same database.
func (r report) rounds(s setup) (runs []result) {
	for _, x := range r.Results {
		if x.setup == s && x.Stored == 0 && x.Orders > 0 {
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

func (s *summary) text(orders int) string {
	return fmt.Sprintf("%d calls; effects: charge %d, reserve %d, confirm %d, of %d orders; doubleLive %d, overlaps %d, repeatedEffects %d",
		s.Requests, s.Steps["charge"].Effects, s.Steps["reserve"].Effects, s.Steps["confirm"].Effects, orders,
		s.DoubleLive, s.Overlaps, s.RepeatedEffects)
}
