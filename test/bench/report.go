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
	"CPU service", "CPU PostgreSQL", "CPU load", "others %", "RSS MiB", "WAL B/order", "HOT %", "checkpoints"}

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
	r.printConsole(w)
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
		fmt.Sprintf("%.0f", x.MemoryMiB), fmt.Sprintf("%.0f", x.WALPerOrder), fmt.Sprintf("%.0f", 100*x.HOTShare),
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
