package main

import (
	"fmt"
	"io"
	"strconv"
)

var remoteColumns = []string{"load", "orders/s", "p50 ms", "p99 ms", "max ms", "errors", "calls/order", "CPU service",
	"CPU PostgreSQL", "CPU provider", "CPU load", "others %", "RSS MiB", "WAL B/order", "HOT %"}

// printRemote writes a table of the runs with remote steps; below it, for each, what
// the provider counted and how the figures stand to the aims.
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
		for _, a := range aims {
			if a.of == nil || a.of(x) {
				fmt.Fprintf(w, "  %s\n", a.text(x))
			}
		}
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

// aim is an upper limit of a figure under the loads it was set for.
type aim struct {
	name  string
	limit float64
	value func(result) float64
	of    func(result) bool // nil: all
}

var aims = []aim{
	{"CPU of the service, s per 1,000 orders", 0.6, func(x result) float64 { return x.ServiceCPU }, nil},
	{"CPU of PostgreSQL, s per 1,000 orders", 0.4, func(x result) float64 { return x.PostgresCPU },
		func(x result) bool { return x.PostgresCPU > 0 }}, // else nothing was measured
	{"p99 at 500/s offered, ms", 1000, func(x result) float64 { return x.P99 }, func(x result) bool { return x.Rate == 500 }},
	{"memory of the service with 2,000 orders in flight, MiB", 300, func(x result) float64 { return x.MemoryMiB },
		func(x result) bool { return x.Callers == remoteCallers }},
}

func (a aim) text(x result) string {
	verdict := "holds"
	if a.value(x) > a.limit {
		verdict = "missed"
	}
	return fmt.Sprintf("%s: %.3g, aim %g: %s", a.name, a.value(x), a.limit, verdict)
}
