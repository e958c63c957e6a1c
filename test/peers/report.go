package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"
)

// report has the results of all rounds.
type report struct {
	postgres string
	results  []result
	killed   []aftermath
}

// print writes tables in Markdown. Their values are medians of the rounds.
func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d cores, PostgreSQL %s, %s\n\n", runtime.NumCPU(), r.postgres, runtime.Version())
	fmt.Fprint(w, "| flushes | callers | | orders/s | p50 ms | p99 ms | CPU | its PostgreSQL | commits | flushes | log KB |\n",
		"|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	rounds := map[setup][]result{}
	var order []setup
	for _, x := range r.results {
		if rounds[x.setup] == nil {
			order = append(order, x.setup)
		}
		rounds[x.setup] = append(rounds[x.setup], x)
	}
	slices.SortStableFunc(order, func(a, b setup) int { // within these, the peers stay in their order
		return cmp.Or(cmp.Compare(a.latency, b.latency), cmp.Compare(a.callers, b.callers))
	})
	var last setup
	for _, s := range order {
		of := func(value func(result) float64) float64 { return median(rounds[s], value) }
		latency, callers := "+"+s.latency.String(), fmt.Sprint(s.callers)
		if s.latency == last.latency && s.callers == last.callers {
			latency, callers = "", ""
		}
		last = s
		fmt.Fprintf(w, "| %s | %s | %s | %.0f | %.1f | %.1f | %.2f | %.2f | %.1f | %.2f | %.1f |\n", latency, callers, s.peer,
			of(func(x result) float64 { return x.perSecond }), of(func(x result) float64 { return x.p50 }), of(func(x result) float64 { return x.p99 }),
			of(func(x result) float64 { return x.cpuPeer + x.cpuPostgres }), of(func(x result) float64 { return x.cpuPostgres }),
			of(func(x result) float64 { return x.commits }), of(func(x result) float64 { return x.flushes }), of(func(x result) float64 { return x.log }))
	}
	if r.killed != nil {
		r.printKilled(w)
	}
}

func (r report) printKilled(w io.Writer) {
	fmt.Fprint(w, "\n| killed | under way | completed already | finished by itself | within | left half done | not begun | completed after repetition | effects run again | lost |\n",
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, x := range r.killed {
		fmt.Fprintf(w, "| %s | %d | %d | %d | %s | %d | %d | %d | %d | %d |\n",
			x.peer, x.underWay, x.done, x.finished, x.took.Round(100*time.Millisecond), x.left, x.notBegun, x.completed, x.ranAgain, x.lost)
	}
}
