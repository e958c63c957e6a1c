package main

import "os"

// Two versions of the service are compared by the medians of their rounds: one round is noise.
func Example() {
	var r report
	for target, all := range map[string][]float64{"pawl": {90, 96, 500}, "earlier": {100, 10, 101, 100}} {
		for _, perSecond := range all {
			r.Results = append(r.Results, result{setup: setup{Target: target, Callers: 64, Items: 1},
				OrdersPerSec: perSecond, ServiceCPU: 0.1, Orders: 1})
		}
	}
	r.printComparisons(os.Stdout)
	// Output:
	// pawl, 64 callers, hot, against earlier: 0.960 of the orders/s (96, 90 to 500 against 100, 10 to 101), CPU service 1.000, CPU PostgreSQL not measured
}
