package main

import (
	"fmt"
	"io"
	"slices"
)

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
